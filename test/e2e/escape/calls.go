package main

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Other system calls. Their arguments are such that nothing happens where they are allowed.
var callAttempts = []attempt{
	{"37 userfaultfd", func(*places) error { return call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1) }},
	{"38a bpf", func(*places) error { return call(unix.SYS_BPF, 0, 0, 0) }},
	{"38b perf_event_open", func(*places) error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0, Config: unix.PERF_COUNT_SW_CPU_CLOCK}
		fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		return closing(fd, err)
	}},
	{"39a io_uring_setup", func(*places) error {
		var params [120]byte
		return call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)))
	}},
	{"39b io_uring_enter", func(*places) error { return call(unix.SYS_IO_URING_ENTER, ^uintptr(0)) }},
	{"39c io_uring_register", func(*places) error { return call(unix.SYS_IO_URING_REGISTER, ^uintptr(0)) }},
	{"41a keyctl", func(*places) error { return call(unix.SYS_KEYCTL, 0, ^uintptr(2), 0) }}, // the session's id
	{"41b add_key", func(*places) error {
		b := []byte("x")
		return call(unix.SYS_ADD_KEY, path("user"), path("escape"), uintptr(unsafe.Pointer(&b[0])), 1, ^uintptr(2))
	}},
	{"41c request_key", func(*places) error { return call(unix.SYS_REQUEST_KEY, path("user"), path("escape"), 0, 0) }},
	{"42 open_by_handle_at", func(*places) error {
		fd, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.NewFileHandle(1, make([]byte, 8)), unix.O_RDONLY)
		return closing(fd, err)
	}},
	{"x40a open_tree", func(*places) error { return call(unix.SYS_OPEN_TREE, ^uintptr(99), path("/"), 1) }},
	{"x40b fsopen", func(*places) error { return call(unix.SYS_FSOPEN, path("tmpfs"), 1) }},
	{"x40c fsmount", func(*places) error { return call(unix.SYS_FSMOUNT, ^uintptr(0), 0, 0) }},
	{"x40d fsconfig", func(*places) error { return call(unix.SYS_FSCONFIG, ^uintptr(0), 0, 0, 0, 0) }},
	{"x40e fspick", func(*places) error { return call(unix.SYS_FSPICK, ^uintptr(99), path("/"), 0) }},
	{"x40f move_mount", func(*places) error {
		return call(unix.SYS_MOVE_MOUNT, ^uintptr(99), path("/proc"), ^uintptr(99), path("/proc"), 0)
	}},
	{"x40g mount_setattr", func(p *places) error {
		attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr)
	}},
	{"x41a process_madvise", func(*places) error {
		return pidfdOfInit(func(fd int) error { return call(unix.SYS_PROCESS_MADVISE, uintptr(fd), 0, 0, unix.MADV_COLD, 0) })
	}},
	{"x41b move_pages", func(*places) error { return call(unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, 0) }},
	{"x42a init_module", func(*places) error { return call(unix.SYS_INIT_MODULE, 0, 0, path("")) }},
	{"x42b finit_module", func(*places) error { return call(unix.SYS_FINIT_MODULE, ^uintptr(0), path(""), 0) }},
	{"x42c delete_module", func(*places) error { return call(unix.SYS_DELETE_MODULE, path("escape"), unix.O_NONBLOCK) }},
	{"x42d kexec_load", func(*places) error { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 1) }},
	{"x42e kexec_file_load", func(*places) error {
		return call(unix.SYS_KEXEC_FILE_LOAD, ^uintptr(0), ^uintptr(0), 0, 0, 0)
	}},
	{"x43a swapoff", func(*places) error { return call(unix.SYS_SWAPOFF, path("/nowhere")) }},
	{"x43b swapon", func(*places) error { return call(unix.SYS_SWAPON, path("/nowhere"), 0) }},
	{"x43c reboot", func(*places) error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) }},
	{"x43d acct", func(*places) error { return unix.Acct("/nowhere") }},
	{"x43e quotactl", func(*places) error { return call(unix.SYS_QUOTACTL, 0, 0, 0, 0) }},
	{"x43f quotactl_fd", func(*places) error { return call(unix.SYS_QUOTACTL_FD, ^uintptr(0), 0, 0, 0) }},
	{"x43g syslog", func(*places) error {
		_, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
		return err
	}},
	{"x43h settimeofday", func(*places) error { return call(unix.SYS_SETTIMEOFDAY, 0, 0) }},
	{"x43i clock_settime", func(*places) error { return call(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, 0) }},
	{"x43j adjtimex", func(*places) error {
		var t unix.Timex
		_, err := unix.Adjtimex(&t)
		return err
	}},
	{"x43k sethostname", func(*places) error { return call(unix.SYS_SETHOSTNAME, path("x"), 65) }}, // too long
	{"x43l setdomainname", func(*places) error { return call(unix.SYS_SETDOMAINNAME, path("x"), 65) }},
	{"x43m vhangup", func(*places) error { return call(unix.SYS_VHANGUP) }},
	{"x43n nfsservctl", func(*places) error { return call(unix.SYS_NFSSERVCTL) }},
	{"x44 fanotify_init", func(*places) error {
		fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, 0)
		return closing(fd, err)
	}},
	{"x45a personality without randomised addresses", func(*places) error { return alone(func() error { return call(unix.SYS_PERSONALITY, 0x40000) }) }},
	{"x45b personality that reads is executable", func(*places) error { return alone(func() error { return call(unix.SYS_PERSONALITY, 0x400000) }) }},
	{"x46 a lease on a file outside", func(p *places) error {
		fd, err := unix.Open(p.out+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		return err
	}},
	{"x47 a mandatory way to watch outside", func(p *places) error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, p.out, unix.IN_CREATE)
		return err
	}},
	{"x48 the clock by timer file", func(*places) error {
		fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME_ALARM, unix.TFD_CLOEXEC) // wakes a machine that sleeps
		return closing(fd, err)
	}},
	{"x49 real-time priority", func(*places) error {
		return alone(func() error {
			priority := int32(1)
			return call(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&priority)))
		})
	}},
	{"x50 a system call nobody knows", func(*places) error { return call(unknownCall) }},
}

// unknownCall has a number that no kernel has given away yet.
const unknownCall = 4000

// deadline is how long an attempt may wait for an answer.
const deadline = 2 * time.Second

// racing is how long an attempt changes a name while it uses the name.
const racing = time.Second
