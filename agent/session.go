package agent

import (
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/agent/internal/audit"
	"github.com/execagent/execagent/agent/internal/snapshot"
	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Session holds the processes and sockets that a client finds again after a lost
// connection. It is attached to one connection at a time. While it has no connection,
// output is retained and no notification is sent. It ends after its retention time
// without a connection. For a session with a name, that time only begins when none of
// its processes runs any more.
type Session struct {
	id        string
	agent     *Agent
	principal string // in whose names name is looked up; "": of all clients without a principal
	owner     string // whose shares it uses up, see connection.owner
	name      string // "": none
	created   time.Time
	audit     *audit.SessionLog

	// peer gets the notifications; nil while no client knows of the session.
	peer atomic.Pointer[rpc.Peer]
	// refusals says that the client of peer wants to know what was refused. It is set before peer.
	refusals atomic.Bool

	mu          sync.Mutex // guards what follows
	connection  *connection
	client      string // the last client's name for itself
	attachments int    // number of attachments so far
	retention   time.Duration
	expiry      *time.Timer // nil: something holds the session
	expires     time.Time   // when expiry fires
	ended       bool
	holders     []string // those who made the session or started a process in it
	processes   map[string]*process
	asked       map[*question]struct{}
	live        int    // processes that have not closed, also those that are being started
	begun       uint64 // number of starts so far, for the order of processes
	past        past   // starts whose processes are forgotten

	sockets   *sockets.Set   // has a lock of its own
	reports   egress.Reports // of the networks of processes, too
	snapshots snapshot.Set   // too
	desk      approval.Desk  // for the questions about commands, too

	// forgetting counts the processes that are being disposed of while the
	// session lives. None is added once ended is set.
	forgetting sync.WaitGroup
}

// proc is what a session needs of a [procs.Process]. Tests of what a session does have others.
type proc interface {
	Begin()
	StartClock()
	TryWrite(id string, data []byte) (procs.WriteStatus, error)
	Write(ctx context.Context, id string, data []byte) (procs.WriteStatus, error)
	CloseStdin() (procs.WriteStatus, error)
	Signal(sig syscall.Signal)
	Resize(size procs.Winsize) error
	Terminate() (running bool)
	Close() error

	Read(after uint64, maxBytes *uint64) procs.Snapshot
	Kept() int64
	Ready(after uint64) bool
	Wait(ctx context.Context, after uint64) error
	WaitExit(ctx context.Context) error
	State() (exited bool, exitCode int, closed bool, nextSeq uint64)
	ExitedAt() time.Time

	PID() int
	Argv() []string
	TTY() bool
	StartedAt() time.Time
}

// execute is [procs.Start] as an agent begins with it.
func execute(spec procs.Spec) (proc, error) {
	p, err := procs.Start(spec)
	if err != nil {
		return nil, spawnError(&spec, err)
	}
	return p, nil
}

// process is one process of a session.
type process struct {
	proc    // nil while it is being started
	id      string
	startID string // of the request that began to start it; "": none
	order   uint64
	// started is closed when the start has succeeded or failed.
	started chan struct{}
	// doomed says that the process must be terminated as soon as it has started.
	// wasRunning is then the answer of Terminate, set before started is closed.
	doomed, wasRunning bool
	expiry             *time.Timer // forgets the process, after its end
	releaseFDs         func()      // gives its descriptors back, but the last one
	releaseLastFD      func()      // gives the last one back, that of its group
	answer             protocol.StartResult
	resources          // set when it has started, as answer
	approvals          *approval.ProcessQuestions
	audit              *audit.ProcessLog
	denialOnce         sync.Once // sets denied
	denied             bool
}

// sandboxDenied guesses whether the process, which exited with code, failed
// because of its sandbox. It guesses only once, so that all answers agree.
func (p *process) sandboxDenied(code int) bool {
	if p.box == nil {
		return false
	}
	p.denialOnce.Do(func() { p.denied = approval.LooksDenied(code, p.Read(0, nil).Chunks) })
	return p.denied
}

func newSession(a *Agent, id, owner string) *Session {
	s := &Session{
		id: id, agent: a, owner: owner, created: time.Now(), retention: a.cfg.SessionTTL, processes: map[string]*process{},
		sockets: sockets.NewSet(a.sockets, owner), audit: a.audit.Session(audit.Label(id), owner),
		snapshots: snapshot.Set{Budget: a.snapshots, Owner: owner, Time: a.snapshotTime},
	}
	s.reports.Tell = func(d *protocol.PolicyDecision) bool {
		peer := s.peer.Load()
		return peer != nil && peer.Notify(protocol.MethodNetworkPolicyDecision, d) == nil
	}
	s.desk.Ask, s.desk.Tell, s.desk.Note = s.ask, s.tell, s.note
	return s
}

// attachTo makes c the connection of the session, which the agent still knows. It fails if the
// session has a connection, unless the session has a name and o.take is set. The caller holds the
// agent's mutex.
func (s *Session) attachTo(c *connection, o opening) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.connection == nil:
	case s.name == "":
		return protocol.Errorf(protocol.CodeSessionAttached, "session %s is already attached to another connection", s.id)
	case !o.take:
		return protocol.Errorf(protocol.CodeSessionAttached, "session %s is already attached to another connection, of %q", s.name, s.client)
	default:
		s.muteLocked()
		s.connection.leaveLocked(o.client)
	}
	s.agent.shelved.Remove(s.owner, s)
	s.connection, s.client = c, o.client
	s.attachments++
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if o.retain != nil {
		s.retention = min(*o.retain, s.longest())
	}
	return nil
}

