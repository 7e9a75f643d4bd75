package client

import (
	"context"

	"github.com/execagent/execagent/rpc"
)

// Accept is Connect for a program that cannot dial: the server connects to it. When
// the connection is lost, the client waits for a new one from [Client.Replace].
// Dial, Final and ConnectTimeout of cfg are not used. If the error is not nil, conn
// is closed.
func Accept(ctx context.Context, conn rpc.Conn, cfg Config) (*Client, error) {
	waiting := make(chan rpc.Conn, 1)
	waiting <- conn
	cfg.ConnectTimeout = cfg.RecoveryTimeout // the handshake may take as long as the recovery
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

// Replace gives the client a new connection of the same server, on which the session
// goes on. The client gives up a connection that it still has. The client owns conn
// from now on, even after an error. The error is [ErrReplacing] while the client is
// still resuming on an earlier connection, or the reason why the client has failed.
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
		_ = conn.Close() // the caller's error says more
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
