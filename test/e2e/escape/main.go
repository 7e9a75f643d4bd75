// Command escape runs inside a sandbox and tries to get out: the list of
// sandbox.md 17 and more. It prints one line of JSON for each attempt and judges
// nothing; the test that starts it knows the expected result of each. Linux
// only.
//
// It tries nothing unless it is confined, because some attempts would harm a
// machine on which they succeed, although each does the least that shows
// success. Variables of the environment, named like the fields of places, say
// where things are. With the argument "outside" it is the target of the
// attempts. With "count" it only uses up process numbers, so that the numbers
// of outside processes mean no process inside. The setting below keeps the
// runtime from opening files of its control group.
//
//go:debug containermaxprocs=0
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt is one try; nil says that it has succeeded.
type attempt struct {
	name string // sandbox.md 17 by number, ours by "x"
	try  func(p *places) error
}

// places are where things are.
type places struct {
	repo, out  string // workspace; a directory outside, of the same user
	stream     string // a listening socket outside, by path
	dgram      string // a datagram socket outside, by path
	abstract   string // a listening socket outside, by abstract name
	tcp        string // a listening port outside
	pts        string // a terminal of the host
	suid       string // this program, set-user-ID root
	secret     string // is in the environment and memory of the agent
	agent, pid int    // of the agent and of another process of the user
	shm        int    // key of a System V segment outside
}

func fromEnv() *places {
	number := func(name string) int {
		n, _ := strconv.Atoi(os.Getenv(name)) // 0 is nobody
		return n
	}
	return &places{
		repo: os.Getenv("ESCAPE_REPO"), out: os.Getenv("ESCAPE_OUT"),
		stream: os.Getenv("ESCAPE_STREAM"), dgram: os.Getenv("ESCAPE_DGRAM"),
		abstract: os.Getenv("ESCAPE_ABSTRACT"), tcp: os.Getenv("ESCAPE_TCP"),
		pts: os.Getenv("ESCAPE_PTS"), suid: os.Getenv("ESCAPE_SUID"), secret: os.Getenv("ESCAPE_SECRET"),
		agent: number("ESCAPE_AGENT"), pid: number("ESCAPE_PID"), shm: number("ESCAPE_SHM"),
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "outside" {
		if err := outside(fromEnv()); err != nil {
			fmt.Fprintln(os.Stderr, "escape: outside:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "count" {
		for range 1000 {
			_ = alone(func() error { return nil })
		}
		return
	}
	if err := confined(); err != nil {
		fmt.Fprintln(os.Stderr, "escape: refusing to run:", err)
		os.Exit(3)
	}
	inherited := openDescriptors() // before we open any
	p := fromEnv()
	attempts := []attempt{{"56 inherited descriptor", func(*places) error { return inherited }}}
	for _, group := range [][]attempt{fileAttempts, linkAttempts, procAttempts, processAttempts, privilegeAttempts, callAttempts, archAttempts, networkAttempts} {
		attempts = append(attempts, group...)
	}
	if len(os.Args) > 1 {
		os.Exit(child(p, os.Args[1:], attempts))
	}
	os.Exit(tryAll(p, attempts))
}

// tryAll makes the attempts and prints what became of each.
func tryAll(p *places, attempts []attempt) int {
	out := json.NewEncoder(os.Stdout)
	for _, a := range attempts {
		if err := out.Encode(result(a.name, a.try(p))); err != nil {
			return 4
		}
	}
	return 0
}

// result is the line that is printed for one attempt.
func result(name string, err error) map[string]any {
	n, rest, _ := strings.Cut(name, " ")
	line := map[string]any{"n": n, "name": rest, "errno": "", "ok": err == nil}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		line["errno"] = unix.ErrnoName(errno)
	} else if err != nil {
		line["errno"] = err.Error()
	}
	return line
}

// child is this program, started once more: to sleep, to tell whether it is privileged, to make
// one attempt that may end it, or those on a socket that is named.
func child(p *places, args []string, attempts []attempt) int {
	switch args[0] {
	case "sleep":
		fmt.Println("ready")
		wait()
	case "privileged":
		if err := privileged(); err != nil {
			return 13
		}
		return 0
	case "daemon":
		return daemon(args[1:])
	case "descriptors":
		return sendDescriptors()
	case "snapshot":
		return snapshot(args[1])
	case "socket":
		p.stream = args[1]
		return tryAll(p, socketAttempts)
	}
	attempts = append(attempts, attempt{"int80", func(*places) error { return narrow() }})
	for _, a := range attempts {
		if len(args) > 1 && a.name == args[1] {
			err := a.try(p)
			if errno, ok := errors.AsType[syscall.Errno](err); ok {
				return 100 + int(errno)%100
			}
			return 0
		}
	}
	return 5
}

// daemon starts three processes that leave its session and group, prints "ready" when they run,
// and waits. Its argument is their mark.
func daemon(args []string) int {
	for range 3 {
		cmd := exec.Command(os.Args[0], append([]string{"sleep"}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if _, err := out.Read(make([]byte, 6)); err != nil {
			return 1
		}
	}
	fmt.Println("ready")
	wait()
	return 0
}

// snapshot takes a snapshot of a subvolume of Btrfs into itself, and prints what became of it:
// the errno, or what the copy shows of vault/secret.
func snapshot(dir string) int {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		// struct btrfs_ioctl_vol_args_v2 of linux/btrfs.h, for BTRFS_IOC_SNAP_CREATE_V2.
		args := struct {
			fd             int64
			transid, flags uint64
			_              [4]uint64
			name           [4040]byte
		}{fd: int64(fd)}
		copy(args.name[:], "snapshot")
		err = call(unix.SYS_IOCTL, uintptr(fd), 0x50009417, uintptr(unsafe.Pointer(&args)))
	}
	secret, _ := os.ReadFile(dir + "/snapshot/vault/secret")
	fmt.Printf("%v %s", err, secret)
	return 0
}

// sendDescriptors sends itself as many descriptors as the kernel lets it without receiving any,
// and prints how many.
func sendDescriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1
	}
	many := make([]int, 250)
	sent := 0
	for sent < 1<<17 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			break
		}
		for err == nil {
			if err = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(many...), nil, 0); err == nil {
				sent += len(many)
			}
		}
		if err != unix.EAGAIN {
			break // there are too many
		}
	}
	fmt.Println("ready", sent)
	wait()
	return 0
}