// heldByLocked notes that a holder made the session or started a process in it.
func (s *Session) heldByLocked(holder string) {
	if holder != "" && !slices.Contains(s.holders, holder) {
		s.holders = append(s.holders, holder)
	}
}

// has returns the holders of the session.
func (s *Session) has() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.holders)
}

// longest returns how long the session may be kept while nothing holds it.
func (s *Session) longest() time.Duration {
	if s.name != "" {
		return s.agent.cfg.NamedSessionTTL
	}
	return s.agent.cfg.SessionTTL
}

// opened describes the session to its client. It is nil where there is nothing to say,
// because the reference has no such sessions.
func (s *Session) opened(created bool, o opening) *protocol.OpenedSession {
	if s.name == "" && o.retain == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &protocol.OpenedSession{Name: s.name, Created: created, RetainMs: uint64(s.retention.Milliseconds())}
}

// announce sends notifications to c from now on, if c is still attached. The
// client of c already knows its session.
func (s *Session) announce(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection == c {
		s.refusals.Store(c.refusals)
		s.peer.Store(c.peer)
		s.reports.Resume()
		s.desk.Attach(c.approves)
	}
}

// detachedSince reports whether the attachment with that number has ended and
// was the last one.
func (s *Session) detachedSince(attachment int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connection == nil && s.attachments == attachment
}

// detach ends the attachment of c, and starts the retention time if nothing holds the session. It
// returns false if c was not attached, because another connection took the session. running is the
// number of running processes.
func (s *Session) detach(c *connection) (running int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection != c {
		return s.live, false
	}
	s.connection = nil
	s.muteLocked()
	s.startExpiryLocked()
	return s.live, true
}

// isIdle reports whether nobody is attached to the session and nothing runs in it.
func (s *Session) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connection == nil && s.live == 0
}

// startExpiryLocked starts the retention time, if nothing holds the session. This happens at most
// once per attachment, because without a connection no process is started. Processes do not hold
// a session without a name, so its time may begin before [Agent.shelve] notes the session.
func (s *Session) startExpiryLocked() {
	if s.ended || s.connection != nil || s.name != "" && s.live > 0 {
		return
	}
	attached := s.attachments
	s.expires = time.Now().Add(s.retention)
	s.expiry = time.AfterFunc(s.retention, func() { s.agent.expire(s, attached) })
}

// closedLocked notes that a process no longer runs, or was not started.
func (s *Session) closedLocked() {
	s.live--
	if s.name != "" {
		s.startExpiryLocked()
	}
}

// end kills the processes of the session, closes its sockets, and forgets both. The
// agent has already forgotten the session.
func (s *Session) end() {
	s.mu.Lock()
	s.ended = true
	if s.expiry != nil {
		s.expiry.Stop()
	}
	var all []*process
	for id, p := range s.processes {
		if p.proc != nil {
			all = append(all, p)
			delete(s.processes, id)
		}
	}
	s.mu.Unlock()
	killGroups(all)
	s.sockets.CloseAll()
	s.snapshots.Close()
	for _, p := range all {
		s.dispose(p)
	}
	s.forgetting.Wait()
	s.reports.Close()
}

// killGroups kills the groups of processes, with only one look at the host.
func killGroups(all []*process) {
	var running []*procs.Process
	for _, p := range all {
		if real, ok := p.proc.(*procs.Process); ok {
			running = append(running, real)
		}
	}
	procs.KillGroups(running...)
}

// dispose ends a process that is no longer in the session, and releases
// everything that it holds.
func (s *Session) dispose(p *process) {
	if p.expiry != nil {
		p.expiry.Stop()
	}
	p.approvals.Ending()
	_ = p.Close()
	p.approvals.Terminated()
	p.audit.Killed()
	p.release()
	p.releaseFDs()
	p.releaseLastFD()
	s.agent.release(s, p) // after Close: until then an event could retain it
}

