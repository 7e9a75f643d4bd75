package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A race changes something between what may be touched and what may not, as fast as it can, while
// other threads make calls with it.
type race struct {
	path []byte // what the calls take for a path, in a mapping of its own
	dir  int    // what they take for a directory
	fd   int    // what some take for a file
	flip func(turn int)
}

// Descriptors that a race changes.
const (
	racedDir  = 40
	racedFile = 41
)

// races are the kinds, by name.
var races = map[string]func(base string) (*race, error){
	"path": func(base string) (*race, error) {
		return rewriting(base+"/repo/file", base+"/out/file", base+"/repo/vault/x", base+"/repo/.git/HEAD", base+"/repo/new", base+"/out/new")
	},
	"punched": func(base string) (*race, error) {
		r, err := rewriting(base+"/repo/file", base+"/out/file")
		if err != nil {
			return nil, err
		}
		rewrite := r.flip
		r.flip = func(turn int) {
			switch turn % 4 {
			case 0:
				_ = unix.Madvise(r.path, unix.MADV_DONTNEED) // it may be unreadable just now
			case 1:
				_ = unix.Mprotect(r.path, unix.PROT_NONE) // nothing else maps it
			default:
				_ = unix.Mprotect(r.path, unix.PROT_READ|unix.PROT_WRITE) // as above
				rewrite(turn)
			}
		}
		return r, nil
	},
	"directory and link": func(base string) (*race, error) {
		return exchanging(base, "swap/file", "../out", "vault")
	},
	"parent and link": func(base string) (*race, error) {
		return exchanging(base, "swap/HEAD", ".git", "../out/dir")
	},
	"moved parent": func(base string) (*race, error) {
		from, to := base+"/repo/dir/sub", base+"/repo/a/b/sub"
		r, err := rewriting(from+"/../../out/file", from+"/../x/../../.git/HEAD", to+"/../../../.git/HEAD")
		if err != nil {
			return nil, err
		}
		rewrite := r.flip
		r.flip = func(turn int) {
			rewrite(turn)
			_ = unix.Rename(from, to) // it may be there already
			_ = unix.Rename(to, from)
		}
		return r, nil
	},
	"working directory": func(base string) (*race, error) {
		r, err := rewriting("file")
		if err != nil {
			return nil, err
		}
		r.dir = unix.AT_FDCWD
		places := []string{base + "/repo", base + "/out", base + "/repo/dir", base + "/repo/.git"}
		r.flip = func(turn int) { _ = unix.Chdir(places[turn%len(places)]) } // a deny may refuse it
		return r, nil
	},
	"descriptor": func(base string) (*race, error) {
		r, err := rewriting("file")
		if err != nil {
			return nil, err
		}
		var dirs, files []int
		for _, place := range []string{"/repo", "/out", "/repo/dir", "/repo/.git", "/repo/vault"} {
			if fd, err := unix.Open(base+place, unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
				dirs = append(dirs, fd)
			}
		}
		for _, place := range []string{"/repo/file", "/out/file", "/repo/.git/HEAD"} {
			fd, err := unix.Open(base+place, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			files = append(files, fd)
		}
		r.dir, r.fd = racedDir, racedFile
		r.flip = func(turn int) {
			if turn%7 == 0 {
				_ = unix.Close(racedDir) // it need not be open
			}
			_ = unix.Dup3(dirs[turn%len(dirs)], racedDir, unix.O_CLOEXEC) // both are open
			_ = unix.Dup3(files[turn%len(files)], racedFile, unix.O_CLOEXEC)
		}
		return r, nil
	},
}

// rewriting is a race whose path is rewritten in turn.
func rewriting(paths ...string) (*race, error) {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	copy(page, paths[0])
	return &race{path: page, dir: unix.AT_FDCWD, fd: -1, flip: func(turn int) { copy(page, paths[turn%len(paths)]+"\x00") }}, nil
}

// exchanging is a race in which "swap", a directory, is exchanged with a link.
func exchanging(base, path string, targets ...string) (*race, error) {
	r, err := rewriting(base + "/repo/" + path)
	if err != nil {
		return nil, err
	}
	swap := base + "/repo/swap"
	if err := unix.Mkdir(swap, 0o755); err != nil {
		return nil, err
	}
	for i, target := range targets {
		if err := unix.Symlink(target, swap+strconv.Itoa(i)); err != nil {
			return nil, err
		}
	}
	r.flip = func(turn int) {
		_ = unix.Renameat2(unix.AT_FDCWD, swap, unix.AT_FDCWD, swap+strconv.Itoa(turn/2%len(targets)), unix.RENAME_EXCHANGE)
	}
	return r, nil
}

// attempts are the calls that a race makes. Those that succeed must have had what may be touched.
var attempts = []func(r *race){
	func(r *race) {
		if fd, err := r.call(unix.SYS_OPENAT, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644); err == 0 {
			_, _ = unix.Write(fd, []byte("written"))
			_ = unix.Close(fd) // unless it was raced
		}
	},
	func(r *race) {
		if fd, err := r.call(unix.SYS_OPENAT, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == 0 {
			b := make([]byte, 100)
			n, _ := unix.Read(fd, b)
			if bytes.Contains(b[:max(n, 0)], []byte("this is repo/vault")) {
				fmt.Println("SECRET")
			}
			_ = unix.Close(fd) // as above
		}
	},
	func(r *race) { r.call(unix.SYS_UNLINKAT, 0, 0) },
	func(r *race) { r.call(unix.SYS_MKDIRAT, 0o755, 0) },
	func(r *race) { r.call(unix.SYS_FCHMODAT, 0o640, 0) },
	func(r *race) { r.call(unix.SYS_UTIMENSAT, 0, 0) },
	func(r *race) { r.call(unix.SYS_MKNODAT, unix.S_IFREG|0o644, 0) },
	func(r *race) { r.call(unix.SYS_RENAMEAT2, uintptr(r.dir), uintptr(unsafe.Pointer(&r.path[0]))) },
	func(r *race) {
		unix.Syscall6(unix.SYS_LINKAT, uintptr(r.dir), r.start(), uintptr(r.dir), r.start(), unix.AT_SYMLINK_FOLLOW, 0)
	},
	func(r *race) { unix.Syscall(unix.SYS_TRUNCATE, r.start(), 3, 0) },
	func(r *race) {
		_ = unix.Fchmod(r.fd, 0o604) // it may be one or the other
		_ = unix.Fchown(r.fd, unix.Getuid(), unix.Getgid())
		_ = unix.Fsetxattr(r.fd, "user.raced", []byte("x"), 0)
	},
}

func (r *race) start() uintptr { return uintptr(unsafe.Pointer(&r.path[0])) }

// call makes a call on the raced path.
func (r *race) call(number, a, b uintptr) (fd int, errno unix.Errno) {
	n, _, errno := unix.Syscall6(number, uintptr(r.dir), r.start(), a, b, 0, 0)
	return int(n), errno
}

// startRace runs a race. Its arguments are the kind, the folder, and for how long, in milliseconds.
func startRace(args []string) error {
	if len(args) != 3 || races[args[0]] == nil {
		return fmt.Errorf("which race, which folder, for how long? %q", args)
	}
	ms, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	r, err := races[args[0]](args[1])
	if err != nil {
		return err
	}
	var stop atomic.Bool
	var made, turns atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		runtime.LockOSThread()
		for turn := 0; !stop.Load(); turn++ {
			r.flip(turn)
			turns.Add(1)
		}
	})
	for range 3 {
		all.Go(func() {
			runtime.LockOSThread()
			for !stop.Load() {
				attempts[rand.IntN(len(attempts))](r)
				made.Add(1)
			}
		})
	}
	time.Sleep(time.Duration(ms) * time.Millisecond)
	stop.Store(true)
	all.Wait()
	fmt.Printf("%d calls, %d changes\n", made.Load(), turns.Load())
	return nil
}

// startDeaths starts processes that race, and kills each in the middle of its calls. Its arguments
// are those of startRace, without the kind.
func startDeaths(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("which folder, for how long? %q", args)
	}
	ms, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	deaths := 0
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); deaths++ {
		cmd := exec.Command(os.Args[0], "race", "path", args[0], "10000")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return err
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	fmt.Printf("%d deaths\n", deaths)
	return nil
}
