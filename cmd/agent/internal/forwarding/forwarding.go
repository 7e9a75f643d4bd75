package forwarding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/execagent/execagent/client"
)

// maxConnections is how many connections are forwarded at once. Others wait in the
// kernel's queue.
const maxConnections = 200

// Forwarder forwards the connections that it accepts.
type Forwarder struct {
	Client *client.Client
	// Say tells the user about a problem.
	Say func(string)

	routes []route
}

type route struct {
	listener net.Listener
	remote   string
}

// Listen starts to listen. The caller calls Close.
func (f *Forwarder) Listen(ctx context.Context, s Spec) (net.Addr, error) {
	if s.Network == "unix" {
		// Nobody but this user may connect, from the first moment on.
		defer syscall.Umask(syscall.Umask(0o177))
	}
	network := s.Network
	if address, err := netip.ParseAddrPort(s.Local); err == nil && address.Addr().Is4() {
		network = "tcp4" // for tcp, 0.0.0.0 would include all addresses of IPv6
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, s.Local)
	if err != nil {
		return nil, err
	}
	f.routes = append(f.routes, route{l, s.Remote})
	return l.Addr(), nil
}

// Close closes the listeners.
func (f *Forwarder) Close() {
	for _, r := range f.routes {
		_ = r.listener.Close() // it may be closed already
	}
}

// Serve forwards until ctx ends, and waits for all its goroutines. The error says why it cannot go
// on.
func (f *Forwarder) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, f.Close)
	seats := make(chan struct{}, maxConnections)
	var running sync.WaitGroup
	for _, r := range f.routes {
		running.Go(func() { cancel(f.accept(ctx, r, seats)) })
	}
	running.Go(func() {
		select {
		case <-f.Client.Done():
			cancel(f.Client.Err())
		case <-ctx.Done():
		}
	})
	<-ctx.Done()
	stop()
	f.Close()
	running.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// accept forwards the connections of one listener.
func (f *Forwarder) accept(ctx context.Context, r route, seats chan struct{}) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := r.listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		running.Go(func() {
			defer func() { <-seats }()
			f.forward(ctx, conn, r)
		})
	}
}

// forward forwards one connection.
func (f *Forwarder) forward(ctx context.Context, conn net.Conn, r route) {
	remote, err := f.Client.DialSocket(ctx, r.remote, nil)
	if err != nil {
		reset(conn)
		if ctx.Err() == nil {
			f.Say(fmt.Sprintf("%s -> %s: %s", r.listener.Addr(), Name(r.remote), reason(err)))
		}
		return
	}
	err = join(ctx, conn, remote)
	if err == nil {
		_ = conn.Close() // both directions are over
		return
	}
	if failed, ok := errors.AsType[*client.SocketError](err); ok {
		f.Say(fmt.Sprintf("%s -> %s: %s", r.listener.Addr(), Name(r.remote), failed.Text))
	}
}

// halfCloser is a connection that can be closed in one direction.
type halfCloser interface{ CloseWrite() error }

// reset closes a connection so that the peer sees an error.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// join copies in both directions until both have ended, or one has failed, or ctx ends. Then it
// closes the socket. If it fails, it resets both connections, because the programs at their ends
// must not take a part for the whole.
func join(ctx context.Context, conn net.Conn, remote *client.Socket) (err error) {
	var first sync.Once
	fail := func(reason error) {
		first.Do(func() {
			err = reason
			reset(conn)
			_ = remote.Abort()
		})
	}
	stop := context.AfterFunc(ctx, func() { fail(context.Cause(ctx)) })
	var up sync.WaitGroup
	up.Go(func() {
		if err := copyUp(remote, conn); err != nil {
			fail(err)
		}
	})
	if _, err := remote.WriteTo(conn); err != nil {
		fail(err)
	} else if err := conn.(halfCloser).CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
		fail(err)
	}
	up.Wait()
	stop()
	first.Do(func() { _ = remote.Close() })
	return err
}

// copyUp sends everything from a reader, and then the end of the stream.
func copyUp(remote *client.Socket, from io.Reader) error {
	buf := make([]byte, 64<<10)
	if _, err := io.CopyBuffer(remote, struct{ io.Reader }{from}, buf); err != nil {
		return err
	}
	return remote.CloseWrite()
}

// Name returns an address in the form that people read.
func Name(remote string) string {
	return strings.TrimPrefix(strings.TrimPrefix(remote, "tcp://"), "unix://")
}

// reason says in short why connecting to an address failed.
func reason(err error) string {
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		return refused.Err.Message
	}
	return err.Error()
}

// Standard joins standard input and output with one address, until the other end has closed its
// side.
func Standard(ctx context.Context, c *client.Client, remote string, stdin, stdout *os.File) error {
	socket, err := c.DialSocket(ctx, remote, nil)
	if err != nil {
		return fmt.Errorf("%s: %s", Name(remote), reason(err))
	}
	up, down := make(chan error, 1), make(chan error, 1)
	go func() {
		// It may never return, because reading a terminal cannot be interrupted. The program is
		// about to end then.
		up <- copyUp(socket, stdin)
	}()
	go func() {
		_, err := socket.WriteTo(stdout)
		down <- err
	}()
	var given <-chan error = up
	for ended := false; ; {
		select {
		case err = <-given:
			if given, ended = nil, err == nil; ended {
				continue
			}
		case err = <-down:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil || !ended {
			return errors.Join(err, socket.Abort())
		}
		return socket.Close()
	}
}
