package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/test/rig"
)

// TestPlainly: a lost agent is told in one sentence.
func TestPlainly(t *testing.T) {
	t.Parallel()
	chain := func(err error) error {
		return fmt.Errorf("recovery timed out after 45s: %w", &client.ConnectError{Err: fmt.Errorf("dialing wss://host/: %w", err)})
	}
	for _, tt := range []struct {
		err  client.DisconnectedError
		want string
	}{
		{client.DisconnectedError{}, "the connection to the agent is lost"},
		{client.DisconnectedError{Err: fmt.Errorf("reading: %w", io.ErrUnexpectedEOF)}, "the connection to the agent is lost: unexpected EOF"},
		{client.DisconnectedError{Resume: chain(errors.New("no answer"))}, "the connection to the agent is lost: no answer"},
		{client.DisconnectedError{Resume: chain(&relay.RegistryError{Status: 401})}, "the connection to the agent is lost: the registry accepts the key no more, because it was revoked or has expired"},
		{client.DisconnectedError{Resume: chain(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})}, "the agent cannot be reached any more: dial tcp: connection refused"},
	} {
		rig.Is(t, plainly(fmt.Errorf("starting: %w", &tt.err)).Error(), tt.want, "%v", tt.err.Resume)
	}
}
