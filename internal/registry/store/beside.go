package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	besideFile = "nats.sock"
	// maxBeside is the number of connections that may be open at once. Further connections
	// wait until one ends.
	maxBeside = 64
	// maxSocketPath bounds the path in the address of a socket, in bytes. It is a little
	// less than any system allows.
	maxSocketPath = 100
)

// beside lets other processes use the embedded server. The commands of an operator use it
// while a registry runs. Its socket is in the data folder, and only the user of the
// registry may connect to it. A port would be open to every user of the machine, who
// could use up its connections and fill its log.
type beside struct {
	path     string
	listener net.Listener
	server   nats.InProcessConnProvider
	places   chan struct{} // holds an element for each connection
	wg       sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	closed bool
	open   map[net.Conn]struct{}
}

// listenBeside listens in a folder that this process has locked. An existing socket was
// therefore left by a process that has ended, and is removed.
func listenBeside(dir string, server nats.InProcessConnProvider) (*beside, error) {
	b := &beside{path: filepath.Join(dir, besideFile), server: server, places: make(chan struct{}, maxBeside), open: make(map[net.Conn]struct{})}
	if err := os.Remove(b.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		// Linux makes the file with the mode that the socket has now, so the file
		// never has a wider mode. On other systems only the mode of the folder
		// protects the file.
		return raw.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
	}}
	err := withSocketPath(dir, func(path string) (err error) {
		b.listener, err = config.Listen(context.Background(), "unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening in the data folder: %w", err)
	}
	b.listener.(*net.UnixListener).SetUnlinkOnClose(false) // beside.close removes the socket, by its whole path
	b.wg.Go(b.accept)
	return b, nil
}

// withSocketPath calls f with a path of the socket in dir that is short enough for an
// address. If the plain path is too long, f gets a path below /proc/self/fd.
func withSocketPath(dir string, f func(path string) error) error {
	path := filepath.Join(dir, besideFile)
	if len(path) <= maxSocketPath {
		return f(path)
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), besideFile))
	return errors.Join(err, folder.Close())
}

// accept serves connections until close.
func (b *beside) accept() {
	for {
		b.places <- struct{}{}
		conn, err := b.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // for example, because no descriptor is free
			<-b.places
			time.Sleep(busyRetry)
			continue
		}
		if !b.enter(conn) {
			_ = conn.Close() // the connection was not used
			return
		}
		b.wg.Go(func() {
			b.serve(conn)
			<-b.places
		})
	}
}

// enter notes a connection, so that close ends it. It returns false after close.
func (b *beside) enter(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.open[conn] = struct{}{}
	return true
}

// serve passes a connection on to the server until one of them ends it.
func (b *beside) serve(conn net.Conn) {
	defer func() {
		b.mu.Lock()
		delete(b.open, conn)
		b.mu.Unlock()
	}()
	to, err := b.server.InProcessConn()
	if err != nil {
		_ = conn.Close() // the client connects again
		return
	}
	var up sync.WaitGroup
	up.Go(func() { pipe(to, conn) })
	pipe(conn, to)
	up.Wait()
}

// pipe copies until either end is closed, and closes both.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // the error of a connection's end is not needed
	_ = to.Close()
	_ = from.Close()
}

// close ends all connections and waits for them.
func (b *beside) close() error {
	b.mu.Lock()
	b.closed = true
	for conn := range b.open {
		_ = conn.Close() // ends serve for this connection
	}
	b.mu.Unlock()
	err := errors.Join(b.listener.Close(), os.Remove(b.path))
	b.wg.Wait()
	return err
}

// neighbour is the embedded server of the process that has the folder open.
type neighbour struct{ dir string }

// InProcessConn connects to the server through its socket.
func (n neighbour) InProcessConn() (conn net.Conn, err error) {
	err = withSocketPath(n.dir, func(path string) error {
		conn, err = net.Dial("unix", path)
		return err
	})
	return conn, err
}
