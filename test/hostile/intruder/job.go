package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// workers is how many processes a job has; every other one leaves its session.
const workers = 6

// startJob starts the processes of a job, says "ready" once they work, and waits until the last one
// has ended. Its arguments are those of work: the folder, and how many rounds each makes.
func startJob(args []string) error {
	var all []*exec.Cmd
	for i := range workers {
		cmd := exec.Command(os.Args[0], append([]string{"work", strconv.Itoa(i)}, args...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: i%2 == 1}
		if err := cmd.Start(); err != nil {
			return err
		}
		all = append(all, cmd)
	}
	fmt.Println("ready")
	for _, cmd := range all {
		_ = cmd.Wait() // a worker says itself what is wrong
	}
	return nil
}

// work writes: it makes folders and files, renames, links and removes them, as tar, mv and rm do.
// Between that it tries to write where it must not, and says so if it could. Errors of the writing
// that is allowed are none of the job's: its supervisor may be on its way out.
func work(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("which folder, how many rounds? %q", args)
	}
	rounds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	base, own := args[1], args[1]+"/repo/job"+args[0]
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	for i := range rounds {
		_ = unix.Mkdir(own, 0o755)
		for j := range 5 {
			name := fmt.Sprintf("%s/%d-%d", own, i, j)
			_ = os.WriteFile(name, []byte(name), 0o644)
			_ = unix.Chmod(name, 0o600)
			_ = unix.Link(name, name+".link")
			_ = unix.Rename(name, name+".renamed")
		}
		moved := own + ".moved"
		_ = unix.Rename(own, moved)
		_ = os.RemoveAll(moved)
		if n := r.IntN(len(outwards)); outwards[n].try(base) == nil {
			fmt.Printf("ESCAPED: %s\n", outwards[n].name)
		}
	}
	return nil
}

// outwards are writes that must not succeed, in whatever state the supervisor is.
var outwards = []struct {
	name string
	try  func(base string) error
}{
	{"create outside", func(base string) error {
		return opening(base+"/out/new", unix.O_CREAT|unix.O_WRONLY)
	}},
	{"open outside", func(base string) error { return opening(base+"/out/file", unix.O_WRONLY|unix.O_TRUNC) }},
	{"open in .git", func(base string) error { return opening(base+"/repo/.git/HEAD", unix.O_RDWR|unix.O_TRUNC) }},
	{"create a protected name", func(base string) error { return unix.Mkdir(base+"/repo/.codex", 0o755) }},
	{"rename .git", func(base string) error { return unix.Rename(base+"/repo/.git", base+"/repo/moved") }},
	{"rename into .git", func(base string) error { return unix.Rename(base+"/repo/file", base+"/repo/.git/config") }},
	{"remove outside", func(base string) error { return unix.Unlink(base + "/out/file") }},
	{"chmod outside", func(base string) error { return unix.Chmod(base+"/out/file", 0o777) }},
	{"chown outside", func(base string) error { return unix.Lchown(base+"/out/file", unix.Getuid(), unix.Getgid()) }},
	{"utimes outside", func(base string) error { return unix.Utimes(base+"/out/file", nil) }},
	{"truncate outside", func(base string) error { return unix.Truncate(base+"/out/file", 0) }},
	{"setxattr outside", func(base string) error { return unix.Setxattr(base+"/out/file", "user.x", []byte("x"), 0) }},
	{"link outside", func(base string) error { return unix.Link(base+"/repo/file", base+"/out/linked") }},
	{"symlink outside", func(base string) error { return unix.Symlink("x", base+"/out/symlink") }},
	{"mknod outside", func(base string) error { return unix.Mkfifo(base+"/out/fifo", 0o644) }},
	{"a file without a name outside", func(base string) error { return opening(base+"/out", unix.O_TMPFILE|unix.O_RDWR) }},
}

// opening opens a file and closes it again.
func opening(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
	if err == nil {
		_ = unix.Close(fd) // it is open
	}
	return err
}
