package program

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a standard file that is a terminal. nil stands for any other file;
// the methods of a nil terminal do nothing, and only Hide needs one.
type Terminal struct {
	fd    int
	saved *unix.Termios // the mode before Raw, EndAt or Hide; nil: none is in force
	raw   bool          // it is Raw
}

// NewTerminal returns the terminal that the file is, or nil. It does not own the
// file.
func NewTerminal(f *os.File) *Terminal {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil // the file is closed
	}
	var t *Terminal
	// Fd would make the file blocking, also for other processes that share it.
	_ = raw.Control(func(fd uintptr) {
		if _, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			t = &Terminal{fd: int(fd)}
		}
	})
	return t
}

// Size returns the rows and columns; ok is false where they are not known.
func (t *Terminal) Size() (rows, cols uint16, ok bool) {
	if t == nil {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(t.fd, unix.TIOCGWINSZ)
	if err != nil || size.Row == 0 || size.Col == 0 {
		return 0, 0, false
	}
	return size.Row, size.Col, true
}

// Raw makes the terminal pass every byte on unchanged, as cfmakeraw(3) does. Echo,
// line editing and Ctrl-C are left to the terminal of the command at the other
// end.
func (t *Terminal) Raw() error {
	if t == nil {
		return nil
	}
	saved, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return err
	}
	raw := *saved
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag &^= unix.CSIZE | unix.PARENB
	raw.Cflag |= unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	// TCSETSW first waits until output that was written for the old mode is out.
	if err := unix.IoctlSetTermios(t.fd, unix.TCSETSW, &raw); err != nil {
		return err
	}
	t.saved, t.raw = saved, true
	return nil
}

// EndAt has what is typed handed over at each of this control character too, not only at the end
// of a line, until Restore. Everything else stays as it is: the terminal edits lines and echoes.
func (t *Terminal) EndAt(control byte) error {
	if t == nil {
		return nil
	}
	saved, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return err
	}
	ended := *saved
	ended.Cc[unix.VEOL] = control
	if control == ended.Cc[unix.VSTART] || control == ended.Cc[unix.VSTOP] {
		ended.Iflag &^= unix.IXON
	}
	if err := unix.IoctlSetTermios(t.fd, unix.TCSETSW, &ended); err != nil {
		return err
	}
	t.saved = saved
	return nil
}

// Gone tells whether the terminal has been closed at its other end.
func (t *Terminal) Gone() bool {
	if t == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	return err != nil
}

// Hide makes the terminal show nothing of what is typed, until Restore.
func (t *Terminal) Hide() error {
	saved, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return err
	}
	hidden := *saved
	hidden.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(t.fd, unix.TCSETSW, &hidden); err != nil {
		return err
	}
	t.saved = saved
	return nil
}

// IsRaw tells whether raw is in force.
func (t *Terminal) IsRaw() bool { return t != nil && t.raw }

// Restore undoes Raw, EndAt and Hide. It may be called often.
func (t *Terminal) Restore() {
	if t == nil || t.saved == nil {
		return
	}
	// It fails only if the terminal is gone; then there is nothing to restore.
	_ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.saved)
	t.saved, t.raw = nil, false
}

// background is how often a program in the background looks whether it is in the foreground
// again. A shell tells it so only if it was stopped.
const background = 250 * time.Millisecond

// Foreground returns a reader of the file, which is the terminal, that reads only while this
// program is in the foreground of the terminal. To read in the background would stop it
// (SIGTTIN).
func (t *Terminal) Foreground(f *os.File) io.Reader { return &foreground{t, f} }

type foreground struct {
	terminal *Terminal
	file     *os.File
}

func (r *foreground) Read(p []byte) (int, error) {
	for {
		if !r.terminal.inForeground() {
			time.Sleep(background)
			continue
		}
		// A read that waits would be stopped when the program is sent to the background.
		ready := []unix.PollFd{{Fd: int32(r.terminal.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err == unix.EINTR || err == nil && !r.terminal.inForeground() {
			continue
		}
		return r.file.Read(p)
	}
}

// inForeground is true for a terminal that does not control this program, too.
func (t *Terminal) inForeground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// IsShownTerminal tells whether a file is a terminal that a confined command can
// find: the link in /proc/self/fd has a name that leads to the same file. A
// terminal of another devpts, as of the host around a container, has no such name.
func IsShownTerminal(f *os.File) bool {
	if NewTerminal(f) == nil {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return false
	}
	named, err := os.Stat(name)
	return err == nil && os.SameFile(info, named)
}
