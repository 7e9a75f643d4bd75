package program

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a file that is a terminal. nil stands for any other file. The methods of a nil
// terminal do nothing, except Hide, Changed, Keys, AwaitForeground, Await, Ready and InForeground, which
// must not be called on nil. All methods may be called concurrently.
type Terminal struct {
	fd int

	mu    sync.Mutex          // guards the fields below
	saved *unix.Termios       // the mode without our changes; nil: there are none
	set   unix.Termios        // the mode that we have set last
	edit  func(*unix.Termios) // the change of Raw, EndAt or Hide; nil: none of them is in effect
	raw   bool                // Raw is in effect
	keys  bool                // Keys is in effect
}

// NewTerminal returns the terminal that the file is, or nil if the file is no terminal. It does not
// own the file.
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

// Size returns the rows and columns; ok is false if they are unknown.
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

// Mode returns the mode of the terminal without the changes of this program, and nil if it is
// unknown.
func (t *Terminal) Mode() *unix.Termios {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil {
		return new(*t.saved)
	}
	mode, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return nil
	}
	return mode
}

// Raw makes the terminal pass on every byte unchanged, as cfmakeraw(3) does. The terminal of the
// command at the other end then does echo, line editing and Ctrl-C.
func (t *Terminal) Raw() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.changeLocked(func(mode *unix.Termios) {
		mode.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		mode.Oflag &^= unix.OPOST
		mode.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		mode.Cflag &^= unix.CSIZE | unix.PARENB
		mode.Cflag |= unix.CS8
		mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 1, 0
	})
	t.raw = t.raw || err == nil
	return err
}

// changeLocked changes the mode of the terminal, until Restore.
func (t *Terminal) changeLocked(edit func(mode *unix.Termios)) error {
	before := t.edit
	t.edit = edit
	// TCSETSW first waits until the output that was written in the old mode has been sent.
	err := t.applyLocked(unix.TCSETSW)
	if err != nil {
		t.edit = before
	}
	return err
}

// applyLocked sets the mode that is asked for. request is TCSETS or TCSETSW.
func (t *Terminal) applyLocked(request uint) error {
	if t.saved == nil {
		saved, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
		if err != nil {
			return err
		}
		t.saved = saved
	}
	mode := *t.saved
	if t.edit != nil {
		t.edit(&mode)
	}
	if t.keys && !t.raw {
		oneKey(&mode)
	}
	if t.edit == nil && !t.keys {
		t.saved = nil
	}
	err := unix.IoctlSetTermios(t.fd, request, &mode)
	if err == nil {
		t.set = mode
	}
	return err
}

// oneKey makes the mode pass on each key, see [Terminal.Keys]. It keeps none of the settings by
// which another program could turn a key into another one, or into the end of a line.
func oneKey(mode *unix.Termios) {
	mode.Iflag = mode.Iflag&unix.IUTF8 | unix.ICRNL
	mode.Lflag &^= unix.ICANON | unix.ECHO | unix.ECHONL | unix.IEXTEN
	mode.Cc[unix.VINTR], mode.Cc[unix.VQUIT], mode.Cc[unix.VSUSP] = 'C'&0x1f, '\\'&0x1f, 'Z'&0x1f
	mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 1, 0
}

// EndAt makes the terminal pass input on also at this control character, and not only at the end of
// a line, until Restore. The terminal still edits lines and echoes.
func (t *Terminal) EndAt(control byte) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changeLocked(func(mode *unix.Termios) {
		mode.Cc[unix.VEOL] = control
		if control == mode.Cc[unix.VSTART] || control == mode.Cc[unix.VSTOP] {
			mode.Iflag &^= unix.IXON
		}
	})
}

// Gone reports whether the other end of the terminal has been closed.
func (t *Terminal) Gone() bool {
	if t == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	return err != nil
}

// Hide switches echo off, until Restore.
func (t *Terminal) Hide() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changeLocked(func(mode *unix.Termios) { mode.Lflag &^= unix.ECHO })
}

// IsRaw reports whether Raw is in effect.
func (t *Terminal) IsRaw() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.raw
}

// Restore undoes Raw, EndAt and Hide. It may be called more than once.
func (t *Terminal) Restore() {
	if t == nil {
		return
	}
	t.Yield()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saved, t.edit, t.raw = nil, nil, false
}

