package files

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a child of the agent. kill may be called at any time. wait must be called once,
// by one goroutine.
type process struct {
	pid    int
	pidfd  *os.File
	raw    syscall.RawConn // of pidfd
	reaped func(pid int)   // Config.Reaped
}

// newProcess takes over a child and its pidfd.
func newProcess(pid, pidfd int, reaped func(int)) (*process, error) {
	p := &process{pid: pid, reaped: reaped}
	var err error
	// A descriptor in the poller needs no thread that waits.
	if p.pidfd, err = pollable(pidfd, "pidfd"); err == nil {
		p.raw, err = p.pidfd.SyscallConn()
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // the pid is still the child's, because it is not reaped yet
		return nil, errors.Join(err, p.reap())
	}
	return p, nil
}

// kill kills the process, if it still runs.
func (p *process) kill() {
	// The descriptor is closed once the process is reaped. Until then it refers to this
	// process.
	_ = p.raw.Control(func(pidfd uintptr) {
		_ = unix.PidfdSendSignal(int(pidfd), unix.SIGKILL, nil, 0)
	})
}

// wait reaps the process and returns how it ended.
func (p *process) wait() error {
	err := p.raw.Read(func(uintptr) bool {
		var info unix.Siginfo
		for {
			err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
			if err != unix.EINTR {
				// Signo is zero while the child runs; waitid(2).
				return err != nil || info.Signo != 0
			}
		}
	})
	if err != nil { // the pidfd cannot be polled, so a thread waits
		for unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}
	ended := p.reap()
	_ = p.pidfd.Close()
	return ended
}

// reap takes the exit status.
func (p *process) reap() error {
	defer p.reaped(p.pid)
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(p.pid, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case status.Signaled():
			return fmt.Errorf("signal %d (%v)", int(status.Signal()), status.Signal())
		default:
			return fmt.Errorf("exit status %d", status.ExitStatus())
		}
	}
}

// pollable returns a file in the poller for fd. It takes ownership of fd, also on error.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Bounds of the lines that one helper writes to the log: the bytes of a line, the lines
// at once, and the time after which one more line is granted.
const (
	maxLogLine  = 1 << 10
	maxLogLines = 50
	logInterval = time.Second
)

// logLines logs the lines that a helper writes to r until the helper ends, and closes r. It
// cuts longer lines, and drops and counts the lines beyond the bounds.
func logLines(r *os.File, log *slog.Logger) {
	defer r.Close()
	lines := bufio.NewReaderSize(r, maxLogLine)
	granted, last, dropped := maxLogLines, time.Now(), 0
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			break
		}
		text := string(line)
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
		if n := int(time.Since(last) / logInterval); n > 0 {
			granted, last = min(granted+n, maxLogLines), time.Now()
		}
		if granted == 0 {
			dropped++
			continue
		}
		granted--
		log.Warn("fs helper said", "line", text)
	}
	if dropped > 0 {
		log.Warn("fs helper said more than is logged", "lines", dropped)
	}
	_, _ = io.Copy(io.Discard, lines)
}
