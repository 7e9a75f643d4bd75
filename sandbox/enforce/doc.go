// Package enforce puts two layers into force on threads and processes: Landlock
// rulesets, which package sandbox makes of policies, and seccomp filters, whose
// programs are embedded here.
//
// [RestrictThread] and [RestrictProcess] are for rulesets, the Load methods of
// [Filter] for filters. Nothing that was restricted is ever given back. The
// programs are compiled by filtergen from the tables of internal/seccomp, on a
// developer's machine; a test compiles them again.
//
// Linux only. What restricts a thread is called by a goroutine that is locked to
// it; what restricts a process is called once.
package enforce
