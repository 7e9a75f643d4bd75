package judge

import (
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

const (
	// maxTold is how many different refusals are told on the standard error of a command.
	maxTold = 16
	// maxLine bounds each of the two texts of a line, in bytes, so that a pipe takes it as a whole.
	maxLine = 1 << 10
	// tellWithin bounds how long a reader of the standard error that does not read delays a refusal.
	tellWithin = 100 * time.Millisecond
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

// explain writes why a program was refused, each line once. It writes to no other file than the
// one that the command was started with, which the program, or the command itself, must still have.
func (j *Judge) explain(p *Exec, why string) {
	line := "rules: refused " + printable(p.called()) + ": " + printable(why) + "\n"
	j.mu.Lock()
	leader := j.leader
	tell := j.stderr.known && len(j.stderr.told) < maxTold && !slices.Contains(j.stderr.told, line)
	if tell {
		j.stderr.told = append(j.stderr.told, line)
		if len(j.stderr.told) == maxTold {
			line += "rules: further refusals are not told\n"
		}
	}
	j.mu.Unlock()
	if !tell {
		return
	}
	fd := j.stderr.of(p.PID)
	if fd < 0 && leader > 0 {
		fd = j.stderr.of(leader)
	}
	if fd < 0 {
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
	case <-time.After(tellWithin):
	}
}

// of returns a descriptor for the standard error of a process, if it is the command's; else -1.
func (s *stderr) of(pid int) int {
	fd, err := linux.DuplicateFD(pid, 2)
	if err != nil {
		return -1
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Dev != s.given.Dev || st.Ino != s.given.Ino {
		unix.Close(fd)
		return -1
	}
	return fd
}

// printable returns a text without characters that move a cursor or begin a line.
func printable(text string) string {
	if len(text) > maxLine {
		text = text[:maxLine] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
