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

// Config says how to connect. Only Dial has no usable zero value.
type Config struct {
	// Dial opens a connection: transport.Dial and transport.StartCommand do. It is
	// called again, in a goroutine of the client, each time the connection is lost.
	// The client closes what it returns.
	Dial func(ctx context.Context) (rpc.Conn, error)
	// Single: Dial reaches the server only once, as a program that is started does.
	// The client then fails with its connection.
	Single bool
	// Final tells for which errors of Dial another attempt is of no use, such as a
	// refused token; nil: for none.
	Final func(error) bool
	// Same tells whether Dial would reach the executor that its last connection reaches, and
	// not another one in its place; nil: always.
	Same func(context.Context) (bool, error)
	// Release frees what Dial uses; nil: nothing. It is called once, after the last
	// connection of the client has ended: by Close, or by Connect if that fails.
	Release func()
	// ClientName tells the server who calls, "" for [DefaultClientName].
	ClientName string
	// ResumeSessionID is a session to come back to, "" for a new one.
	ResumeSessionID string
	// SessionName is a session to open by the name that it has at the server, or to make
	// there; "" for one without. It lives as long as its processes, and Retain longer.
	// Every client of the same principal finds it. It needs the server's namedSessions,
	// else Connect fails with an [UnsupportedError].
	SessionName string
	// Existing makes no session, Take takes it from the client that has it: that one then
	// fails with [ErrTaken].
	Existing, Take bool
	// Retain is for how long the server is to keep the session when nothing holds it any
	// more: a connection, or, of a session with a name, a process. It may keep it shorter,
	// see [Client.Session]. nil: as long as the server likes.
	Retain *time.Duration
	// Network is for processes with a NetworkProxy.
	Network Network
	// Approvals is for processes that a policy about commands asks about.
	Approvals Approvals
	// ConnectTimeout bounds Dial, InitializeTimeout the handshake after it; 0
	// for 10 s each.
	ConnectTimeout, InitializeTimeout time.Duration
	// RecoveryTimeout is how long a client looks for its session after the
	// connection was lost; 0 for 45 s. Servers keep a session for 80 s.
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
	opening     map[string]*Socket // those that DialSocket has yet to return
	lastID      uint64             // of file handles and HTTP requests
	replacement chan rpc.Conn
	replacing   bool
	closed      bool // no routine is started any more

	release  sync.Once
	routines sync.WaitGroup // goroutines that outlive the call that has started them
}

// Connect opens a connection and a session on it, in one attempt. The context bounds
// these two steps, and nothing later. The caller closes the client. Errors:
// [ConnectError], [InitializeTimeoutError], [ServerError] (such as
// protocol.CodeSessionAttached on a resume), [ProtocolError].
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
	// The reader runs before initialize is sent: a busy process of a resumed
	// session could otherwise keep its answer away.
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
	// A server that does not read would keep Call waiting in its write; abort ends
	// that.
	stop := context.AfterFunc(ctx, l.abort)

	params := protocol.InitializeParams{ClientName: c.cfg.ClientName, SubcommandApprovals: c.cfg.Approvals.Decide != nil}
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

// Close ends the client and waits for everything that it has started here. The
// session lives on at the server until it expires. Calls and handles fail with
// [ErrClosed]; Close may be called more than once.
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

// begin starts a goroutine that Close waits for. It tells false, and starts nothing,
// when the client is closed.
func (c *Client) begin(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.routines.Go(f)
	return true
}

// Call makes any request of the protocol; result is a pointer to what the
// answer is read into, nil drops it. A refusal is a [ServerError]. The context
// bounds the wait for the answer: giving up on it does not undo the request.
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

// replay makes a request that may be carried out twice: it changes nothing, or the
// server knows it again. A loss of the connection does not end it.
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

// probe makes a request that the server has to answer within a limit, and takes a
// connection on which it does not for lost.
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

// Info describes the machine that the server runs on. The handshake mostly brings
// the answer; where it has not, the first call asks for it, for up to 30 s. The caller
// may not change it.
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
// with an error; there is no other status today.
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
	// The wire wants both lists, empty ones too.
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

// Installed tells which plugins and skills are installed for the user of the server, as far
// as they can be read under a sandbox; nil: all.
func (c *Client) Installed(ctx context.Context, s *protocol.Sandbox) (*protocol.DiscoverInstalledResult, error) {
	err := c.require(ctx, "capability discovery", func(c *protocol.Capabilities) bool { return c.CapabilityDiscoveryV2 })
	if err != nil {
		return nil, err
	}
	params := protocol.DiscoverInstalledParams{Cwd: protocol.NewPathURI("/"), Sandbox: s} // which changes nothing
	r := new(protocol.DiscoverInstalledResult)
	if err := c.replay(ctx, protocol.MethodDiscoverInstalled, &params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// require refuses what the server does not advertise.
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

// nextID returns an id that this client has not used before. An earlier client of
// the same session may have used it.
func (c *Client) nextID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	return c.lastID
}

// handles returns the processes that events come to.
func (c *Client) handles() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processesLocked()
}

func (c *Client) processesLocked() []*Process { return slices.Collect(maps.Values(c.processes)) }