// start reserves the id that the client chose, and starts the process. Events flow after
// [procs.Process.Begin].
func (s *Session) start(ctx context.Context, c *connection, l *launch) (*process, error) {
	p, err := s.reserve(ctx, c, l.params)
	if err != nil {
		return nil, err
	}
	defer s.settle(p)
	takes := int64(perProcess)
	if l.params.Sandbox != nil || l.proxy != nil {
		takes *= 2
	}
	if l.refused != nil {
		takes++
	}
	if p.releaseFDs, err = takeDescriptors(s.owner, takes-1); err != nil {
		return nil, err
	}
	if p.releaseLastFD, err = takeDescriptors(s.owner, 1); err != nil {
		p.releaseFDs()
		return nil, err
	}
	began := time.Now()
	l.spec.Expired = func() { p.network.Close() } // as kill does
	l.spec.Sink, l.spec.Freed = func(e procs.Event) { s.deliver(p, e) }, p.releaseLastFD
	if s.agent.cfg.TellRefusals {
		l.spec.Last = func(code int) []byte { return s.lastWords(p, code) }
	}
	running, err := begin(ctx, l, startSteps, s.agent.start)
	if err != nil {
		p.releaseFDs()
		p.releaseLastFD()
		return nil, err
	}
	s.agent.metrics.Started(l.box, time.Since(began))
	s.mu.Lock()
	ended, doomed := s.ended, p.doomed
	if !ended {
		p.proc, p.resources, p.answer = running, l.resources, l.answer()
		p.audit = s.audit.Started(l.spec.Argv[0], running.PID(), l.spec.TTY, p.box.Names())
		p.approvals = s.desk.Open(l.plan, p.id, runner{p}, p.questions())
	}
	s.mu.Unlock()
	if ended {
		_ = running.Close()
		l.release()
		p.releaseFDs()
		p.releaseLastFD()
		return nil, s.errEnded()
	}
	if !l.plan.IsPending() {
		p.StartClock()
	}
	if doomed {
		p.wasRunning = p.kill()
	}
	return p, nil
}

func (p *process) hasExited() bool {
	exited, _, _, _ := p.State()
	return exited
}

// kill kills the process, and closes its network without waiting for the last event, because a
// daemon left by the process can hold its output open and delay that event.
func (p *process) kill() (running bool) {
	p.approvals.Ending()
	running = p.Terminate()
	p.approvals.Terminated()
	p.network.Close()
	return running
}

// settle ends the start of p. If the start failed, the id is free again.
func (s *Session) settle(p *process) {
	s.mu.Lock()
	failed := p.proc == nil
	if failed {
		delete(s.processes, p.id)
		s.closedLocked()
	}
	s.mu.Unlock()
	close(p.started)
	if failed {
		s.agent.shelve(s)
	}
}

// reserve takes an id for a process that c starts. If an earlier, lost connection
// began to start a process with that id, reserve waits until that start has
// succeeded or failed.
//
// If c itself is lost by now, the start is refused, because the client may be
// back already and may have been told that there is no such process.
func (s *Session) reserve(ctx context.Context, c *connection, params *protocol.StartParams) (*process, error) {
	id := params.ProcessID
	for {
		s.mu.Lock()
		if s.ended {
			s.mu.Unlock()
			return nil, s.errEnded()
		}
		if s.connection != c {
			s.mu.Unlock()
			return nil, rpc.ErrClosed
		}
		other := s.processes[id]
		if other == nil {
			s.begun++
			s.live++
			s.heldByLocked(c.holder)
			p := &process{id: id, startID: params.StartID, order: s.begun, started: make(chan struct{})}
			s.processes[id] = p
			s.mu.Unlock()
			return p, nil
		}
		exists := other.proc != nil
		s.mu.Unlock()
		if exists {
			return nil, protocol.InvalidRequest("process %.256s already exists", id)
		}
		if err := other.await(ctx); err != nil {
			return nil, err
		}
	}
}

func (s *Session) errEnded() error { return protocol.InvalidRequest("session %s has ended", s.id) }

