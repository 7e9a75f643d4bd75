// Package linux asks the kernel for facts that the standard library does not offer: about control
// groups, processes and threads, and about the rights of this program's own threads.
//
//	FindCgroup, MemoryLimit          the control group of this process; how much memory it may have
//	PIDs, StatOf, ReadStat, Stat     which processes there are, and their stat files
//	ProcessOf, ThreadStatus          the process of a thread, and a line of its status file
//	DuplicateFD                      a copy of a descriptor of another process
//	ReadMemory, ReadString,          the memory of another process
//	MemoryPages, WriteMemory
//	UserNamespaceCaps, MapIDs        what a process needs in a new user namespace
//	IsNobody                         reports whether a uid stands for all users without one
//	DropCaps, DropThreadCaps,        drop capabilities for good; nothing here adds one
//	DropBoundingCaps, CheckCaps
//	ErrnoText, ErrNoProcfs           the text of an error number; why there is no /proc/self/exe
//	NoteScore, ForgetStarter, Fork   keep children from inheriting what the starter of a server has set
//	ForkApart                        and the keys of this process
//	SetDefault                       gives a signal its default action
//	NextData                         where a file has data, and where holes
//	CheckDir                         why a directory cannot be entered
//	DuplicateOutput                  a descriptor of a process that leads to a known file
//
// For descriptors and memory this process must be allowed to trace the other process (ptrace(2)).
// Errors about a thread are errnos: ENOENT or ESRCH if the thread is gone, EPERM if it may not be
// traced, EFAULT for memory. The kernel may give the number of a thread that has ended to a new
// thread. So the caller must make sure that the thread existed all the time before it uses the
// result.
//
// Capabilities belong to threads (capabilities(7)): a caller that wants to change only its own
// thread must first lock the goroutine to the thread. All functions may be called concurrently.
//
// Code that only reads text or files builds on every system; files named _linux.go are for Linux
// only.
package linux
