package client

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Defaults of [Config] (client.md 1.1, 2.2).
const (
	DefaultClientName        = "execagent-client"
	DefaultConnectTimeout    = 10 * time.Second
	DefaultInitializeTimeout = 10 * time.Second
	DefaultRecoveryTimeout   = 45 * time.Second
)

const (
	// infoTimeout and statusTimeout bound the calls of these names (client.md 2.7).
	infoTimeout   = 30 * time.Second
	statusTimeout = 10 * time.Second
)

// Config configures a client. Only Dial has no usable zero value.
type Config struct {
	// Dial opens a connection: transport.Dial and transport.StartCommand do. It is
	// called again, in a goroutine of the client, each time the connection is lost.
	// The client closes the connections.
	Dial func(ctx context.Context) (rpc.Conn, error)
	// Single says that Dial reaches the server only once, for example because it
	// starts the server. The client then fails when its connection is lost.
	Single bool
	// Final reports whether another attempt is useless after an error of Dial,
	// such as a refused token; nil: never.
	Final func(error) bool
	// Same reports whether Dial would reach the same executor as the last connection, and not a
	// replacement; nil: always.
	Same func(context.Context) (bool, error)
	// Release frees the resources of Dial; nil: none. It is called once, after the
	// last connection of the client has ended: by Close, or by Connect if that
	// fails.
	Release func()
	// ClientName is the client's name for the server; "" means [DefaultClientName].
	ClientName string
	// ResumeSessionID is the id of a session to resume; "" means a new session.
	ResumeSessionID string
	// SessionName is the name of a session to open at the server, or to make there; ""
	// means a session without a name. A named session lives Retain longer than its
	// processes. Every client of the same principal finds it. Without the server's
	// namedSessions, Connect fails with an [UnsupportedError].
	SessionName string
	// Existing opens only an existing session. Take takes the session from the client
	// that has it, which then fails with [ErrTaken].
	Existing, Take bool
	// Retain is how long the server should keep the session while nothing holds it: no
	// connection and, for a named session, no process. The server may keep it for less,
	// see [Client.Session]. nil: the server decides.
	Retain *time.Duration
	// Network answers questions about processes with a NetworkProxy.
	Network Network
	// Approvals answers questions of a policy about commands.
	Approvals Approvals
	// Refusals asks the server for what sandboxes have refused, see [Event]. A server that does not know
	// this tells nothing.
	Refusals bool
	// ConnectTimeout bounds Dial, InitializeTimeout the handshake after it; 0
	// means 10 s.
	ConnectTimeout, InitializeTimeout time.Duration
	// RecoveryTimeout is how long a client tries to resume its session after
	// the connection was lost; 0 means 45 s. Servers keep a session for 80 s.
	RecoveryTimeout time.Duration
}

func (cfg *Config) complete() {
	if cfg.Release == nil {
		cfg.Release = func() {}
	}
	cfg.ClientName = cmp.Or(cfg.ClientName, DefaultClientName)
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.InitializeTimeout <= 0 {
		cfg.InitializeTimeout = DefaultInitializeTimeout
	}
	if cfg.RecoveryTimeout <= 0 {
		cfg.RecoveryTimeout = DefaultRecoveryTimeout
	}
}

// Client is one session on a server, over one connection after the other. Its
// methods may be called concurrently.
type Client struct {
	cfg       Config
	sessionID string
	opened    *protocol.OpenedSession
	ctx       context.Context // ends with the client
	cancel    context.CancelCauseFunc
	done      chan struct{}
	deadline  time.Time // of recovery; only its goroutine uses it

	mu          sync.Mutex // guards what follows
	state       State
	changed     chan struct{} // closed at the next change of state
	current     *connection   // while recovering: the lost one
	generation  int
	failure     *DisconnectedError // of a client that has failed
	info        *protocol.EnvironmentInfo
	processes   map[string]*Process
	watches     map[*Watch]struct{}
	sockets     map[string]*Socket // those that go on over the next connection
	opening     map[string]*Socket // those that DialSocket has not returned yet
	lastID      uint64             // of file handles and HTTP requests
	replacement chan rpc.Conn
	replacing   bool
	closed      bool // no routine is started any more

	release  sync.Once
	routines sync.WaitGroup // goroutines that outlive the call that started them
}

// Connect opens a connection and a session on it, in one attempt. The context bounds
// only these two steps. The caller closes the client. Errors: [ConnectError],
// [InitializeTimeoutError], [ServerError] (such as protocol.CodeSessionAttached on a
// resume), [ProtocolError].
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	return connect(ctx, newClient(cfg))
}

