// Package enforce puts two layers into force on threads and processes: Landlock
// rulesets, which package sandbox derives from policies, and seccomp filters, whose
// programs are embedded here.
//
// [RestrictThread] and [RestrictProcess] apply rulesets. [FiltersFor] chooses the filters of
// a command, and the Load methods of [Filter] apply them. A restriction is never lifted. The
// program filtergen compiles the filters from the tables of internal/seccomp, on
// a developer's machine; a test compiles them again and compares.
//
// Linux only. A goroutine that restricts a thread has to be locked to that thread. A
// process is restricted once, by any goroutine.
package enforce
