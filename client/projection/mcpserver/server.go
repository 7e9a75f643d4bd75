package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

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

	// maxTools is how many tools a server may have, in as many pages, maxToolBytes how large they
	// may be together, as JSON of which each value takes valueBytes more in memory.
	maxTools     = 2048
	maxToolBytes = 8 << 20
	valueBytes   = 64
	// maxToolName is how long the name of a tool may be, in bytes.
	maxToolName = 128
	// maxMessage is how large one message may be, in bytes.
	maxMessage = 8 << 20
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

// Equal tells whether two specs are of the same server.
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
}

func (cfg *Config) complete(spec *Spec) {
	cfg.StartTimeout = cmp.Or(spec.StartTimeout, cfg.StartTimeout, startTimeout)
	cfg.CallTimeout = cmp.Or(spec.CallTimeout, cfg.CallTimeout, callTimeout)
	if cfg.Notify == nil {
		cfg.Notify = func(Status) {}
	}
	if cfg.Info == nil {
		cfg.Info = &mcp.Implementation{Name: clientName, Version: "0"}
	}
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

	life context.Context // ends with Close
	stop context.CancelCauseFunc
	done chan struct{} // closed when nothing of the server is left
	// watching waits for the end of the session, so that serve hears of it.
	watching sync.WaitGroup

	started chan struct{} // closed when it is ready or has failed
	listed  chan struct{} // has one when the tools have changed

	mu      sync.Mutex // guards what follows
	status  Status
	session *mcp.ClientSession
	tools   []*mcp.Tool
}

// ErrClosed is the error of what waits for a server when [Server.Close] is called.
var ErrClosed = errors.New("MCP server closed")

// Start starts a server in the background. The caller closes it.
func Start(cfg Config, spec Spec) *Server {
	if spec.URL != "" {
		return startOver(newHTTPLink(cfg.Client, &spec), cfg, spec)
	}
	return startOver(newProgram(cfg.Client, &spec), cfg, spec)
}

// startOver is Start over a link, which the server shuts.
func startOver(l link, cfg Config, spec Spec) *Server {
	cfg.complete(&spec)
	s := &Server{
		cfg:     cfg,
		spec:    spec,
		done:    make(chan struct{}),
		started: make(chan struct{}),
		listed:  make(chan struct{}, 1),
		status:  Status{Name: spec.Name, Plugin: spec.Plugin, State: Starting},
	}
	s.life, s.stop = context.WithCancelCause(context.Background())
	go s.run(l)
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
	select {
	case <-s.started:
		return s.Status().Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Tools returns the tools of a server that is ready. Nobody may change them.
func (s *Server) Tools() []*mcp.Tool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools
}

// Call calls a tool and waits for the result. A server that is starting is waited for.
func (s *Server) Call(ctx context.Context, tool string, arguments any) (*mcp.CallToolResult, error) {
	if err := s.Wait(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	session, err := s.session, s.status.Err
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	params := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	if s.spec.Plugin != "" {
		params.Meta = mcp.Meta{"plugin_id": s.spec.Plugin}
	}
	result, err := session.CallTool(ctx, params)
	if err != nil {
		if cause := cmp.Or(context.Cause(s.life), context.Cause(ctx)); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("calling %s of MCP server %s: %w", tool, s.spec.Name, err)
	}
	return result, nil
}

// timeoutError is why a server that does not answer is waited for no longer.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string        { return fmt.Sprintf("no answer within %v", e.after) }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// bounded returns a context that also ends with the server, and after a while.
func (s *Server) bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, expire := context.WithTimeoutCause(ctx, limit, &timeoutError{limit})
	ctx, cancel := during(ctx, s.life)
	return ctx, func() {
		cancel()
		expire()
	}
}

// during returns a context that also ends with a life, by its cause.
func during(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		unhook()
		cancel(nil)
	}
}

// Close ends the server and waits until nothing of it is left, for a bounded time. It may be
// called more than once.
func (s *Server) Close() {
	s.stop(ErrClosed)
	<-s.done
}

// link is a transport to a server, and what is left to do when the session is over.
type link interface {
	mcp.Transport
	// cut makes everything fail that waits for the server.
	cut(error)
	// shut ends what the transport has begun, and waits for it. It is called once the
	// session is over, and also where there never was one.
	shut()
}

