package judge

import (
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/refusals"
)

const (
	// maxTold is how many different refusals are told on the standard error of a command.
	maxTold = 16
	// maxLine bounds each of the two texts of a line, in bytes, so that a pipe takes it as a whole.
	maxLine = 1 << 10
	// roomWithin is how long a line waits for room, in milliseconds: a full pipe delays a refusal so long.
	roomWithin = 100
	// toldWithin bounds the wait for the write. If others have taken the room meanwhile, the write and its
	// descriptor last until the pipe is read.
	toldWithin = 10 * time.Second
)

// stderr is the standard error that a command was started with. Judge.mu guards told.
type stderr struct {
	known bool
	given unix.Stat_t
	told  []string
}

// TellOn makes the judge say on the standard error of the command which programs it refuses, and why:
// nobody else tells the command's user, and EPERM says nothing. It is called before the command
// runs, while descriptor 2 of this process is the command's.
func (j *Judge) TellOn() error {
	err := unix.Fstat(2, &j.stderr.given)
	j.stderr.known = err == nil
	return err
}

// tellRefused writes why a program was refused, once for each file and reason. It writes to no other file
// than the one that the command was started with, which the program, or the command itself, must
// still have.
func (j *Judge) tellRefused(p *Exec, why string) {
	line := "rules: refused " + refusals.Text(p.Called, maxLine) + ": " + refusals.Text(why, maxLine) + "\n"
	key := p.Real[0] + "\x00" + why // a shell tries each folder of its PATH
	j.mu.Lock()
	leader := j.leader
	tell := j.stderr.known && len(j.stderr.told) < maxTold && !slices.Contains(j.stderr.told, key)
	if tell {
		j.stderr.told = append(j.stderr.told, key)
		if len(j.stderr.told) == maxTold {
			line += "rules: further refusals are not told\n"
		}
	}
	j.mu.Unlock()
	if !tell {
		return
	}
	fd := j.stderr.find(p.PID, leader)
	if fd < 0 {
		return
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, roomWithin); n == 0 && err == nil {
		unix.Close(fd)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fd)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// A terminal with TOSTOP stops a process in the background that writes and does not block this.
		var old, blocked unix.Sigset_t
		blocked.Val[0] = 1 << (unix.SIGTTOU - 1)
		if unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &old) == nil {
			_, _ = unix.Write(fd, []byte(line)) // who has closed the other end reads nothing
			_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
		}
	}()
	select {
	case <-done:
	case <-time.After(toldWithin):
	}
}

// ErrorFDs are the descriptors at which the processes of a command may have its standard error. While a
// shell redirects a program that it starts, it keeps its own at a number from 10 on.
var ErrorFDs = [...]int{2, 10, 11, 12}

// find returns a descriptor for the command's standard error, which the process or the leader has; else
// -1.
func (s *stderr) find(pid, leader int) int {
	if fd := linux.DuplicateOutput(pid, &s.given, 2); fd >= 0 {
		return fd
	}
	return linux.DuplicateOutput(leader, &s.given, ErrorFDs[:]...)
}
