package main

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloned forks with flags, by a system call that ends in the child at once.
func cloned(flags uintptr) error {
	return alone(func() error {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
		_, _ = unix.Wait4(int(pid), nil, 0, nil)
		return nil
	})
}

func unshare(flags int) error { return alone(func() error { return unix.Unshare(flags) }) }

// kept is what system calls have been given as numbers.
var kept []*byte

// path is the address of a text, as an argument of call.
func path(s string) uintptr {
	b, err := unix.BytePtrFromString(s)
	if err != nil {
		return 0
	}
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(b))
}

// Attempts to get rights, or into a place where there are some.
var privilegeAttempts = []attempt{
	{"31 mount a tmpfs", func(p *places) error { return unix.Mount("tmpfs", p.repo, "tmpfs", 0, "") }},
	{"32 unmount .git", func(p *places) error { return unix.Unmount(p.repo+"/.git", unix.MNT_DETACH) }},
	{"33 remount the root writable", func(*places) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"34a a user namespace", func(*places) error { return unshare(unix.CLONE_NEWUSER) }},
	{"34b user and mount namespaces", func(*places) error { return unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNS) }},
	{"34c a network namespace", func(*places) error { return unshare(unix.CLONE_NEWNET) }},
	{"34d a time namespace", func(*places) error { return unshare(unix.CLONE_NEWTIME) }},
	{"34e a cgroup namespace", func(*places) error { return unshare(unix.CLONE_NEWCGROUP) }},
	{"34f clone into a user namespace", func(*places) error { return cloned(unix.CLONE_NEWUSER) }},
	{"34g clone with the high half set", func(*places) error { return cloned(1<<32 | unix.CLONE_NEWUSER) }},
	{"34h clone3", func(*places) error { return call(unix.SYS_CLONE3, 0, 0) }},
	{"35a chroot", func(p *places) error { return unix.Chroot(p.repo) }},
	{"35b pivot_root", func(*places) error { return unix.PivotRoot("/", "/") }},
	{"36a enter the mount namespace of init", func(*places) error { return enter("/proc/1/ns/mnt", unix.CLONE_NEWNS) }},
	{"36b enter the own user namespace", func(*places) error { return enter("/proc/self/ns/user", unix.CLONE_NEWUSER) }},
	{"36c enter the namespaces of init by descriptor", func(*places) error {
		return pidfdOfInit(func(fd int) error { return alone(func() error { return unix.Setns(fd, unix.CLONE_NEWNS) }) })
	}},
	{"54a clear no_new_privs", func(*places) error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) }},
	{"54b raise an ambient capability", func(*places) error {
		return alone(func() error {
			return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
		})
	}},
	{"54c set capabilities", func(*places) error {
		return alone(func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {}}
			return unix.Capset(&hdr, &all[0])
		})
	}},
	{"54d have a capability", func(*places) error { return privileged() }},
	{"54e a capability in the bounding set", func(*places) error {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if n, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0); errno == 0 && n == 1 {
				return nil
			}
		}
		return syscall.EPERM
	}},
	{"54f leave strict mode of securebits", func(*places) error {
		return alone(func() error { return unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0) })
	}},
	{"55a setgroups", func(*places) error {
		return alone(func() error {
			gid := uint32(0)
			return call(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&gid)))
		})
	}},
	{"55b become another user", func(*places) error {
		return alone(func() error { return call(unix.SYS_SETUID, uintptr(unix.Getuid()+1)) })
	}},
	{"55c become another group", func(*places) error {
		return alone(func() error { return call(unix.SYS_SETGID, uintptr(unix.Getgid()+1)) })
	}},
	{"55d become root", func(*places) error {
		if unix.Getuid() == 0 {
			return alone(func() error { return call(unix.SYS_SETUID, 12345) })
		}
		return alone(func() error { return call(unix.SYS_SETUID, 0) })
	}},
	{"55e set the file system's user", func(*places) error {
		return alone(func() error {
			_, _, _ = unix.Syscall(unix.SYS_SETFSUID, 12345, 0, 0)
			if now, _, _ := unix.Syscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); int(now) != unix.Getuid() {
				return nil
			}
			return syscall.EPERM
		})
	}},
}

func enter(name string, kind int) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return alone(func() error { return unix.Setns(fd, kind) })
}
