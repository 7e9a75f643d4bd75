package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Defaults of [Config] (client.md 1.1).
const (
	DefaultClientName        = "execagent-client"
	DefaultConnectTimeout    = 10 * time.Second
	DefaultInitializeTimeout = 10 * time.Second
)

// Config says how to connect. Only Dial has no usable zero value.
type Config struct {
	// Dial opens a connection: transport.Dial and transport.StartCommand do.
	// The client closes what it returns.
	Dial func(ctx context.Context) (rpc.Conn, error)
	// ClientName tells the server who calls, "" for [DefaultClientName].
	ClientName string
	// ResumeSessionID is a session to come back to, "" for a new one.
	ResumeSessionID string
	// ConnectTimeout bounds Dial, InitializeTimeout the handshake after it; 0
	// for 10 s each.
	ConnectTimeout, InitializeTimeout time.Duration
}

// Client is one session on a server. Its methods may be called at once.
type Client struct {
	sessionID  string
	connection *connection

	mu        sync.Mutex // guards what follows
	info      *protocol.EnvironmentInfo
	processes map[string]*Process
	bodies    map[string]*body
	lastID    uint64 // of file handles and HTTP requests
	closed    bool

	cleanups sync.WaitGroup // goroutines that end, at the server, what the caller has given up
}

var errClientClosed = errors.New("client closed")

// Connect opens a connection and a session on it. The context bounds these two
// steps, and nothing later. The caller closes the client. Errors: [ConnectError],
// [InitializeTimeoutError], [DisconnectedError], [ServerError] (such as
// protocol.CodeSessionAttached on a resume), [ProtocolError].
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.ClientName == "" {
		cfg.ClientName = DefaultClientName
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.InitializeTimeout <= 0 {
		cfg.InitializeTimeout = DefaultInitializeTimeout
	}
	conn, err := dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := &Client{processes: map[string]*Process{}, bodies: map[string]*body{}}
	// The reader runs before initialize is sent: a busy process of a resumed
	// session could otherwise keep its answer away.
	c.connection = c.start(conn)
	if err := c.initialize(ctx, cfg); err != nil {
		c.connection.close(err)
		return nil, err
	}
	return c, nil
}

func dial(ctx context.Context, cfg Config) (rpc.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()
	conn, err := cfg.Dial(ctx)
	if err != nil {
		return nil, &ConnectError{Err: err}
	}
	return conn, nil
}

// initialize does the handshake (client.md 1.3).
func (c *Client) initialize(parent context.Context, cfg Config) error {
	timeout := &InitializeTimeoutError{After: cfg.InitializeTimeout}
	ctx, cancel := context.WithTimeoutCause(parent, cfg.InitializeTimeout, timeout)
	defer cancel()
	// A server that does not read would keep Call waiting in its write; abort ends
	// that.
	stop := context.AfterFunc(ctx, c.connection.abort)

	params := protocol.InitializeParams{ClientName: cfg.ClientName}
	if cfg.ResumeSessionID != "" {
		params.ResumeSessionID = &cfg.ResumeSessionID
	}
	var result protocol.InitializeResult
	err := c.connection.call(ctx, protocol.MethodInitialize, &params, &result)
	if err == nil {
		err = c.connection.peer.Notify(protocol.MethodInitialized, protocol.Empty{})
	}
	switch {
	case !stop():
		return context.Cause(ctx)
	case err != nil:
		return err
	case result.SessionID == "":
		return protocolErrorf("initialize answered without a session id")
	case cfg.ResumeSessionID != "" && result.SessionID != cfg.ResumeSessionID:
		return protocolErrorf("exec-server initialized an unexpected session %.128s", result.SessionID)
	}
	c.sessionID = result.SessionID
	c.info = result.EnvironmentInfo
	return nil
}

// SessionID names the session, for a later [Config.ResumeSessionID].
func (c *Client) SessionID() string { return c.sessionID }

// Done is closed when the connection is gone, lost or closed.
func (c *Client) Done() <-chan struct{} { return c.current().done }

// Close ends the connection and waits for everything that the client has
// started here. The session lives on at the server until it expires. Handles
// fail; Close may be called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.current().close(errClientClosed)
	c.cleanups.Wait()
	return nil
}

// Call makes any request of the protocol; result is a pointer to what the
// answer is read into, nil drops it. A refusal is a [ServerError]. The context
// bounds the wait for the answer: giving up on it does not undo the request.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	return c.current().call(ctx, method, params, result)
}

// current returns the connection. After the handshake all other code gets the
// connection here, so that a client which recovers from its loss (client.md 2) could
// wait here for the next one.
func (c *Client) current() *connection { return c.connection }

// Info describes the machine that the server runs on. The handshake mostly brings
// the answer; where it has not, the first call asks for it. The caller may not
// change it.
func (c *Client) Info(ctx context.Context) (*protocol.EnvironmentInfo, error) {
	c.mu.Lock()
	info := c.info
	c.mu.Unlock()
	if info != nil {
		return info, nil
	}
	info = new(protocol.EnvironmentInfo)
	if err := c.Call(ctx, protocol.MethodEnvironmentInfo, protocol.Empty{}, info); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.info == nil {
		c.info = info
	}
	return c.info, nil
}

// Status asks whether the server is ready. A server that is not answers with an
// error; there is no other status today.
func (c *Client) Status(ctx context.Context) (string, error) {
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
	if err := c.Call(ctx, protocol.MethodConfigRead, &params, r); err != nil {
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
