package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// asAgent is the argument with which this program is an agent on its standard streams.
const asAgent = "serve-stdio"

// TestMain also runs that agent, and the helpers of agents that confine.
func TestMain(m *testing.M) {
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	if len(os.Args) == 2 && os.Args[1] == asAgent {
		a := agent.New(agent.Config{Environ: os.Environ()})
		_ = a.ServeConn(context.Background(), transport.Stdio(os.Stdin, os.Stdout, nil)) // the client sees how it ends
		_ = a.Close()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long it may take to connect on a machine that has much else to do.
const patience = 5 * time.Minute

type dialFunc = func(context.Context) (rpc.Conn, error)

// newAgent starts an agent that ends with the test.
func newAgent(t testing.TB) *agent.Agent {
	t.Helper()
	a := agent.New(agent.Config{Version: "0.171.0+execagent.test", Environ: os.Environ()})
	t.Cleanup(func() {
		rig.Must(t, a.Close())
	})
	return a
}

// overPipe connects to an agent in memory.
func overPipe(t testing.TB, a *agent.Agent) dialFunc {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		served.Wait()
	})
	return func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		// The error of serving is not of interest: the client sees the end of the
		// connection.
		served.Go(func() { _ = a.ServeConn(ctx, theirs) })
		return ours, nil
	}
}

// overWebSocket connects to an agent that listens.
func overWebSocket(t testing.TB, a *agent.Agent) dialFunc {
	t.Helper()
	url := serve(t, a, nil)
	return func(ctx context.Context) (rpc.Conn, error) {
		conn, err := transport.Dial(ctx, url, transport.DialConfig{HandshakeTimeout: patience})
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
}

// serve has an agent listen, and returns the URL.
func serve(t rig.T, a *agent.Agent, auth *transport.Authenticator) string {
	t.Helper()
	listener := rig.Value(transport.Listen(transport.Config{URL: "ws://127.0.0.1:0", Auth: auth}))
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		rig.Must(t, <-served)
	})
	return listener.URL()
}

// eachTransport runs a test with a client over every kind of connection.
func eachTransport(t *testing.T, test func(t *testing.T, c *client.Client)) {
	t.Helper()
	for name, over := range map[string]func(testing.TB, *agent.Agent) dialFunc{
		"pipe": overPipe, "websocket": overWebSocket,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, reach(t, over(t, newAgent(t))))
		})
	}
}

// reach connects to a real agent.
func reach(t testing.TB, dial dialFunc) *client.Client {
	t.Helper()
	return connect(t, client.Config{Dial: dial, ConnectTimeout: patience, InitializeTimeout: patience})
}

func connect(t testing.TB, cfg client.Config) *client.Client {
	t.Helper()
	c, err := client.Connect(t.Context(), cfg)
	rig.Must(t, err)
	t.Cleanup(func() {
		rig.Must(t, c.Close())
	})
	return c
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		info, err := c.Info(t.Context())
		rig.Must(t, err)
		rig.Is(t, info.ExecutorVersion == "0.171.0+execagent.test" && info.Capabilities.ProcessSignals, true, "Info is %+v", info)
		rig.Is(t, rig.Value(c.Status(t.Context())), protocol.StatusReady, "Status")
		config, err := c.ReadConfig(t.Context(), protocol.ConfigReadParams{
			Cwd: protocol.NewPathURI(t.TempDir()), ConfigPaths: [][]string{{"model"}},
		})
		rig.Must(t, err)
		rig.Is(t, config.Hostname != "", true, "there is a host name in %+v", config)
		installed, err := c.Installed(t.Context(), nil)
		rig.Is(t, err == nil && installed.Plugins != nil && installed.Skills != nil, true, "Installed is %+v, %v", installed, err)
	})
}

func isAttached(err error) bool {
	refused, ok := errors.AsType[*client.ServerError](err)
	return ok && refused.Err.Code == protocol.CodeSessionAttached
}

func TestConnectErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("no route")
	_, err := client.Connect(t.Context(), client.Config{Dial: func(context.Context) (rpc.Conn, error) { return nil, cause }})
	wantError[*client.ConnectError](t, err, "a dial that fails")
	rig.Is(t, err, cause, "a dial that fails")
	_, err = client.Connect(t.Context(), client.Config{
		ConnectTimeout: time.Millisecond,
		Dial: func(ctx context.Context) (rpc.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	wantError[*client.ConnectError](t, err, "a dial that takes too long")
	rig.Is(t, err, context.DeadlineExceeded, "a dial that takes too long")
}

func TestClose(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		p := rig.Value(c.Start(t.Context(), shell("sleep 100")))
		rig.Must(t, c.Close())
		<-c.Done()
		for name, err := range map[string]error{
			"Status": rig.Err(c.Status(t.Context())),
			"Wait":   rig.Err(p.Wait(t.Context())),
			"Start":  rig.Err(c.Start(t.Context(), shell("true"))),
			"HTTP":   rig.Err(c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: "http://127.0.0.1/"})),
		} {
			wantError[*client.DisconnectedError](t, err, "after Close %s", name)
		}
		rig.Check(t, c.Close())
	})
}

// wantError fails a test unless an error is, or wraps, one of a type.
func wantError[E error](t testing.TB, err error, format string, args ...any) {
	t.Helper()
	if _, ok := errors.AsType[E](err); !ok {
		t.Errorf("%s: %T %v, want %T", fmt.Sprintf(format, args...), err, err, *new(E))
	}
}

// said is what a server has said that refused a call.
func said(err error) string {
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		return refused.Err.Error()
	}
	return fmt.Sprintf("no refusal: %v", err)
}

// isClosed reports whether a write was refused because the input is closed.
func isClosed(err error) bool {
	refused, ok := errors.AsType[*client.WriteError](err)
	return ok && refused.Status == protocol.WriteStdinClosed
}

func TestErrNotExist(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		_, err := c.FS(nil).ReadFile(t.Context(), t.TempDir()+"/missing")
		rig.Is(t, err, fs.ErrNotExist, "a missing file")
		wantError[*protocol.Error](t, err, "the error of the wire")
		err = c.Call(t.Context(), "no/such", protocol.Empty{}, nil)
		rig.Is(t, strings.HasSuffix(said(err), "(code -32601)"), true, "an unknown method gives %v", err)
	})
}

// shell runs a script with sh.
func shell(script string, args ...any) protocol.StartParams {
	return protocol.StartParams{
		Argv:      []string{"/bin/sh", "-c", fmt.Sprintf(script, args...)},
		Cwd:       protocol.NewPathURI("/"),
		EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritCore},
	}
}