func newClient(cfg Config) *Client {
	cfg.complete()
	c := &Client{
		cfg: cfg, done: make(chan struct{}), changed: make(chan struct{}),
		processes: map[string]*Process{}, watches: map[*Watch]struct{}{},
		sockets: map[string]*Socket{}, opening: map[string]*Socket{},
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

func connect(ctx context.Context, c *Client) (*Client, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		c.cancel(err)
		c.cfg.Release()
		return nil, err
	}
	// The reader runs before initialize is sent. Otherwise a busy process of a
	// resumed session could block the answer.
	l := c.open(conn)
	if err := c.initialize(ctx, l, c.cfg.ResumeSessionID); err != nil {
		l.close(err)
		c.cancel(err)
		c.cfg.Release()
		return nil, err
	}
	c.mu.Lock()
	if failure := c.failure; failure != nil { // another client has taken the session already
		c.mu.Unlock()
		l.close(failure)
		c.cfg.Release()
		return nil, failure
	}
	c.deadline = time.Now().Add(c.cfg.RecoveryTimeout)
	c.installLocked(l)
	gone := l.gone
	c.mu.Unlock()
	if gone {
		c.lost(l)
	}
	return c, nil
}

func (c *Client) dial(ctx context.Context) (rpc.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	conn, err := c.cfg.Dial(ctx)
	if err != nil {
		return nil, &ConnectError{Err: err, Final: c.cfg.Final != nil && c.cfg.Final(err)}
	}
	return conn, nil
}

// initialize does the handshake on l (client.md 1.3), for the session resume, or for
// a new one if that is "". Only the first handshake of a client sets anything.
func (c *Client) initialize(parent context.Context, l *connection, resume string) error {
	timeout := &InitializeTimeoutError{After: c.cfg.InitializeTimeout}
	ctx, cancel := context.WithTimeoutCause(parent, c.cfg.InitializeTimeout, timeout)
	defer cancel()
	// A server that does not read would block Call in its write; abort ends the
	// write.
	stop := context.AfterFunc(ctx, l.abort)

	params := protocol.InitializeParams{ClientName: c.cfg.ClientName, SubcommandApprovals: c.cfg.Approvals.Decide != nil, Refusals: c.cfg.Refusals, ErrorData: true}
	if resume != "" {
		params.ResumeSessionID = &resume
	}
	first := c.sessionID == ""
	if first {
		c.cfg.wish(&params)
	}
	var result protocol.InitializeResult
	err := l.call(ctx, protocol.MethodInitialize, &params, &result)
	if err == nil {
		err = l.peer.Notify(protocol.MethodInitialized, protocol.Empty{})
	}
	switch {
	case !stop():
		return context.Cause(ctx)
	case isLoss(err):
		return &ConnectError{Err: err}
	case err != nil:
		return err
	case result.SessionID == "":
		return protocolErrorf("initialize answered without a session id")
	case resume != "" && result.SessionID != resume:
		return protocolErrorf("exec-server initialized an unexpected session %.128s", result.SessionID)
	}
	if first {
		if err := c.cfg.granted(&result); err != nil {
			return err
		}
		c.sessionID, c.opened = result.SessionID, result.Session
		c.info = result.EnvironmentInfo
	}
	return nil
}

// SessionID names the session, for a later [Config.ResumeSessionID].
func (c *Client) SessionID() string { return c.sessionID }

// Close ends the client and waits for all its goroutines. The session lives on
// at the server until it expires. Calls and handles fail with [ErrClosed];
// Close may be called more than once.
func (c *Client) Close() error {
	c.end(ErrClosed)
	return nil
}

// Retire closes the client because another executor takes its place: calls and handles
// fail with [ErrReplaced], and late answers are dropped.
func (c *Client) Retire() { c.end(ErrReplaced) }

func (c *Client) end(reason error) {
	c.fail(&DisconnectedError{Err: reason})
	c.mu.Lock()
	c.closed = true
	current := c.current
	c.mu.Unlock()
	current.close(reason)
	c.routines.Wait()
	c.release.Do(c.cfg.Release)
}

// begin starts a goroutine that Close waits for. If the client is closed, it starts
// nothing and returns false.
func (c *Client) begin(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.routines.Go(f)
	return true
}

// Call makes any request of the protocol and reads the answer into result, a
// pointer; nil drops the answer. A refusal is a [ServerError]. The context
// bounds the wait for the answer; the end of the context does not undo the
// request.
//
// While the client recovers, Call waits. A request that was under way when the
// connection was lost is not repeated: its error is a [DisconnectedError] that says
// Sent.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		if err := l.called(ctx, method, params, result); !unsent(err) {
			return err
		}
	}
}

