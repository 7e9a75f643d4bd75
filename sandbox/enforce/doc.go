// Package enforce puts two layers into force on threads and processes: Landlock
// rulesets, which package sandbox makes of policies, and seccomp filters, whose
// programs are embedded here.
//
// [RestrictThread] and [RestrictProcess] are for rulesets, the Load methods of
// [Filter] for filters. Nothing that was restricted is ever given back. The
// program filtergen compiles the filters from the tables of internal/seccomp, on
// a developer's machine; a test compiles them again and compares.
//
// Linux only. A goroutine that calls what restricts a thread has to be locked to
// its thread. What restricts a process is called once, by any goroutine.
package enforce
