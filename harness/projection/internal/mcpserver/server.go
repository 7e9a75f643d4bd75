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
	// clientName is the name that servers are told if [Config] has no name, because some servers
	// recognize the reference by it.
	clientName = "codex-mcp-client"

	startTimeout = 30 * time.Second
	callTimeout  = 2 * time.Minute
	// relistPause is the least time between two requests for a changing list of tools.
	relistPause = time.Second

	// firstPause is the pause before the first automatic restart. The pause doubles with each
	// restart, up to maxPause. If a server was ready for the time steady, restarts and pauses begin
	// anew.
	firstPause = time.Second
	maxPause   = 30 * time.Second
	steady     = 10 * time.Minute
	// maxRestarts bounds the automatic restarts in a row.
	maxRestarts = 16

	// maxTools bounds the tools of a server, and the pages of their list. maxToolBytes bounds their
	// total size, as costOf estimates it.
	maxTools     = 2048
	maxToolBytes = 8 << 20
	// maxToolName is how long the name of a tool may be, in bytes.
	maxToolName = 128
)

// Spec describes a server: either Argv or URL is set.
type Spec struct {
	// Name is the declared name. It need not be unique.
	Name string
	// Plugin is the id of the root that has declared the server, or "" if there is none. Calls
	// carry the id.
	Plugin string

	Argv []string // the program and its arguments, unchanged
	Env  map[string]string
	Dir  protocol.PathURI

	URL     string
	Headers []protocol.HTTPHeader // of every request; the executor fills in its variables

	// StartTimeout and CallTimeout replace those of [Config] for this server; 0: those of Config
	// apply.
	StartTimeout, CallTimeout time.Duration
}

// Equal reports whether two specs describe the same server.
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

// Config has the settings of the harness for a server.
type Config struct {
	// Client is the client of the executor.
	Client *client.Client
	// Notify is called with each change of the state, one after the other. It is called before Wait
	// and Call return, so it must not wait for the server. It may be nil.
	Notify func(Status)
	// Info describes the harness to servers.
	Info *mcp.Implementation
	// StartTimeout bounds the start with the handshake and the list of tools; 0: 30 s.
	StartTimeout time.Duration
	// CallTimeout bounds a call; 0: 2 minutes.
	CallTimeout time.Duration
	// Restarts is how often in a row a failed server is restarted automatically, if it was ready
	// before; at most 16 times. The first pause is a second. Each pause is twice as long as the
	// last, up to half a minute. If a server was ready for ten minutes, restarts and pauses begin
	// anew. 0: never, as in the reference.
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

// State is the state of a server.
type State string

// The states of a server, as clients of the harness get them.
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

// Server is one server. Its methods may be called concurrently.
type Server struct {
	cfg  Config
	spec Spec
	open func() link // the transport of one start

	life context.Context // ends with Close
	stop context.CancelCauseFunc
	done chan struct{} // closed when nothing of the server is left

	again chan struct{} // has a value when Restart has set the state to starting

	mu      sync.Mutex // guards the fields below
	status  Status
	settled chan struct{} // closed when the server is no longer starting
	session *session      // nil unless the server is ready
}

// ErrClosed is the error of calls that wait for a server when [Server.Close] is called.
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

// startOver does what Start does, over links that open returns. The server shuts the links.
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

// Status returns the status of the server.
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

// ready does what Wait does, and also returns the session of a ready server.
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

// Tools returns the tools of a ready server. Nobody may change them.
func (s *Server) Tools() []*mcp.Tool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	return s.session.tools
}

// Call calls a tool and waits for the result. It waits for a server that is starting. A call that
// has failed with its server is not repeated after a restart.
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

// Restart restarts a failed server in the background, once nothing is left of the earlier start. It
// reports whether it does so: it does nothing for a server that is starting, ready or closed. Later
// calls of Wait and Call wait for the new start.
func (s *Server) Restart() bool {
	if !s.revive() {
		return false
	}
	s.again <- struct{}{} // there is room: run takes it before the server can fail once more
	return true
}

// revive sets the state of a failed server to starting. It reports whether it did.
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

// run starts the server, and starts it again after failures, until Close.
func (s *Server) run() {
	defer close(s.done)
	restarts := 0 // automatic restarts in a row
	for {
		s.cfg.Notify(s.Status())
		since := s.once(s.open())
		if !since.IsZero() && time.Since(since) >= steady {
			restarts = 0
		}
		var pause <-chan time.Time // nil: no automatic restart follows
		if wasReady := !since.IsZero() || restarts > 0; wasReady && restarts < s.cfg.Restarts && !s.isLost() {
			pause = time.After(pauseAfter(restarts))
		}
		select {
		case <-pause:
			if s.revive() {
				restarts++
				continue
			} // else Restart or Close was faster
		case <-s.again:
			restarts = 0
			continue
		case <-s.life.Done():
		}
		select {
		case <-s.again:
			restarts = 0
		case <-s.life.Done():
			s.settle(Failed, nil, ErrClosed) // the start that Restart has announced does not happen
			return
		}
	}
}

// pauseAfter returns the pause after this many attempts in a row.
func pauseAfter(attempts int) time.Duration {
	return min(firstPause<<min(attempts, maxRestarts), maxPause)
}

// isLost reports whether the executor is gone for good, so that nothing can be started on it.
func (s *Server) isLost() bool { return s.cfg.Client != nil && s.cfg.Client.Err() != nil }

// settle changes the state and calls Notify. It does not call Notify for a closed server, because
// that has not failed.
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