// replay makes a request that may be sent twice, because it changes nothing or the
// server recognizes it. A loss of the connection does not end it.
func (c *Client) replay(ctx context.Context, method string, params, result any) error {
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		if err := l.called(ctx, method, params, result); !isLoss(err) {
			return err
		}
	}
}

// probe makes a request that the server must answer within a limit. Otherwise it
// treats the connection as lost.
func (c *Client) probe(parent context.Context, limit time.Duration, method string, params, result any) error {
	late := &TimeoutError{Method: method, After: limit}
	ctx, cancel := context.WithTimeoutCause(parent, limit, late)
	defer cancel()
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		err = l.called(ctx, method, params, result)
		if errors.Is(err, late) {
			l.abort()
		}
		if !isLoss(err) {
			return err
		}
	}
}

// Info describes the machine that the server runs on. The answer usually came with the
// handshake; otherwise the first call asks for it, for up to 30 s. The caller must not
// change it.
func (c *Client) Info(ctx context.Context) (*protocol.EnvironmentInfo, error) {
	c.mu.Lock()
	info := c.info
	c.mu.Unlock()
	if info != nil {
		return info, nil
	}
	info = new(protocol.EnvironmentInfo)
	if err := c.probe(ctx, infoTimeout, protocol.MethodEnvironmentInfo, protocol.Empty{}, info); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.info == nil {
		c.info = info
	}
	return c.info, nil
}

// Status asks whether the server is ready, for up to 10 s, and never waits for a lost
// connection: the error is then [ErrRecovering]. A server that is not ready answers
// with an error; currently there is no other status.
func (c *Client) Status(ctx context.Context) (string, error) {
	late := &TimeoutError{Method: protocol.MethodEnvironmentStatus, After: statusTimeout}
	ctx, cancel := context.WithTimeoutCause(FailFast(ctx), statusTimeout, late)
	defer cancel()
	var r protocol.StatusResult
	err := c.Call(ctx, protocol.MethodEnvironmentStatus, protocol.Empty{}, &r)
	return r.Status, err
}

// ReadConfig reads parts of the server's configuration files.
func (c *Client) ReadConfig(ctx context.Context, params protocol.ConfigReadParams) (*protocol.ConfigReadResult, error) {
	err := c.require(ctx, "reading configuration", func(c *protocol.Capabilities) bool { return c.EnvironmentConfigRead })
	if err != nil {
		return nil, err
	}
	// The wire requires both lists, even if they are empty.
	if params.ConfigPaths == nil {
		params.ConfigPaths = [][]string{}
	}
	if params.RequirementsPaths == nil {
		params.RequirementsPaths = [][]string{}
	}
	r := new(protocol.ConfigReadResult)
	if err := c.replay(ctx, protocol.MethodConfigRead, &params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Installed returns the plugins and skills that are installed for the user of the server,
// as far as they can be read under s; nil: all.
func (c *Client) Installed(ctx context.Context, s *protocol.Sandbox) (*protocol.DiscoverInstalledResult, error) {
	err := c.require(ctx, "capability discovery", func(c *protocol.Capabilities) bool { return c.CapabilityDiscoveryV2 })
	if err != nil {
		return nil, err
	}
	params := protocol.DiscoverInstalledParams{Cwd: protocol.NewPathURI("/"), Sandbox: s} // the directory does not matter
	r := new(protocol.DiscoverInstalledResult)
	if err := c.replay(ctx, protocol.MethodDiscoverInstalled, &params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// require returns an error if the server does not advertise a feature.
func (c *Client) require(ctx context.Context, feature string, has func(*protocol.Capabilities) bool) error {
	info, err := c.Info(ctx)
	if err != nil {
		return err
	}
	if !has(&info.Capabilities) {
		return &UnsupportedError{Feature: feature}
	}
	return nil
}

// has reports whether the server is known to advertise a feature.
func (c *Client) has(feature func(*protocol.Capabilities) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info != nil && feature(&c.info.Capabilities)
}

// nextID returns an id that this client has not used before. An earlier client of
// the same session may have used it.
func (c *Client) nextID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	return c.lastID
}

// handles returns the processes that receive events.
func (c *Client) handles() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processesLocked()
}

func (c *Client) processesLocked() []*Process { return slices.Collect(maps.Values(c.processes)) }
