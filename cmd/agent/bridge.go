package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/execagent/execagent/rpc"
)

// maxConnections bounds the connections that are passed on, including those that are still being
// opened. Otherwise, if the other server does not answer, a client that connects and disconnects in
// a loop could leave any number of attempts behind.
const maxConnections = 128

// bridge passes connections of clients on to another server, message for message.
type bridge struct {
	dial   func(ctx context.Context) (rpc.Conn, error) // opens a connection to the other server
	logger *slog.Logger
}

// serve passes on each connection that it accepts, each over a new connection, until ctx
// ends or Accept fails. It closes the listener when ctx ends, and waits until all
// connections have ended. It returns nil unless Accept failed while the listener was open.
func (b *bridge) serve(ctx context.Context, l rpc.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close() // again, to wait until it is closed and its socket is removed
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	seats := make(chan struct{}, maxConnections)
	for {
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		running.Go(func() {
			defer func() { <-seats }()
			defer conn.Close()
			other, err := b.dial(ctx)
			if err != nil {
				b.logger.Warn("a connection could not be passed on", "error", err)
				return
			}
			joinConns(ctx, conn, other)
		})
	}
}

// joinConns passes messages both ways until one connection ends, or ctx. Then it closes both.
func joinConns(ctx context.Context, a, b rpc.Conn) {
	both := func() {
		_ = a.Close()
		_ = b.Close()
	}
	stop := context.AfterFunc(ctx, both)
	defer stop()
	var back sync.WaitGroup
	back.Go(func() {
		pump(a, b)
		both()
	})
	pump(b, a)
	both()
	back.Wait()
}

// pump passes messages from one connection to another until reading or writing fails.
func pump(to, from rpc.Conn) {
	for {
		message, err := from.Read()
		if err != nil {
			return
		}
		err = to.Write(message)
		rpc.IntakeOf(from).Recycle(message)
		if err != nil {
			return
		}
	}
}
