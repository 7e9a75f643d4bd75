package main

import (
	"io"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// harmless is a signal that is ignored by default.
const harmless = unix.SIGWINCH

// sleeper starts a child of ours for f, and ends it after f.
func sleeper(f func(pid int) error) error {
	cmd := exec.Command(os.Args[0], "sleep")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		return err
	}
	return f(cmd.Process.Pid)
}

// vm writes to a process's memory, at an address where nothing is.
func vm(pid int) error {
	b := []byte{0}
	local := unix.Iovec{Base: &b[0], Len: 1}
	remote := unix.RemoteIovec{Base: 8, Len: 1}
	_, err := unix.ProcessVMWritev(pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	return err
}

func pidfdOfInit(f func(fd int) error) error {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// signalListed signals the process that has the number in this procfs. Its directory is as good
// as a pidfd.
func signalListed(pid int) error {
	fd, err := unix.Open("/proc/"+itoa(pid), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, harmless, nil, 0)
}

// initThreads are PIDs that threads of init can have: init is started before anything else in its
// PID namespace.
func initThreads() []int {
	if os.Getppid() != 1 {
		return nil
	}
	var pids []int
	for pid := 1; pid < os.Getpid(); pid++ {
		pids = append(pids, pid)
	}
	return pids
}

// Attempts of one process on another.
var processAttempts = []attempt{
	{"27a signal the agent", func(p *places) error { return unix.Kill(p.agent, harmless) }},
	{"27b signal another process of the user", func(p *places) error { return unix.Kill(p.pid, harmless) }},
	{"27c queue a signal to the agent", func(p *places) error {
		var info [128]byte
		*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
		return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(p.agent), uintptr(harmless), uintptr(unsafe.Pointer(&info)))
	}},
	{"27d signal a thread of the agent", func(p *places) error { return unix.Tgkill(p.agent, p.agent, harmless) }},
	{"27e signal the agent's group", func(p *places) error { return unix.Kill(-p.agent, harmless) }},
	{"28 signal everybody", func(*places) error { return unix.Kill(-1, harmless) }},
	{"29 trace a child", func(*places) error { return sleeper(func(pid int) error { return unix.PtraceAttach(pid) }) }},
	{"30 write to the parent's memory", func(*places) error { return vm(os.Getppid()) }},
	{"x30a trace init", func(*places) error { return unix.PtraceSeize(1) }},
	{"x30b signal init", func(*places) error { return unix.Kill(1, harmless) }},
	{"x30c signal init by descriptor", func(*places) error {
		return pidfdOfInit(func(fd int) error { return unix.PidfdSendSignal(fd, harmless, nil, 0) })
	}},
	{"x30d take a descriptor of init", func(*places) error {
		return pidfdOfInit(func(fd int) error { return call(unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0) })
	}},
	{"x30e read the memory of init", func(*places) error {
		b := []byte{0}
		_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
		return err
	}},
	{"x30f compare with the agent", func(p *places) error { return call(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(p.agent), 1, 0, 0) }},
	{"x30g trace the agent", func(p *places) error { return unix.PtraceSeize(p.agent) }},
	// The attempt sets what is set already.
	{"x31a limits of the agent", func(p *places) error {
		var lim unix.Rlimit
		if err := unix.Prlimit(p.agent, unix.RLIMIT_CORE, nil, &lim); err != nil {
			return err
		}
		return unix.Prlimit(p.agent, unix.RLIMIT_CORE, &lim, nil)
	}},
	{"x31b priority of the agent", func(p *places) error {
		priority, err := unix.Getpriority(unix.PRIO_PROCESS, p.agent)
		if err != nil {
			return err
		}
		return unix.Setpriority(unix.PRIO_PROCESS, p.agent, 20-priority)
	}},
	{"x31c processors of the agent", func(p *places) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(p.agent, &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(p.agent, &set)
	}},
	{"x31d signals of a pipe to another process of the user", func(p *places) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		defer w.Close()
		for _, set := range []struct{ command, value int }{
			{unix.F_SETSIG, int(harmless)}, {unix.F_SETOWN, p.pid}, {unix.F_SETFL, unix.O_ASYNC},
		} {
			if _, err := unix.FcntlInt(r.Fd(), set.command, set.value); err != nil {
				return err
			}
		}
		_, err = w.WriteString("x")
		return err
	}},
	{"x31f scheduling of the agent", func(p *places) error {
		attr, err := unix.SchedGetAttr(p.agent, 0)
		if err != nil {
			return err
		}
		return unix.SchedSetAttr(p.agent, attr, 0)
	}},
	{"x31g disk priority of the agent", func(p *places) error {
		const process = 1
		priority, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, process, uintptr(p.agent), 0)
		if errno != 0 {
			return errno
		}
		return call(unix.SYS_IOPRIO_SET, process, uintptr(p.agent), priority)
	}},
	{"x31h session and group of another process of the user", func(p *places) error { return unix.Setpgid(p.pid, p.pid) }},
	{"x31i limits of another process of the user", func(p *places) error {
		var lim unix.Rlimit
		if err := unix.Prlimit(p.pid, unix.RLIMIT_CORE, nil, &lim); err != nil {
			return err
		}
		return unix.Prlimit(p.pid, unix.RLIMIT_CORE, &lim, nil)
	}},
	{"x31e limits of init", func(*places) error {
		lim := unix.Rlimit{Cur: 64, Max: 64}
		return unix.Prlimit(1, unix.RLIMIT_NOFILE, &lim, nil)
	}},
	// A command that slows init down could use what somebody outside uncovers before init ends it
	// for that. The attempt sets what is set already.
	{"x36a processors of init", func(*places) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(os.Getppid(), &set)
	}},
	{"x36b scheduling of init", func(*places) error {
		attr, err := unix.SchedGetAttr(os.Getpid(), 0)
		if err != nil {
			return err
		}
		return unix.SchedSetAttr(os.Getppid(), attr, 0)
	}},
	{"x36c priority of init", func(*places) error { return unix.Setpriority(unix.PRIO_PROCESS, os.Getppid(), 0) }},
	{"x36d priority of all processes of the user", func(*places) error { return unix.Setpriority(unix.PRIO_USER, 0, 0) }},
	{"x36e disk priority of init", func(*places) error {
		const process, none = 1, 0
		return call(unix.SYS_IOPRIO_SET, process, uintptr(os.Getppid()), none)
	}},
	{"x36f autogroup of init or a thread of it", func(*places) error {
		for _, pid := range initThreads() {
			if err := open("/proc/"+itoa(pid)+"/autogroup", unix.O_WRONLY); err == nil {
				return nil
			}
		}
		return open("/proc/"+itoa(os.Getppid())+"/autogroup", unix.O_WRONLY)
	}},
	{"x36g oom score of init or a thread of it", func(*places) error {
		for _, pid := range initThreads() {
			if err := open("/proc/"+itoa(pid)+"/oom_score_adj", unix.O_WRONLY); err == nil {
				return nil
			}
		}
		return open("/proc/"+itoa(os.Getppid())+"/oom_score_adj", unix.O_WRONLY)
	}},
	{"x37a signal another process of the user by its directory in procfs", func(p *places) error { return signalListed(p.pid) }},
	{"x37b signal the agent by its directory in procfs", func(p *places) error { return signalListed(p.agent) }},
	{"x32 a System V segment of the host", func(p *places) error {
		_, err := unix.SysvShmGet(p.shm, 1, 0)
		return err
	}},
	{"40 write outside from memory", func(p *places) error {
		self, err := os.Open(os.Args[0])
		if err != nil {
			return err
		}
		defer self.Close()
		fd, err := unix.MemfdCreate("escape", 0)
		if err != nil {
			return err
		}
		copied := os.NewFile(uintptr(fd), "escape")
		defer copied.Close()
		if _, err := io.Copy(copied, self); err != nil {
			return err
		}
		return run("/proc/self/fd/"+itoa(fd), "one", "2a create outside")
	}},
	{"53 a set-user-ID program", func(p *places) error { return run(p.suid, "privileged") }},
	{"51a TIOCSTI", func(*places) error {
		c := byte('x')
		return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
	}},
	{"51b TIOCLINUX", func(*places) error {
		c := byte(2)
		return call(unix.SYS_IOCTL, 0, unix.TIOCLINUX, uintptr(unsafe.Pointer(&c)))
	}},
	{"51c TIOCSTI with the high half set", func(*places) error {
		c := byte('x')
		return call(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
	}},
	{"61 32-bit socket", func(*places) error { return run(os.Args[0], "one", "int80") }},
	{"x33 one more filter loosens nothing", func(*places) error {
		return alone(func() error {
			allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}}
			prog := unix.SockFprog{Len: 1, Filter: &allow[0]}
			if err := call(unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(&prog))); err != nil {
				return err
			}
			return unix.Mount("none", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "")
		})
	}},
	{"x34 coredump setting of our own", func(*places) error {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
			return err
		}
		return unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_BRK, 0, 0, 0)
	}},
	{"x35 subreaper", func(*places) error {
		// A subreaper is allowed. That it keeps nothing alive is tested outside.
		return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}},
}
