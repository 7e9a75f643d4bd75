package mcpserver_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/projection/internal/fakemcp"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) {
	if fakemcp.Main() {
		return
	}
	mcpserver.Hurry(16<<20, 8<<10, 100*time.Millisecond)
	_ = flag.Set("test.parallel", "8") // most tests wait for programs
	goleak.VerifyTestMain(m)
}

// stage has an agent in memory, and a client of it whose connection can be cut.
type stage struct {
	client *client.Client
	pids   string

	mu    sync.Mutex
	last  rpc.Conn
	cutOn []byte // a message that has it is the last one of its connection, once
}

// cutter is a connection that may end with a message.
type cutter struct {
	rpc.Conn
	stage *stage
}

// Write sends the message, and cuts the connection behind it.
func (c *cutter) Write(message []byte) error {
	c.stage.mu.Lock()
	cut := c.stage.cutOn != nil && bytes.Contains(message, c.stage.cutOn)
	if cut {
		c.stage.cutOn = nil
	}
	c.stage.mu.Unlock()
	err := c.Conn.Write(message)
	if cut {
		_ = c.Conn.Close()
	}
	return err
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{pids: filepath.Join(t.TempDir(), "pids")}
	a := agent.New(agent.Config{Environ: os.Environ()})
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		served.Wait()
		rig.Check(t, a.Close())
	})
	dial := func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		served.Go(func() { _ = a.ServeConn(ctx, theirs) })
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = ours
		return &cutter{ours, s}, nil
	}
	var err error
	s.client, err = client.Connect(t.Context(), client.Config{Dial: dial, ConnectTimeout: rig.Patience, InitializeTimeout: rig.Patience})
	rig.Must(t, err)
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

func (s *stage) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.last.Close()
}

// cutAt cuts the connection behind the next message with a text.
func (s *stage) cutAt(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutOn = []byte(text)
}

// start starts a server in a mode.
func (s *stage) start(t testing.TB, mode string, cfg mcpserver.Config) *mcpserver.Server {
	t.Helper()
	self := rig.Value(os.Executable())
	env := fakemcp.Env(mode, s.pids)
	env["EXTRA"] = "${HOME}"
	cfg.Client = s.client
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = rig.Patience
	}
	server := mcpserver.Start(cfg, mcpserver.Spec{
		Name: "fake", Plugin: "demo@1", Argv: []string{self}, Dir: protocol.NewPathURI(t.TempDir()),
		Env: env,
	})
	t.Cleanup(server.Close)
	return server
}

// statuses collects what is told of servers.
type statuses struct {
	mu  sync.Mutex
	all []mcpserver.Status
}

func (s *statuses) add(st mcpserver.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, st)
}

func (s *statuses) states() (states string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.all {
		states += string(st.State) + " "
	}
	return strings.TrimSpace(states)
}
