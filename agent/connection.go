package agent

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/agent/internal/audit"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/httpclient"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// connection is the connection of one client: its lifecycle (rpc.md 3), and
// everything that ends with it.
type connection struct {
	agent     *Agent
	peer      *rpc.Peer
	principal string // of the other end, see rpc.Identified
	holder    string // of the right to connect, which may be revoked, see rpc.Revocable
	owner     string // of the shares that it uses up: the principal, else the holder
	remote    string // address of the other end
	phase     atomic.Int32
	approves  bool // the client answers questions about commands
	refusals  bool // the client wants to know what was refused to its processes
	errorData bool // the client wants to know the causes of errors

	session *Session // set by initialize, which runs before all other requests, as audit
	audit   *audit.ClientLog
	handles fsops.Handles
	watches watches[*fileWatch]
	ports   watches[*portWatch]
	// policies are the policies of its file requests.
	policies policies
	// http has the connections to servers that its requests use, and those of nobody else.
	http *httpclient.Client
	// answers, listings and bodies bound how many bytes of each this connection
	// holds, see agent/internal/answers/memory.go.
	answers, listings, bodies *semaphore.Weighted

	mu       sync.Mutex      // guards what follows
	files    int64           // descriptors that are counted for handles, also for closed ones until releaseHandles
	opening  int64           // of them for handles that are being opened, which handles.Len may not count yet
	watch    *fsops.Watch    // of fs/watchMissing
	watched  int64           // directories that are counted for it
	watchIDs uint64          // highest id used
	streams  map[string]bool // request ids of the HTTP bodies being streamed

	notifiers sync.WaitGroup // goroutines that wait for a watch or stream a body
}

// share returns the part of an answer in a memory of the connection, and in that of its owner.
func (c *connection) share(own *semaphore.Weighted) answers.Share {
	return answers.Share{Own: own, Total: c.agent.content, Owner: c.owner}
}

// Phases of a connection.
const (
	phaseNew         int32 = iota
	phaseInitialized       // initialize has succeeded
	phaseReady             // and the client has sent initialized
	phaseTaken             // another client has taken the session
)

func newConnection(a *Agent, conn rpc.Conn) *connection {
	c := &connection{
		agent:    a,
		remote:   audit.Place(conn),
		answers:  semaphore.NewWeighted(answers.MaxAnswers),
		listings: semaphore.NewWeighted(answers.MaxListings),
		bodies:   semaphore.NewWeighted(answers.MaxBodies),
		http:     a.http.New(),
		streams:  map[string]bool{},
	}
	if known, ok := conn.(rpc.Identified); ok {
		c.principal = known.Principal()
	}
	if revocable, ok := conn.(rpc.Revocable); ok {
		c.holder = revocable.Holder()
	}
	if c.owner = c.principal; c.owner == "" && c.holder != "" {
		c.owner = "key:" + c.holder
	}
	c.policies.owner, c.policies.cfg = c.owner, &a.cfg
	c.peer = rpc.NewPeer(conn, rpc.Config{
		Table:        c.table(),
		Notification: c.notification,
		WireError:    c.wireError,
		Closing:      c.closing,
		Answered:     a.metrics.Answered,
		Concurrency:  a.cfg.ConcurrentRequests,
		Forgets:      true,
		Logger:       a.cfg.Logger,
	})
	return c
}

// serve runs the connection until it ends.
func (c *connection) serve(ctx context.Context) error {
	err := c.peer.Serve(ctx)
	c.setWatch(nil, 0)
	c.watches.end()
	c.ports.end()
	c.notifiers.Wait()
	c.handles.CloseAll()
	c.releaseHandles()
	c.http.Close()
	return err
}

// closing detaches the session as soon as the connection is lost, even while
// handlers run, because the client may be on its way back. A client that may
// not come back loses its session.
func (c *connection) closing(err error) {
	if c.session == nil {
		return
	}
	running, attached := c.session.detach(c)
	c.agent.shelve(c.session)
	c.audit.Detach(running)
	if attached && errors.Is(err, rpc.ErrRevoked) && !c.agent.cfg.KeepRevoked {
		c.agent.revoke(c.session)
	}
}

// notification takes `initialized`. Any other notification is answered with an error
// and ends the connection (rpc.md 2.5).
func (c *connection) notification(_ context.Context, method string, _ json.RawMessage) error {
	if method != protocol.MethodInitialized {
		return protocol.InvalidRequest("unknown notification `%.128s`", method)
	}
	if c.phase.Load() == phaseNew {
		return protocol.InvalidRequest("initialized before a successful initialize")
	}
	if c.phase.Load() == phaseInitialized {
		// A request that was sent before initialized is refused, however late
		// its handler would run.
		c.peer.Settle()
	}
	c.phase.CompareAndSwap(phaseInitialized, phaseReady)
	return nil
}

// ready refuses a request that comes before the handshake.
func (c *connection) ready(family string) error {
	switch c.phase.Load() {
	case phaseNew:
		return protocol.InvalidRequest("client must call initialize before using %s methods", family)
	case phaseInitialized:
		return protocol.InvalidRequest("client must send initialized before using %s methods", family)
	case phaseTaken:
		return protocol.InvalidRequest("another client has taken the session")
	}
	if family != famStatus && family != famInfo {
		c.audit.Use()
	}
	return nil
}

// initializeResult lets notifications flow once the client has its answer,
// because before that the client does not know its session.
type initializeResult struct {
	protocol.InitializeResult
	connection *connection
}

// Sent also starts the probe of the host. If it started earlier, its programs would
// delay the answer that the client waits for.
func (r *initializeResult) Sent() {
	r.connection.session.announce(r.connection)
	r.connection.agent.probe()
}

func (c *connection) initialize(_ context.Context, p protocol.InitializeParams) (*initializeResult, error) {
	if c.phase.Load() != phaseNew {
		return nil, protocol.InvalidRequest("initialize may only be sent once per connection")
	}
	var (
		s       *Session
		created bool
		err     error
	)
	asked := openingOf(&p)
	if p.ResumeSessionID != nil {
		s, err = c.agent.resume(*p.ResumeSessionID, c, asked)
	} else {
		s, created, err = c.agent.open(c, asked)
	}
	if err != nil {
		return nil, err
	}
	c.session = s
	c.approves, c.refusals, c.errorData = p.SubcommandApprovals && c.agent.cfg.Confines, p.Refusals, p.ErrorData
	c.phase.CompareAndSwap(phaseNew, phaseInitialized)
	c.audit = s.audit.Attach(asked.client, c.owner, c.remote, !created)
	r := &initializeResult{connection: c}
	r.SessionID = c.session.id
	r.EnvironmentInfo = c.agent.info()
	r.Session = s.opened(created, asked)
	return r, nil
}
