package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The first byte of a connection says what the server does with it.
const (
	echo   = 'e' // send back what comes
	source = 's' // send volume bytes
)

// volume is how many bytes a source sends.
const volume = 1 << 30

// server is what the command connects to.
type server struct {
	listener net.Listener
	open     atomic.Int64
	serving  sync.WaitGroup
}

func serve() (*server, error) {
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return nil, err
	}
	s := &server{listener: listener}
	s.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Millisecond) // no descriptor is left, for a moment
				continue
			}
			s.open.Add(1)
			s.serving.Go(func() {
				defer s.open.Add(-1)
				defer conn.Close()
				answer(conn)
			})
		}
	})
	return s, nil
}

func answer(conn net.Conn) {
	b := make([]byte, 256<<10)
	if _, err := io.ReadFull(conn, b[:1]); err != nil {
		return
	}
	if b[0] == echo {
		_, _ = io.Copy(conn, conn) // the client sees an error
		return
	}
	for sent := 0; sent < volume; sent += len(b) {
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}

func (s *server) port() string {
	_, port, _ := net.SplitHostPort(s.listener.Addr().String()) // it has the form that this needs
	return port
}

// idle waits until no connection is open any more.
func (s *server) idle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for s.open.Load() > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d connections are left: %w", s.open.Load(), ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (s *server) close() {
	_ = s.listener.Close()
	s.serving.Wait()
}