// await waits until the start of p is over, or ctx ends. The waiting request
// gives up its slot, so that others run: a start may take long, because of its
// sandbox or a busy machine.
func (p *process) await(ctx context.Context) error {
	if err := rpc.Block(ctx); err != nil {
		return err
	}
	select {
	case <-p.started:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// process finds a process by its id; nil if there is none. It waits for a process
// that is being started. Only an earlier connection can have asked for that start,
// because requests of one connection for one process wait for each other.
func (s *Session) process(ctx context.Context, id string) (*process, error) {
	for {
		s.mu.Lock()
		p := s.processes[id]
		starting := p != nil && p.proc == nil
		s.mu.Unlock()
		if !starting {
			return p, nil
		}
		if err := p.await(ctx); err != nil {
			return nil, err
		}
	}
}

// terminate kills a process as [procs.Process.Terminate] does. A process that is
// being started is killed as soon as it has started, even if ctx has ended by then.
func (s *Session) terminate(ctx context.Context, id string) (running bool, err error) {
	s.mu.Lock()
	p := s.processes[id]
	starting := p != nil && p.proc == nil
	if starting {
		p.doomed = true
	}
	s.mu.Unlock()
	switch {
	case p == nil:
		return false, nil
	case !starting:
		return p.kill(), nil
	}
	err = p.await(ctx)
	return err == nil && p.wasRunning, err
}

// list returns the processes of the session, oldest first. It waits for those
// that are being started.
func (s *Session) list(ctx context.Context) ([]*process, error) {
	var all []*process
	s.mu.Lock()
	for _, p := range s.processes {
		all = append(all, p)
	}
	s.mu.Unlock()
	sort.Slice(all, func(i, j int) bool { return all[i].order < all[j].order })
	for _, p := range all {
		select {
		case <-p.started:
		default:
			if err := p.await(ctx); err != nil {
				return nil, err
			}
		}
	}
	return slices.DeleteFunc(all, func(p *process) bool { return p.proc == nil }), nil
}

// deliver takes one event of a process. It blocks while the attached client does not read. The
// process then waits too, so no output is lost.
func (s *Session) deliver(p *process, e procs.Event) {
	s.observe(p, e)
	if peer := s.peer.Load(); peer != nil {
		p.announce(peer, e, s.refusals.Load())
	}
	if e.Kind == procs.Closed {
		s.retain(p)
	}
}

// observe does the agent's own work for an event, before the client hears of it. Two resources end
// here, and not with the process, because the process may be kept long after its end.
func (s *Session) observe(p *process, e procs.Event) {
	switch e.Kind {
	case procs.Output:
		s.agent.metrics.output[e.Stream].Add(len(e.Data))
	case procs.Exited:
		p.approvals.Exited()
		p.audit.Exited(e.ExitCode)
		s.gather(p, e.ExitCode)
		// A client that hears of the exit must find no placeholders in its workspace any more.
		p.box.Release()
		s.agent.metrics.Exited(e.ExitCode, p.box)
	case procs.Closed:
		// The client must have heard all about the network before the last event of the process.
		if p.network.Close(); p.network != nil {
			s.reports.Flush()
		}
		p.releaseFDs()
	}
}

// announce tells a client of an event. It ignores errors: they mean that the connection is
// gone, and the retained output has everything that the client misses.
func (p *process) announce(peer *rpc.Peer, e procs.Event, refusals bool) {
	switch e.Kind {
	case procs.Output:
		n := protocol.OutputNotification{ProcessID: p.id}
		n.Seq, n.Stream, n.Chunk, n.Omitted = e.Seq, e.Stream.String(), e.Data, e.Omitted
		_ = peer.Notify(protocol.MethodProcessOutput, &n)
	case procs.Exited:
		n := protocol.ExitedNotification{ProcessID: p.id, Seq: e.Seq, ExitCode: e.ExitCode, SandboxDenied: p.sandboxDenied(e.ExitCode), Ending: protocol.Ending(e.Ending)}
		if refusals {
			n.Refusals = p.refused.all()
		}
		_ = peer.Notify(protocol.MethodProcessExited, &n)
	case procs.Closed:
		_ = peer.Notify(protocol.MethodProcessClosed, &protocol.ClosedNotification{ProcessID: p.id, Seq: e.Seq})
	}
}

// retain keeps an ended process for the TTL, or, if the session has a name, as long as the
// session.
func (s *Session) retain(p *process) {
	s.mu.Lock()
	if s.ended || s.processes[p.id] != p {
		s.mu.Unlock()
		return
	}
	s.closedLocked()
	if s.name == "" {
		p.expiry = time.AfterFunc(s.agent.cfg.SessionTTL, func() { s.forget(p) })
	}
	s.mu.Unlock()
	s.agent.retain(s, p)
	s.agent.shelve(s)
}

// forget frees the id of an ended process and kills the rest of its process
// group.
func (s *Session) forget(p *process) {
	s.mu.Lock()
	known := s.processes[p.id] == p
	if known {
		delete(s.processes, p.id)
		s.past.add(p.startID)
		s.forgetting.Add(1)
	}
	s.mu.Unlock()
	if known {
		s.dispose(p)
		s.forgetting.Done()
	}
}
