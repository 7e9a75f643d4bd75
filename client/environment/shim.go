package environment

import (
	"context"
	"errors"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// This file stands for what package client does not have yet. Each function becomes the
// one expression that its comment names, and the file goes.

// single says that the transport of cfg reaches its server only once: cfg.Single = true.
func single(*client.Config) {}

// failed tells whether c has ended for good: state, _ := c.State(); state == client.Failed.
func failed(c *client.Client) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// failure tells why c has ended: c.Err().
func failure(c *client.Client) error {
	_, err := c.Status(context.Background()) // answered here: there is no connection
	return err
}

// retryable tells whether another attempt may succeed: client.Retryable(err).
func retryable(err error) bool {
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		return refused.Err.Code == protocol.CodeSessionAttached
	}
	if _, ok := errors.AsType[*client.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*client.InitializeTimeoutError](err); ok {
		return true
	}
	_, ok := errors.AsType[*client.DisconnectedError](err)
	return ok
}