// Yield sets the mode that the terminal had before this program changed it, until Again. The
// program is about to end, or to stop.
func (t *Terminal) Yield() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil || !t.InForeground() { // in the background a change would stop this program (SIGTTOU)
		return
	}
	// This fails only if the terminal is gone, and then there is nothing to restore.
	_ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.saved)
}

// edits returns what a mode says about editing. Drivers may change the rest of a mode that is set.
func edits(mode *unix.Termios) unix.Termios {
	return unix.Termios{Iflag: mode.Iflag, Oflag: mode.Oflag, Lflag: mode.Lflag, Cc: mode.Cc}
}

// Again sets the mode that Raw, EndAt, Hide and Keys have set, if another program has changed it
// while this one was stopped.
func (t *Terminal) Again() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.againLocked()
}

func (t *Terminal) againLocked() {
	if now := t.otherLocked(); now != nil {
		t.saved = now
		_ = t.applyLocked(unix.TCSETSW) // it fails only if the terminal is gone
	}
}

// otherLocked returns the mode that another program has set since this one has; nil: none has.
func (t *Terminal) otherLocked() *unix.Termios {
	now, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if t.saved == nil || err != nil || edits(now) == edits(&t.set) {
		return nil
	}
	return now
}

// Changed reports whether another program has changed the mode that Raw, EndAt, Hide or Keys has set.
// It sets that mode again, and drops what was typed meanwhile.
func (t *Terminal) Changed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.otherLocked() == nil {
		return false
	}
	_ = unix.IoctlSetTermios(t.fd, unix.TCSETSF, &t.set) // it fails only if the terminal is gone
	return true
}

// Keys makes the terminal pass on each key when it is typed, without echo, until restore is called.
// Keys that send a signal still do so, unless the terminal is Raw.
func (t *Terminal) Keys() (restore func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.againLocked()
	t.keys = true
	if err := t.applyLocked(unix.TCSETS); err != nil {
		t.keys = false
		return nil, err
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.keys = false
		if t.InForeground() { // in the background a change would stop this program (SIGTTOU)
			_ = t.applyLocked(unix.TCSETS) // it fails only if the terminal is gone
		}
	}, nil
}

// Writable reports whether there is a terminal, and it is open for reading and writing.
func (t *Terminal) Writable() bool {
	if t == nil {
		return false
	}
	flags, err := unix.FcntlInt(uintptr(t.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}

// Background is how often a program in the background checks whether it is in the foreground again.
// A shell sends a signal (SIGCONT) only to a program that was stopped.
const Background = 250 * time.Millisecond

// AwaitForeground waits until this program is in the foreground of the terminal.
func (t *Terminal) AwaitForeground(ctx context.Context) error {
	look := time.NewTicker(Background)
	defer look.Stop()
	for !t.InForeground() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Await waits until there is input and this program is in the foreground of the terminal, because a
// read in the background would stop it (SIGTTIN). Another reader may read the input first, see
// Ready.
func (t *Terminal) Await(ctx context.Context) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // there is room for it
		close(woken)
	})
	defer func() {
		if !stop() {
			<-woken
		}
		unix.Close(wake)
	}()
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}, {Fd: int32(t.fd), Events: unix.POLLIN}}
		patience := -1
		if !t.InForeground() {
			fds, patience = fds[:1], int(Background.Milliseconds())
		}
		_, err := unix.Poll(fds, patience)
		switch {
		case err == unix.EINTR, err == nil && (patience > 0 || fds[1].Revents == 0):
		case err != nil:
			return err
		case t.InForeground(): // it was not moved to the background meanwhile
			return nil
		}
	}
	return context.Cause(ctx)
}

// Ready reports whether a read would return at once, with input or because the terminal is gone.
func (t *Terminal) Ready() bool {
	fds := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// InForeground reports whether this program is in the foreground of the terminal. It returns true
// also for a terminal that does not control this program.
func (t *Terminal) InForeground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// IsShownTerminal reports whether a file is a terminal that a confined command can find: the link
// in /proc/self/fd names a path that leads to the same file. A terminal of another devpts, such as
// that of the host around a container, has no such path.
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

// Size returns the size of the first of standard input, output and error that is a terminal.
func (s System) Size() (rows, cols uint16, ok bool) {
	for _, f := range []*os.File{s.Stdin, s.Stdout, s.Stderr} {
		if rows, cols, ok = NewTerminal(f).Size(); ok {
			return rows, cols, true
		}
	}
	return 0, 0, false
}
