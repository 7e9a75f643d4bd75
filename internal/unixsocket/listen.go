package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long another program may lock the folder of the socket. Our programs lock it
// for less than a millisecond.
const lockPatience = 5 * time.Second

// Modes of a socket: connecting needs the right to write.
const (
	ownerOnly fs.FileMode = 0o600
	everybody fs.FileMode = 0o666
)

// Listener is a socket with a path.
type Listener struct {
	*net.UnixListener
	path  string
	file  os.FileInfo // of the socket
	close func() error
}

// Listen makes a socket at path and listens there. Only this user and root can connect to it; with
// open everybody can, and the caller of Accept must check [Peer].
//
// A stale socket of this user at the path, such as one that a crash has left, is removed. Anything
// else at the path is an error, and so is a folder in which others could replace the socket. The
// caller closes the Listener, which removes the socket.
func Listen(path string, open bool) (*Listener, error) {
	dir, err := lock(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() // ends the lock: no other program looks for a stale socket before this one answers
	if err := vacate(path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: narrow}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	l := &Listener{UnixListener: listener.(*net.UnixListener), path: path}
	l.SetUnlinkOnClose(false) // it would remove any file at the path
	mode := ownerOnly
	if open {
		mode = everybody
	}
	if err = os.Chmod(path, mode); err == nil { // independent of the umask
		l.file, err = os.Lstat(path)
	}
	if err != nil {
		return nil, errors.Join(err, l.UnixListener.Close())
	}
	l.close = sync.OnceValue(l.remove)
	return l, nil
}

// narrow gives a socket without a name the mode of its future file, so that others can never
// connect.
func narrow(_, _ string, socket syscall.RawConn) error {
	var chmodErr error
	err := socket.Control(func(fd uintptr) {
		chmodErr = os.NewSyscallError("fchmod", unix.Fchmod(int(fd), uint32(ownerOnly)))
	})
	return errors.Join(err, chmodErr)
}

// Close removes the socket, unless another one has replaced it, and stops listening. It may be
// called more than once.
func (l *Listener) Close() error { return l.close() }

func (l *Listener) remove() error {
	// It listens until after the removal, so no other program takes it for a stale socket. And as
	// long as it is open, no other file can have its inode number.
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, l.UnixListener.Close())
		}
	}
	return l.UnixListener.Close()
}

// lock opens a folder, checks that only this user and root can replace its entries, and locks it
// against other programs that look for a stale socket there.
func lock(name string) (*os.File, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the folder of the socket: %w", err)
	}
	info, err := dir.Stat()
	if err == nil {
		err = private(name, info)
	}
	if err == nil {
		err = flock(dir)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

func private(name string, info os.FileInfo) error {
	const groupOrOthers = 0o022
	switch uid := owner(info); {
	case !info.IsDir():
		return fmt.Errorf("the folder of the socket: %s is not a folder", name)
	case uid != 0 && int(uid) != os.Geteuid():
		return fmt.Errorf("the folder of the socket, %s, belongs to uid %d, who could replace the socket", name, uid)
	case info.Mode()&groupOrOthers != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("others can write the folder of the socket, %s, and could replace the socket: run chmod go-w %s, or choose another folder", name, name)
	}
	return nil
}

// flock waits for the lock of a folder. It polls, because a call that waits in the kernel could not
// be abandoned.
func flock(dir *os.File) error {
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Since(begun) > lockPatience:
			return fmt.Errorf("locking the folder of the socket, %s: %w", dir.Name(), os.NewSyscallError("flock", err))
		}
	}
}

// vacate removes a stale socket of this user.
func vacate(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch uid := owner(info); {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link", path)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s already exists and is not a socket", path)
	case int(uid) != os.Geteuid():
		return fmt.Errorf("%s already exists and belongs to uid %d", path, uid)
	}
	conn, err := net.DialTimeout("unix", path, lockPatience)
	switch {
	case err == nil:
		_ = conn.Close() // nothing was said on it
		return fmt.Errorf("another program already listens at %s", path)
	case errors.Is(err, unix.ECONNREFUSED):
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("another program already listens at %s, and is busy", path)
	}
	return fmt.Errorf("checking whether another program listens: %w", err)
}
