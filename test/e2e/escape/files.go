package main

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// open tries to open a path; nothing is written.
func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
	return closing(fd, err)
}

func create(path string) error { return open(path, unix.O_CREAT|unix.O_WRONLY) }
func write(path string) error  { return open(path, unix.O_WRONLY) }

// read reads from a file; an empty one counts as EIO.
func read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := f.Read(make([]byte, 8)); n == 0 && err != io.EOF {
		return err
	} else if n == 0 {
		return syscall.EIO
	}
	return nil
}

func list(path string) error {
	entries, err := os.ReadDir(path)
	if err == nil && len(entries) == 0 {
		return syscall.ENOENT
	}
	return err
}

var fileAttempts = []attempt{
	{"1 create in the workspace", func(p *places) error { return create(p.repo + "/new") }},
	{"2a create outside", func(p *places) error { return create(p.out + "/new") }},
	{"2b create in /etc", func(p *places) error { return create("/etc/escape-new") }},
	{"2c create in /usr", func(p *places) error { return create("/usr/escape-new") }},
	{"2d create in /var/tmp", func(p *places) error { return create("/var/tmp/escape-new") }},
	{"2e open a file outside to write", func(p *places) error { return write(p.out + "/file") }},
	{"3 create in /tmp", func(p *places) error { return create("/tmp/escape-new") }},
	{"4 open .git/config to write", func(p *places) error { return write(p.repo + "/.git/config") }},
	{"5 mkdir .codex", func(p *places) error { return unix.Mkdir(p.repo+"/.codex", 0o755) }},
	{"7a unlink .git/HEAD", func(p *places) error { return unix.Unlink(p.repo + "/.git/HEAD") }},
	{"7b rmdir .git", func(p *places) error { return unix.Rmdir(p.repo + "/.git") }},
	{"8 write through a link", func(p *places) error { return write(p.repo + "/link") }},
	{"12 read a denied file", func(p *places) error { return read(p.repo + "/vault/x") }},
	{"13 list a denied directory", func(p *places) error { return list(p.repo + "/vault") }},
	{"14a chmod outside", func(p *places) error { return unix.Chmod(p.out+"/file", 0o666) }},
	{"14b chown outside", func(p *places) error { return unix.Lchown(p.out+"/file", unix.Getuid(), unix.Getgid()) }},
	{"14c utimes outside", func(p *places) error { return unix.Utimes(p.out+"/file", nil) }},
	{"15 setxattr outside", func(p *places) error { return unix.Setxattr(p.out+"/file", "user.escape", []byte("x"), 0) }},
	{"16 truncate outside", func(p *places) error { return unix.Truncate(p.out+"/file", 0) }},
	{"17 O_TMPFILE outside", func(p *places) error { return open(p.out, unix.O_TMPFILE|unix.O_RDWR) }},
	{"18a mkfifo outside", func(p *places) error { return unix.Mkfifo(p.out+"/fifo", 0o644) }},
	{"18b mkfifo in the workspace", func(p *places) error { return unix.Mkfifo(p.repo+"/fifo", 0o644) }},
	{"19a mknod character device", func(p *places) error { return unix.Mknod(p.repo+"/null", unix.S_IFCHR|0o666, 1<<8|3) }},
	{"19b mknod block device", func(p *places) error { return unix.Mknod(p.repo+"/disk", unix.S_IFBLK|0o666, 254<<8) }},
	{"20a /dev/mem", func(*places) error { return open("/dev/mem", unix.O_RDONLY) }},
	{"20b /dev/kmsg", func(*places) error { return open("/dev/kmsg", unix.O_RDONLY) }},
	{"20c a disk", func(*places) error { return open("/dev/vda", unix.O_RDONLY) }},
	{"20d /dev/fuse", func(*places) error { return open("/dev/fuse", unix.O_RDWR) }},
	{"20e /dev/net/tun", func(*places) error { return open("/dev/net/tun", unix.O_RDWR) }},
	{"20f /dev/kvm", func(*places) error { return open("/dev/kvm", unix.O_RDWR) }},
	{"52 a terminal of the host", func(p *places) error { return open(p.pts, unix.O_RDWR|unix.O_NOCTTY) }},
	{"x52 read a terminal of the host", func(p *places) error { return open(p.pts, unix.O_RDONLY|unix.O_NOCTTY) }},
	{"60a create in /dev/shm", func(*places) error { return create("/dev/shm/escape-new") }},
	{"60b /dev/shm without a bound", func(*places) error {
		var st unix.Statfs_t
		if err := unix.Statfs("/dev/shm", &st); err != nil {
			return err
		}
		if bytes := st.Blocks * uint64(st.Bsize); bytes > 0 && bytes <= 2<<30 {
			return syscall.ENOSPC
		}
		return nil
	}},
	{"x1a chmod .git", func(p *places) error { return unix.Chmod(p.repo+"/.git", 0o777) }},
	{"x1b utimes .git/config", func(p *places) error { return unix.Utimes(p.repo+"/.git/config", nil) }},
	{"x1c setxattr .git", func(p *places) error { return unix.Setxattr(p.repo+"/.git", "user.escape", []byte("x"), 0) }},
	{"x1d create in .git", func(p *places) error { return create(p.repo + "/.git/hook") }},
	{"x2a create in a placeholder", func(p *places) error { return create(p.repo + "/.agents/skill") }},
	{"x2b rmdir a placeholder", func(p *places) error { return unix.Rmdir(p.repo + "/.agents") }},
	{"x2c chmod a placeholder", func(p *places) error { return unix.Chmod(p.repo+"/.agents", 0o777) }},
	{"x2d create a denied name", func(p *places) error { return create(p.repo + "/secret") }},
	{"x2e unlink a denied name", func(p *places) error { return unix.Unlink(p.repo + "/secret") }},
	{"x2f symlink at a denied name", func(p *places) error { return unix.Symlink("file", p.repo+"/secret") }},
	{"x3a read a file that a glob denies", func(p *places) error { return read(p.repo + "/a.env") }},
	{"x3b unlink a file that a glob denies", func(p *places) error { return unix.Unlink(p.repo + "/a.env") }},
	{"x3c chmod a denied file", func(p *places) error { return unix.Chmod(p.repo+"/a.env", 0o666) }},
	{"x3d chmod a denied directory", func(p *places) error { return unix.Chmod(p.repo+"/vault", 0o777) }},
	{"x3e create in a denied directory", func(p *places) error { return create(p.repo + "/vault/new") }},
	{"x3f chdir into a denied directory and read", func(p *places) error {
		if err := os.Chdir(p.repo + "/vault"); err != nil {
			return err
		}
		defer os.Chdir("/")
		return read("x")
	}},
	{"x4a reopen a path descriptor to write", func(p *places) error { return reopen(p.out+"/file", unix.O_PATH) }},
	{"x4b reopen a read descriptor to write", func(p *places) error { return reopen(p.repo+"/.git/config", unix.O_RDONLY) }},
	{"x4c reopen a denied path descriptor to read", func(p *places) error {
		fd, err := unix.Open(p.repo+"/vault", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return closing(unix.Openat(fd, "x", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	}},
	{"x5a map a read-only file shared to write", func(p *places) error {
		fd, err := unix.Open(p.out+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Mmap(fd, 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	}},
	{"x5b make a shared mapping writable", func(p *places) error {
		fd, err := unix.Open(p.out+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		mem, err := unix.Mmap(fd, 0, 1, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		defer unix.Munmap(mem)
		return unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE)
	}},
	{"x5c fallocate a read-only file", func(p *places) error {
		fd, err := unix.Open(p.out+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fallocate(fd, 0, 0, 4096)
	}},
	{"x5d FS_IOC_SETFLAGS outside", func(p *places) error {
		fd, err := unix.Open(p.out+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		flags := 0x40 // nodump
		return call(unix.SYS_IOCTL, uintptr(fd), unix.FS_IOC_SETFLAGS, uintptr(unsafe.Pointer(&flags)))
	}},
	{"x5e truncate by O_TRUNC with O_RDONLY", func(p *places) error { return open(p.out+"/file", unix.O_RDONLY|unix.O_TRUNC) }},
	{"x5f chmod by a read descriptor", func(p *places) error {
		return held(p.out+"/file", func(fd int) error { return unix.Fchmod(fd, 0o666) })
	}},
	{"x5g utimes by a read descriptor", func(p *places) error {
		return held(p.out+"/file", func(fd int) error { return call(unix.SYS_UTIMENSAT, uintptr(fd), 0, 0, 0) })
	}},
	{"x5h setxattr by a read descriptor", func(p *places) error {
		return held(p.out+"/file", func(fd int) error { return unix.Fsetxattr(fd, "user.escape", []byte("x"), 0) })
	}},
	{"x5i fchmodat2 outside", func(p *places) error { return call(452, 0, path(p.out+"/file"), 0o666, 0) }},
	{"x5j setxattrat outside", func(p *places) error {
		value := []byte("x")
		args := struct {
			value       uintptr
			size, flags uint32
		}{uintptr(unsafe.Pointer(&value[0])), 1, 0}
		return call(463, 0, path(p.out+"/file"), 0, path("user.escape"), uintptr(unsafe.Pointer(&args)), 16)
	}},
	{"x5k file_setattr outside", func(p *places) error {
		var attr [24]byte
		return call(469, 0, path(p.out+"/file"), uintptr(unsafe.Pointer(&attr)), 24, 0)
	}},
	{"x5l open_tree_attr", func(*places) error { return call(467, ^uintptr(99), path("/"), 1, 0, 0) }},
	{"x7a climb out of the working directory", func(*places) error {
		defer os.Chdir("/")
		for range 100 {
			if err := os.Chdir(".."); err != nil {
				return err
			}
		}
		top, err1 := os.Stat(".")
		root, err2 := os.Stat("/")
		if err1 != nil || err2 != nil || !os.SameFile(top, root) {
			return nil
		}
		return syscall.EXDEV
	}},
	{"x7b a working directory that is not in the view", func(*places) error {
		dir, err := unix.Getwd()
		if err == nil && dir[0] == '/' {
			return syscall.EXDEV
		}
		return nil
	}},
	// The devices and masks of a view are inodes of the host, which may belong to the user. Each
	// is given the mode that it has.
	{"x8a chmod /dev/null", func(*places) error { return sameMode("/dev/null") }},
	{"x8b chown /dev/zero", func(*places) error { return unix.Chown("/dev/zero", unix.Getuid(), -1) }},
	{"x8c utimes /dev/urandom", func(*places) error { return unix.Utimes("/dev/urandom", nil) }},
	{"x8d chmod standard input", func(*places) error { return sameModeFD(0) }},
	{"x8e utimes of standard input", func(*places) error { return notPipe(0, func() error { return call(unix.SYS_UTIMENSAT, 0, 0, 0, 0) }) }},
	{"x8f chmod the mask of a socket", func(p *places) error { return sameMode(p.stream) }},
	{"x8g chmod a mask in /proc", func(*places) error { return sameMode("/proc/keys") }},
	{"x8h chmod /dev/tty", func(*places) error { return sameMode("/dev/tty") }},
	{"x8i unlink /dev/null", func(*places) error { return unix.Unlink("/dev/null") }},
	{"x8j rename /dev/null", func(*places) error { return unix.Rename("/dev/null", "/dev/shm/null") }},
	{"x70a whether a file outside exists", func(p *places) error {
		var st unix.Stat_t
		return unix.Lstat(p.out+"/file", &st)
	}},
	{"x70b where a link leads", func(p *places) error {
		_, err := unix.Readlink(p.repo+"/link", make([]byte, 64))
		return err
	}},
	{"x70c attributes of a file outside", func(p *places) error {
		_, err := unix.Listxattr(p.out+"/file", make([]byte, 64))
		return err
	}},
	// A set-user-ID file gives whoever executes it outside the ids of its owner.
	{"x80a chmod to set-user-ID", func(p *places) error {
		return makeSetID(p, func(name string) error { return unix.Chmod(name, 0o4755) })
	}},
	{"x80b chmod to set-group-ID", func(p *places) error {
		return makeSetID(p, func(name string) error { return unix.Chmod(name, 0o2755) })
	}},
	{"x80c fchmod", func(p *places) error {
		return makeSetID(p, func(name string) error {
			f, err := os.Open(name)
			if err != nil {
				return cause(err)
			}
			defer f.Close()
			return unix.Fchmod(int(f.Fd()), 0o4755)
		})
	}},
	{"x80d fchmodat2", func(p *places) error {
		return makeSetID(p, func(name string) error { return call(452, ^uintptr(99), path(name), 0o6755, 0) })
	}},
	{"x80e open", func(p *places) error {
		return setID(p, "new", func(name string) error { return create4755(name, unix.O_CREAT) })
	}},
	{"x80f open without a name, then link", func(p *places) error {
		return setID(p, "new", func(name string) error {
			fd, err := unix.Open(p.repo, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o4755)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+itoa(fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		})
	}},
	{"x80g mknod", func(p *places) error {
		return setID(p, "new", func(name string) error { return unix.Mknod(name, unix.S_IFREG|0o4755, 0) })
	}},
	{"x80h openat2", func(p *places) error {
		return setID(p, "new", func(name string) error {
			fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o4755})
			return closing(fd, err)
		})
	}},
	{"x80i mkdir", func(p *places) error {
		return setID(p, "new", func(name string) error { return unix.Mkdir(name, 0o2755) })
	}},
	{"x81a a lease on a file of the host", func(*places) error { return lease("/etc/passwd", unix.F_SETLEASE) }},
	{"x81b a delegation of a directory of the host", func(*places) error { return lease("/etc", unix.F_SETDELEG) }},
	{"x82a a snapshot of Btrfs", func(p *places) error { return request(p.repo, 0x50009417) }},
	{"x82b a snapshot of bcachefs", func(p *places) error { return request(p.repo, 0x4020bc10) }},
	{"x82c take the key of an encrypted directory away", func(p *places) error { return request(p.repo, unix.FS_IOC_REMOVE_ENCRYPTION_KEY) }},
	{"x6 the agent's records", func(p *places) error { return list("/dev/shm/execagent-0") }},
}

// reopen opens an object through a descriptor to write.
func reopen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write("/proc/self/fd/" + itoa(fd))
}

// held opens a file to read and does something by its descriptor.
func held(path string, f func(fd int) error) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// sameMode gives an object the mode that it has.
func sameMode(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	return unix.Chmod(path, st.Mode&0o7777)
}

func sameModeFD(fd int) error {
	return notPipe(fd, func() error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		return unix.Fchmod(fd, st.Mode&0o7777)
	})
}

// notPipe returns ESPIPE for the descriptor of a pipe: nobody else sees that.
func notPipe(fd int, f func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFIFO {
		return syscall.ESPIPE
	}
	return f()
}

// setID calls create, which makes a file, and succeeds if that file has the set-user-ID or the
// set-group-ID bit then.
func setID(p *places, name string, create func(name string) error) error {
	name = p.repo + "/" + name
	defer os.Remove(name)
	if err := create(name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 {
		return syscall.EPERM // it has none
	}
	return nil
}

// makeSetID is setID with a file that is there.
func makeSetID(p *places, change func(name string) error) error {
	return setID(p, "program", func(name string) error {
		if err := create(name); err != nil {
			return err
		}
		return change(name)
	})
}

func create4755(name string, flags int) error {
	fd, err := unix.Open(name, flags|unix.O_WRONLY|unix.O_CLOEXEC, 0o4755)
	return closing(fd, err)
}

// lease takes a lease on what can be read, by the command of fcntl(2).
func lease(name string, command int) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), command, unix.F_WRLCK)
	return err
}

// request makes a request to a file system, with an argument that none accepts.
func request(name string, number uintptr) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return call(unix.SYS_IOCTL, uintptr(fd), number, 0)
}
