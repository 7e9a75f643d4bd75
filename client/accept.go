package client

import (
	"context"

	"github.com/execagent/execagent/rpc"
)

// Accept is Connect for a program that cannot dial: the server connects to it. When
// the connection is lost, the client waits for another one, which the program hands
// over with [Client.Replace]. Dial, Final and ConnectTimeout of cfg are not used. If
// the error is not nil, conn is closed.
func Accept(ctx context.Context, conn rpc.Conn, cfg Config) (*Client, error) {
	waiting := make(chan rpc.Conn, 1)
	waiting <- conn
	cfg.ConnectTimeout = cfg.RecoveryTimeout // it may take as long as the recovery
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultRecoveryTimeout
	}
	cfg.Final = nil
	cfg.Dial = func(ctx context.Context) (rpc.Conn, error) {
		select {
		case conn := <-waiting:
			return conn, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c := newClient(cfg)
	c.replacement = waiting
	return connect(ctx, c)
}

// Replace hands over a new connection of the same server, for the session to go on
// there. A connection that the client still has is given up. The client owns conn from
// now on, also when there is an error: [ErrReplacing] while it is still taking up an
// earlier one, or why it has failed.
func (c *Client) Replace(conn rpc.Conn) error {
	c.mu.Lock()
	var err error
	switch {
	case c.state == Failed:
		err = c.failure
	case c.replacement == nil:
		err = protocolErrorf("the client dials its connections itself")
	case c.replacing:
		err = ErrReplacing
	}
	if err != nil {
		c.mu.Unlock()
		_ = conn.Close() // the error of the caller says more
		return err
	}
	c.replacing = true
	c.replacement <- conn // there is room: nothing was handed over since the last was installed
	if c.state == Connected {
		c.current.stop(ErrReplaced)
		c.recoverLocked(c.current)
	}
	c.mu.Unlock()
	return nil
}