// wait waits until somebody kills us.
func wait() {
	for {
		time.Sleep(time.Hour)
	}
}

// confined returns why this process is not confined, as far as it can see that itself. There need
// not be a /proc.
func confined() error {
	for _, want := range []struct {
		name          string
		option, value int
	}{
		{"no_new_privs", unix.PR_GET_NO_NEW_PRIVS, 1},
		{"seccomp mode", unix.PR_GET_SECCOMP, unix.SECCOMP_MODE_FILTER},
	} {
		got, err := unix.PrctlRetInt(want.option, 0, 0, 0, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", want.name, err)
		}
		if got != want.value {
			return fmt.Errorf("%s: %d", want.name, got)
		}
	}
	return nil
}

// openDescriptors returns nil if this program has inherited more than the first three
// descriptors.
func openDescriptors() error {
	for fd := 3; fd < 1024; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if name != "anon_inode:[eventpoll]" && name != "anon_inode:[eventfd]" { // of our runtime
			return nil
		}
	}
	return syscall.EBADF
}

// privileged returns nil if this process may do more than its user.
func privileged() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return err
	}
	if unix.Getuid() != unix.Geteuid() || caps[0].Effective != 0 || caps[1].Effective != 0 {
		return nil
	}
	return syscall.EPERM
}

// run starts this program again for something that may end it, and returns the
// errno of it, or the signal.
func run(path string, args ...string) error {
	cmd := exec.Command(path, args...)
	err := cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
		return errors.New(unix.SignalName(status.Signal()))
	}
	switch code := exit.ExitCode(); {
	case code == 13:
		return syscall.EPERM
	case code > 100:
		return syscall.Errno(code - 100)
	}
	return err
}

// alone runs f on a thread that ends with it, for what a thread cannot undo.
func alone(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// call makes a system call.
func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// closing closes a descriptor that an attempt should not have got, and returns err.
func closing(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}
