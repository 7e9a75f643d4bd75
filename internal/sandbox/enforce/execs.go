package enforce

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data.
const (
	numberAt = 0
	archAt   = 4
)

// programFor returns the program that is loaded with the listener. For [AskedExecs] it puts
// instructions for execve(2) and execveat(2) before the filter's own instructions. Those need
// no change, because their jumps are relative.
func (f Filter) programFor(l Listener) ([]unix.SockFilter, error) {
	if l != AskedExecs {
		return f.program()
	}
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
		{Code: equal, K: arch, Jf: 4}, // the instructions below decide about other architectures
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
