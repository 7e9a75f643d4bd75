package confine

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// List returns the limits in the order in which they are imposed. The address
// space comes last: once it is limited, imposing another limit could fail
// because of a lack of memory.
func (l Limits) List() []linux.Rlimit {
	return []linux.Rlimit{
		{Resource: unix.RLIMIT_NPROC, Name: "processes", Value: l.Processes},
		{Resource: unix.RLIMIT_CPU, Name: "processor time", Value: l.CPUSeconds},
		{Resource: unix.RLIMIT_FSIZE, Name: "the size of files", Value: l.FileSize},
		{Resource: unix.RLIMIT_AS, Name: "the address space", Value: l.AddressSpace},
	}
}

// Under returns the stricter of each of two limits.
func (l Limits) Under(m Limits) Limits {
	least := func(a, b uint64) uint64 {
		if a == 0 || b == 0 {
			return max(a, b)
		}
		return min(a, b)
	}
	return Limits{
		Processes: least(l.Processes, m.Processes), AddressSpace: least(l.AddressSpace, m.AddressSpace),
		CPUSeconds: least(l.CPUSeconds, m.CPUSeconds), FileSize: least(l.FileSize, m.FileSize),
	}
}

// reserved is how much lower a command's limit of open files is than the
// agent's.
//
// The kernel counts the descriptors of a user that are under way between
// processes, sent and not yet received. A process can send none while that
// count is above its own limit of open files (unix(7), ETOOMANYREFS). With the
// agent's limit, a command could send itself so many descriptors that no helper
// of the agent could pass a file any more. With a lower limit, the command
// reaches its own bound first. This makes the attack harder, but not
// impossible: the kernel counts late, so many threads that send at once still
// get further.
const reserved = 1024

// withFewerFiles calls start while the limit of open files is the inherited
// limit ([restoreOpenFiles]) minus reserved. Afterwards the soft limit is as
// high as still allowed. It can be called once: the hard limit stays low, and a
// process without privileges cannot raise it again.
func withFewerFiles(start func() error) error {
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

// restoreOpenFiles lowers the soft limit of open files again, which the runtime
// raised for itself. syscall.Exec does that before it executes something; here
// it finds nothing to execute.
//
// It is called before the command's filter is on the thread. The filter would pass
// that execve to the supervisor too, and while it waits, the runtime starts no
// thread in this process: if the answering thread does not exist yet, both wait
// for ever.
func restoreOpenFiles() { _ = syscall.Exec("", nil, nil) }

// execLimited imposes the limits and executes the first of the paths that can
// be executed. The runtime reserves more address space than it uses, so once
// that is limited it may get no more memory. So everything that execve(2) needs
// is allocated before.
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
	if err := linux.Impose(l.List()...); err != nil {
		return err
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
