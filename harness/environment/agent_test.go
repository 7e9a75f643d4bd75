package environment_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestAgents: the same command in every kind of environment that is reached without a
// registry.
func TestAgents(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{Environ: os.Environ()})
	listener, err := transport.Listen(transport.Config{URL: "ws://127.0.0.1:0"})
	rig.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		rig.Check(t, a.Serve(ctx, listener))
	})
	t.Cleanup(func() {
		cancel()
		served.Wait()
		rig.Check(t, a.Close())
	})
	inProcess := func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		served.Go(func() { _ = a.ServeConn(ctx, theirs) })
		return ours, nil
	}
	connect := func(t environment.Transport) (client.Config, error) {
		return client.Config{Dial: func(ctx context.Context) (rpc.Conn, error) {
			conn, err := transport.Dial(ctx, t.(environment.URL).URL, transport.DialConfig{})
			if err != nil {
				return nil, err
			}
			return conn, nil
		}}, nil
	}
	plan := environment.Plan{
		Entries:      []environment.Entry{{ID: "a", Transport: environment.URL{URL: listener.URL()}}},
		Default:      "local",
		IncludeLocal: true,
	}
	s, err := environment.New(environment.Config{Connect: connect, Local: inProcess}, plan)
	rig.Must(t, err)
	defer s.Close()
	for _, id := range s.DefaultIDs() {
		c := connected(t, get(t, s, id))
		p, err := c.Start(t.Context(), protocol.StartParams{Argv: []string{"/bin/sh", "-c", "exit 3"}, Cwd: protocol.NewPathURI("/")})
		rig.Must(t, err)
		rig.Is(t, fmt.Sprint(p.Wait(t.Context())), "3 <nil>", "%s: the command ends with", id)
		status(t, s, id, environment.StatusReady, "")
	}
}
