package confine

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// limit is one of Limits.
type limit struct {
	resource int
	name     string
	value    uint64
}

// list has the address space last.
func (l Limits) list() []limit {
	return []limit{
		{unix.RLIMIT_NPROC, "processes", l.Processes},
		{unix.RLIMIT_CPU, "processor time", l.CPUSeconds},
		{unix.RLIMIT_AS, "the address space", l.AddressSpace},
	}
}

// impose sets the limit for good, but not above what is inherited.
func (l limit) impose() error {
	if l.value == 0 {
		return nil
	}
	var was unix.Rlimit
	err := unix.Getrlimit(l.resource, &was)
	if err == nil {
		value := min(l.value, was.Max)
		err = unix.Setrlimit(l.resource, &unix.Rlimit{Cur: value, Max: value})
	}
	if err != nil {
		return fmt.Errorf("limiting %s to %d: %w", l.name, l.value, os.NewSyscallError("prlimit", err))
	}
	return nil
}

// reserved is how much lower a command's limit of open files is than the agent's.
//
// The kernel lets a process send no descriptor while its user has more of them
// under way between processes than the process may have open (unix(7),
// ETOOMANYREFS). A command could send itself as many as that, and no helper of
// the agent could hand a file over any more. It still can with many threads that
// send at once, as the kernel counts late: this makes it harder, no more.
const reserved = 1024

// withFewerFiles starts something with the limit of open files that this process
// has inherited, less what is reserved. It can be done once: a process that
// lowered its limit cannot raise it any more. This process goes on with as many as it still may.
func withFewerFiles(start func() error) error {
	restoreOpenFiles()
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	if err == nil {
		limit.Max -= min(reserved, limit.Max/2)
		limit.Cur = min(limit.Cur, limit.Max)
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if err != nil {
		return fmt.Errorf("limiting open files: %w", os.NewSyscallError("prlimit", err))
	}
	started := start()
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil && started == nil {
		started = os.NewSyscallError("prlimit", err)
	}
	return started
}

// restoreOpenFiles puts the limit of open files back that the runtime raised for
// itself: the call fails after it has done that.
func restoreOpenFiles() { _ = syscall.Exec("", nil, nil) }

// execLimited imposes the limits and executes the first of the paths that can
// be. The runtime cannot grow within a limit of its address space, as it
// reserves more than it uses, so all that has to be allocated is so before.
func (l Limits) execLimited(paths, argv, env []string) error {
	programs, err := syscall.SlicePtrFromStrings(paths)
	if err != nil {
		return err
	}
	argp, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		return err
	}
	envp, err := syscall.SlicePtrFromStrings(env)
	if err != nil {
		return err
	}
	restoreOpenFiles()
	for _, limit := range l.list() {
		if err := limit.impose(); err != nil {
			return err
		}
	}
	found := syscall.ENOENT
	for _, program := range programs[:len(paths)] {
		_, _, errno := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(program)),
			uintptr(unsafe.Pointer(&argp[0])), uintptr(unsafe.Pointer(&envp[0])))
		switch errno {
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES:
			found = errno
		default:
			return errno
		}
	}
	runtime.KeepAlive(programs)
	runtime.KeepAlive(argp)
	runtime.KeepAlive(envp)
	return found
}