// run is the life of the server.
func (s *Server) run(l link) {
	defer close(s.done)
	s.cfg.Notify(s.Status())
	session, err := s.start(l)
	if err == nil {
		err = s.serve(session)
	}
	s.settle(Failed, nil, nil, err)
	if session != nil {
		s.stop(err) // the session waits for calls that are under way
		l.cut(err)
		_ = session.Close() // it has ended for another reason already
		s.watching.Wait()
	}
	l.shut()
}

// settle changes the state and tells of it. A server that was closed has not failed, so
// nobody is told.
func (s *Server) settle(state State, session *mcp.ClientSession, tools []*mcp.Tool, err error) {
	s.mu.Lock()
	first := s.status.State == Starting
	s.status.State, s.status.Err = state, err
	s.session, s.tools = session, tools
	status := s.status
	s.mu.Unlock()
	if !errors.Is(err, ErrClosed) {
		s.cfg.Notify(status)
	}
	if first {
		close(s.started)
	}
}

// start connects, and asks for the tools. With an error there is no session.
func (s *Server) start(l link) (*mcp.ClientSession, error) {
	ctx, cancel := s.bounded(context.Background(), s.cfg.StartTimeout)
	defer cancel()
	// The session waits for more than calls when it ends.
	defer context.AfterFunc(ctx, func() { l.cut(context.Cause(ctx)) })()
	c := mcp.NewClient(s.cfg.Info, &mcp.ClientOptions{
		// Servers are served nothing, neither by requests of theirs nor by calls that ask back.
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case s.listed <- struct{}{}:
			default: // it is known already
			}
		},
	})
	session, err := c.Connect(ctx, l, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err == nil {
		var tools []*mcp.Tool
		if tools, err = list(ctx, session); err == nil {
			s.settle(Ready, session, tools, nil)
			return session, nil
		}
		_ = session.Close() // no call is under way
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return nil, err
}

// list asks for all tools. Those whose name nobody could use, or is there before, are left out.
func list(ctx context.Context, session *mcp.ClientSession) (tools []*mcp.Tool, err error) {
	if c := session.InitializeResult().Capabilities; c == nil || c.Tools == nil {
		return nil, nil
	}
	number, size := 0, 0
	seen, params := map[string]bool{}, &mcp.ListToolsParams{}
	for {
		page, err := session.ListTools(ctx, params)
		if err != nil {
			return nil, err
		}
		for _, tool := range page.Tools {
			if tool == nil {
				continue
			}
			text, err := json.Marshal(tool)
			if err != nil {
				return nil, err
			}
			size += cost(text)
			if isToolName(tool.Name) && !seen[tool.Name] {
				seen[tool.Name] = true
				tools = append(tools, tool)
			}
		}
		if number += max(1, len(page.Tools)); number > maxTools || size > maxToolBytes {
			return nil, fmt.Errorf("the server has more than %d tools, or more than %d bytes of them", maxTools, maxToolBytes)
		}
		if page.NextCursor == "" {
			return tools, nil
		}
		params.Cursor = page.NextCursor
	}
}

// cost is what a JSON text takes in memory when it is decoded, roughly.
func cost(text []byte) int {
	values, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			values++
		}
	}
	return len(text) + values*valueBytes
}

// isToolName tells whether a name may be that of a tool: what the protocol recommends, and any
// other text of one line that is no longer.
func isToolName(name string) bool {
	return name != "" && len(name) <= maxToolName && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// serve follows the list of tools until the session is over, and returns why it is.
func (s *Server) serve(session *mcp.ClientSession) error {
	ended := make(chan error, 1)
	s.watching.Go(func() { ended <- session.Wait() }) // ends with the session, which run closes
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("the server has closed the connection")
			}
			return err
		case <-s.life.Done():
			return context.Cause(s.life)
		case <-s.listed:
		}
		ctx, cancel := s.bounded(context.Background(), s.cfg.CallTimeout)
		tools, err := list(ctx, session)
		cancel()
		if err == nil {
			s.mu.Lock()
			s.tools = tools
			s.mu.Unlock()
		} // else the list stays as it was; a session that is over is seen above
		select {
		case <-time.After(relistPause):
		case <-s.life.Done():
		}
	}
}
