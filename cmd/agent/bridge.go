// Package bridge passes connections of clients on to an agent elsewhere, message for message.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/execagent/execagent/rpc"
)

// maxConnections bounds the connections that are passed on, including those that are
// still being opened. Without a bound a client could make any number of them while the
// other end does not answer: it would connect, give that up and connect again, and each
// time an attempt would be left behind.
const maxConnections = 128

// bridge opens a connection to the other end for each that it accepts.
type bridge struct {
	// Dial opens a connection to the other end.
	Dial func(ctx context.Context) (rpc.Conn, error)
	// Logger hears of connections that could not be passed on.
	Logger *slog.Logger
}

// Serve passes on each connection that the listener yields, until ctx ends or Accept
// fails. It closes the listener when ctx ends, and returns when all connections have ended;
// nil unless Accept failed for another reason than that the listener is closed.
func (b *bridge) Serve(ctx context.Context, l rpc.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close() // again, to wait until it is closed: its socket is gone then
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
			other, err := b.Dial(ctx)
			if err != nil {
				b.Logger.Warn("a connection could not be passed on", "error", err)
				return
			}
			joinConns(ctx, conn, other)
		})
	}
}

// joinConns passes messages both ways until one of the two ends, or ctx. Then both are closed.
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

// pump passes messages on, in one direction, until reading or writing fails.
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
