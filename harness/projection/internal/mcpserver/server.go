package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

const (
	// version is the version of the protocol that servers are offered (capabilities.md 6.2).
	version = "2025-06-18"
	// clientName is what servers are told, where [Config] has no other name: some know the
	// reference by it.
	clientName = "codex-mcp-client"

	startTimeout = 30 * time.Second
	callTimeout  = 2 * time.Minute
	// relistPause is the least time between two looks at a list of tools that changes.
	relistPause = time.Second

	// firstPause is how long a server that is started again by itself waits for that, which
	// doubles each time up to maxPause; steady is how long one has to be ready to begin anew.
	firstPause = time.Second
	maxPause   = 30 * time.Second
	steady     = 10 * time.Minute
	// maxRestarts is how often that may happen in a row.
	maxRestarts = 16

	// maxTools is how many tools a server may have, in as many pages, maxToolBytes how large they
	// may be together, as costOf tells.
	maxTools     = 2048
	maxToolBytes = 8 << 20
	// maxToolName is how long the name of a tool may be, in bytes.
	maxToolName = 128
)

// Spec says what a server is: either Argv or URL is set.
type Spec struct {
	// Name is how it was declared. It need not be unique.
	Name string
	// Plugin is the id of the root that has declared it, "" if none has. Calls carry it.
	Plugin string

	Argv []string // the program and its arguments, as they are
	Env  map[string]string
	Dir  protocol.PathURI

	URL     string
	Headers []protocol.HTTPHeader // of every request; the executor fills in its variables

	// StartTimeout and CallTimeout are for this server in the place of those of [Config]; 0: these
	// count.
	StartTimeout, CallTimeout time.Duration
}

// Equal reports whether two specs are of the same server.
func (s *Spec) Equal(t *Spec) bool {
	if s.Name != t.Name || s.Plugin != t.Plugin || s.URL != t.URL || s.Dir != t.Dir || len(s.Env) != len(t.Env) ||
		s.StartTimeout != t.StartTimeout || s.CallTimeout != t.CallTimeout {
		return false
	}
	for name, value := range s.Env {
		if other, ok := t.Env[name]; !ok || other != value {
			return false
		}
	}
	return slices.Equal(s.Argv, t.Argv) && slices.EqualFunc(s.Headers, t.Headers, func(a, b protocol.HTTPHeader) bool {
		return a.Name == b.Name && a.Value == b.Value && (a.ValueEnvVar == nil) == (b.ValueEnvVar == nil) &&
			(a.ValueEnvVar == nil || *a.ValueEnvVar == *b.ValueEnvVar)
	})
}

// Config is what a server needs of the harness.
type Config struct {
	// Client is of the executor.
	Client *client.Client
	// Notify is told of each change of the state, one after the other, and before those who
	// wait for it, so it may not wait for the server. It may be nil.
	Notify func(Status)
	// Info is what servers are told of the harness.
	Info *mcp.Implementation
	// StartTimeout bounds the start with the handshake and the list of tools; 0: 30 s.
	StartTimeout time.Duration
	// CallTimeout bounds a call; 0: 2 minutes.
	CallTimeout time.Duration
	// Restarts is how often in a row a server that was ready and has failed is started again by
	// itself, 16 times at most: a second later, then after twice as long each time, up to half a
	// minute. A server that was ready for ten minutes begins anew. 0: never, as the reference.
	Restarts int
}

func (cfg *Config) complete(spec *Spec) {
	cfg.StartTimeout = cmp.Or(spec.StartTimeout, cfg.StartTimeout, startTimeout)
	cfg.CallTimeout = cmp.Or(spec.CallTimeout, cfg.CallTimeout, callTimeout)
	cfg.Restarts = min(cfg.Restarts, maxRestarts)
	if cfg.Notify == nil {
		cfg.Notify = func(Status) {}
	}
	cfg.Info = cmp.Or(cfg.Info, &mcp.Implementation{Name: clientName, Version: "0"})
}

// State is what a server is doing.
type State string

// The states of a server, as the harness' clients are told of them.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Failed   State = "failed"
)

// Status is the state of a server.
type Status struct {
	Name   string
	Plugin string
	State  State
	Err    error // why it has failed
}

// Server is one server. Its methods may be called at once.
type Server struct {
	cfg  Config
	spec Spec
	open func() link // the transport of one start

	life context.Context // ends with Close
	stop context.CancelCauseFunc
	done chan struct{} // closed when nothing of the server is left

	again chan struct{} // has one when Restart has made the server a starting one

	mu      sync.Mutex // guards what follows
	status  Status
	settled chan struct{} // closed when it is no longer starting
	session *session      // nil unless it is ready
}

// ErrClosed is the error of what waits for a server when [Server.Close] is called.
var ErrClosed = errors.New("MCP server closed")

