package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// terminal is a standard file that is a terminal. Methods of the nil one, which
// stands for another kind of file, do nothing.
type terminal struct {
	fd    int
	saved *unix.Termios // before raw
}

// newTerminal finds out whether a file is a terminal.
func newTerminal(f *os.File) *terminal {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil // closed
	}
	var t *terminal
	// Not Fd, which would make the file blocking for all who share it.
	_ = raw.Control(func(fd uintptr) {
		if _, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			t = &terminal{fd: int(fd)}
		}
	})
	return t
}

// size is rows and columns; ok is false where they are not known.
func (t *terminal) size() (rows, cols uint16, ok bool) {
	if t == nil {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(t.fd, unix.TIOCGWINSZ)
	if err != nil || size.Row == 0 || size.Col == 0 {
		return 0, 0, false
	}
	return size.Row, size.Col, true
}

// raw lets every byte through as it is, which is what cfmakeraw(3) does: the
// terminal of the command at the other end does the rest.
func (t *terminal) raw() error {
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
	// TCSETSW waits for the output under way, which was written for the old mode.
	if err := unix.IoctlSetTermios(t.fd, unix.TCSETSW, &raw); err != nil {
		return err
	}
	t.saved = saved
	return nil
}

// restore undoes raw; more than once is no error.
func (t *terminal) restore() {
	if t == nil || t.saved == nil {
		return
	}
	// An error means that the terminal is gone, and then there is nothing to restore.
	_ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.saved)
	t.saved = nil
}

// isShownTerminal tells whether a file is a terminal that a view of the file
// system can show: one that can be found by its name.
func isShownTerminal(f *os.File) bool {
	if newTerminal(f) == nil {
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
