package enforce

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// FilterExecs refuses nothing: it is for [Filter.LoadExecs] where nothing else needs a listener.
const FilterExecs Filter = "execs"

// LoadExecs does what [Filter.LoadNotify] does, and has the listener also asked about every
// execve(2) and execveat(2).
func (f Filter) LoadExecs() (listener int, err error) {
	if err := setNoNewPrivs(); err != nil {
		return -1, err
	}
	program, err := f.withExecs()
	if err != nil {
		return -1, err
	}
	return load(f, program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
}

// offsets in struct seccomp_data.
const (
	numberAt = 0
	archAt   = 4
)

// withExecs returns the program with the two calls put before it: its jumps are relative.
func (f Filter) withExecs() ([]unix.SockFilter, error) {
	arch := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		arch = unix.AUDIT_ARCH_AARCH64
	}
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		end   = unix.BPF_RET | unix.BPF_K
	)
	execs := []unix.SockFilter{
		{Code: load, K: archAt},
		{Code: equal, K: arch, Jf: 4}, // what follows decides about other architectures
		{Code: load, K: numberAt},
		{Code: equal, K: unix.SYS_EXECVE, Jt: 1},
		{Code: equal, K: unix.SYS_EXECVEAT, Jf: 1},
		{Code: end, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	if f != FilterExecs {
		rest, err := f.program()
		if err != nil {
			return nil, err
		}
		if len(execs)+len(rest) > maxInstructions {
			return nil, fmt.Errorf("filter %q is too long", f)
		}
		return append(execs, rest...), nil
	}
	const x32 = 0x40000000 // __X32_SYSCALL_BIT
	return append(execs,
		unix.SockFilter{Code: load, K: archAt},
		unix.SockFilter{Code: equal, K: arch, Jt: 1},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_KILL_PROCESS},
		unix.SockFilter{Code: load, K: numberAt},
		unix.SockFilter{Code: least, K: x32, Jf: 1},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW},
	), nil
}