// Start starts a server in the background. The caller closes it.
func Start(cfg Config, spec Spec) *Server {
	return startOver(func() link {
		if spec.URL != "" {
			return newHTTPLink(cfg.Client, &spec)
		}
		return newProgram(cfg.Client, &spec)
	}, cfg, spec)
}

// startOver is Start over links, which the server shuts.
func startOver(open func() link, cfg Config, spec Spec) *Server {
	cfg.complete(&spec)
	s := &Server{
		cfg:     cfg,
		spec:    spec,
		open:    open,
		done:    make(chan struct{}),
		again:   make(chan struct{}, 1),
		settled: make(chan struct{}),
		status:  Status{Name: spec.Name, Plugin: spec.Plugin, State: Starting},
	}
	s.life, s.stop = context.WithCancelCause(context.Background())
	go s.run()
	return s
}

// Status tells how the server is.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Wait waits until the server is ready or has failed, and returns why it has failed, or the
// cause of ctx.
func (s *Server) Wait(ctx context.Context) error {
	_, err := s.ready(ctx)
	return err
}

// ready is Wait, and returns the session of a server that is ready.
func (s *Server) ready(ctx context.Context) (*session, error) {
	for {
		s.mu.Lock()
		status, settled, session := s.status, s.settled, s.session
		s.mu.Unlock()
		switch status.State {
		case Ready:
			return session, nil
		case Failed:
			return nil, status.Err
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Tools returns the tools of a server that is ready. Nobody may change them.
func (s *Server) Tools() []*mcp.Tool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	return s.session.tools
}

// Call calls a tool and waits for the result. A server that is starting is waited for. A call
// that has failed with its server is not repeated when that is started again.
func (s *Server) Call(ctx context.Context, tool string, arguments any) (*mcp.CallToolResult, error) {
	session, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	params := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	if s.spec.Plugin != "" {
		params.Meta = mcp.Meta{"plugin_id": s.spec.Plugin}
	}
	result, err := session.call(ctx, params)
	if err != nil {
		return nil, fmt.Errorf("calling %s of MCP server %s: %w", tool, s.spec.Name, err)
	}
	return result, nil
}

// Restart starts a server again that has failed, in the background, once nothing is left of it
// from before. It reports whether it does: a server that is starting or ready is left alone, and
// so is one that was closed. Whoever calls Wait or Call afterwards waits for the new start.
func (s *Server) Restart() bool {
	if !s.revive() {
		return false
	}
	s.again <- struct{}{} // there is room: run takes it before the server can fail once more
	return true
}

// revive makes a server that has failed a starting one.
func (s *Server) revive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.State != Failed || s.life.Err() != nil {
		return false
	}
	s.status.State, s.status.Err = Starting, nil
	s.settled = make(chan struct{})
	return true
}

// Close ends the server and waits until nothing of it is left, for a bounded time. It may be
// called more than once.
func (s *Server) Close() {
	s.stop(ErrClosed)
	<-s.done
}

// run is the life of the server: one start after the other.
func (s *Server) run() {
	defer close(s.done)
	restarts := 0 // in a row, which nobody has asked for
	for {
		s.cfg.Notify(s.Status())
		since := s.once(s.open())
		if !since.IsZero() && time.Since(since) >= steady {
			restarts = 0
		}
		var pause <-chan time.Time // nil: no start follows by itself
		if wasReady := !since.IsZero() || restarts > 0; wasReady && restarts < s.cfg.Restarts && !s.isLost() {
			pause = time.After(pauseAfter(restarts))
		}
		select {
		case <-pause:
			if s.revive() {
				restarts++
				continue
			} // else Restart was faster, or Close
		case <-s.again:
			restarts = 0
			continue
		case <-s.life.Done():
		}
		select {
		case <-s.again:
			restarts = 0
		case <-s.life.Done():
			s.settle(Failed, nil, ErrClosed) // the start that Restart has promised does not come
			return
		}
	}
}

// pauseAfter is how long the next attempt waits after so many in a row.
func pauseAfter(attempts int) time.Duration {
	return min(firstPause<<min(attempts, maxRestarts), maxPause)
}

// isLost reports whether the executor is gone for good, and with it all that could be started.
func (s *Server) isLost() bool { return s.cfg.Client != nil && s.cfg.Client.Err() != nil }

// settle changes the state and tells of it. A server that was closed has not failed, so
// nobody is told.
func (s *Server) settle(state State, session *session, err error) {
	s.mu.Lock()
	starting, settled := s.status.State == Starting, s.settled
	s.status.State, s.status.Err = state, err
	s.session = session
	status := s.status
	s.mu.Unlock()
	if !errors.Is(err, ErrClosed) {
		s.cfg.Notify(status)
	}
	if starting {
		close(settled)
	}
}
