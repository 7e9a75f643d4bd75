package agent

import (
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Session is what a client comes back to after a lost connection: its
// processes. It is attached to one connection at a time; while it has none,
// output is retained and notifications are not made. Detached for longer than
// the TTL, it ends.
type Session struct {
	id    string
	agent *Agent

	// peer is where notifications go, nil while there is nobody.
	peer atomic.Pointer[rpc.Peer]

	mu          sync.Mutex // guards what follows
	connection  *connection
	attachments int // so far
	expiry      *time.Timer
	ended       bool
	processes   map[string]*process
	begun       uint64 // starts so far, for their order

	// forgetting counts the processes that are being disposed of while the
	// session lives; it grows only before ended is set.
	forgetting sync.WaitGroup
}

// process is one process of a session.
type process struct {
	*procs.Process // nil while it is being started
	id             string
	order          uint64
	started        chan struct{} // closed when the start is over, well or not
	doomed         bool          // to be terminated as soon as it has started
	wasRunning     bool          // what Terminate said of a doomed one; set before started is closed
	expiry         *time.Timer   // after the end
	box            *confinement  // nil: the request had no sandbox
	judge          sync.Once
	denied         bool // by judge
}

// sandboxDenied guesses whether the process, which has exited with code,
// failed because of its sandbox.
func (p *process) sandboxDenied(code int) bool {
	if p.box == nil {
		return false
	}
	p.judge.Do(func() { p.denied = looksDenied(code, p.Read(0, nil).Chunks) })
	return p.denied
}

// label names a session in logs: its whole id is all that a resume takes.
func label(id string) string { return id[:8] }

func newSession(a *Agent, id string) *Session {
	return &Session{id: id, agent: a, processes: map[string]*process{}}
}

// attachTo makes c the session's connection; false when there is one.
func (s *Session) attachTo(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection != nil || s.ended {
		return false
	}
	s.connection = c
	s.attachments++
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	return true
}

// announce lets notifications go to the session's connection from now on: its
// client knows of the session.
func (s *Session) announce(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection == c {
		s.peer.Store(c.peer)
	}
}

// detachedSince tells whether nobody has been attached since the attachment of
// that number ended.
func (s *Session) detachedSince(attachment int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connection == nil && s.attachments == attachment
}

// detach is the end of c's part.
func (s *Session) detach(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection != c {
		return
	}
	s.connection = nil
	s.peer.Store(nil)
	if s.ended {
		return
	}
	attached := s.attachments
	s.expiry = time.AfterFunc(s.agent.cfg.SessionTTL, func() { s.agent.expire(s, attached) })
}

// end kills the session's processes and forgets them. The session is out of
// the agent's hands already.
func (s *Session) end() {
	s.mu.Lock()
	s.ended = true
	if s.expiry != nil {
		s.expiry.Stop()
	}
	var all []*process
	for id, p := range s.processes {
		if p.Process != nil {
			all = append(all, p)
			delete(s.processes, id)
		}
	}
	s.mu.Unlock()
	running := make([]*procs.Process, len(all))
	for i, p := range all {
		running[i] = p.Process
	}
	procs.KillGroups(running...)
	for _, p := range all {
		s.dispose(p)
	}
	s.forgetting.Wait()
}

// dispose frees a process that is not in the session any more.
func (s *Session) dispose(p *process) {
	if p.expiry != nil {
		p.expiry.Stop()
	}
	_ = p.Close()
	p.box.release()
	s.agent.release(p) // after Close, behind which no event can retain it any more
}

// start takes the id, which is the client's choice, then calls confine, which
// returns nil without a sandbox, and starts the process. Its events flow after
// [procs.Process.Begin]. The confinement belongs to the process, and is released
// if the start fails.
func (s *Session) start(ctx context.Context, c *connection, id string, spec procs.Spec,
	confine func(*procs.Spec) (*confinement, error),
) (*process, error) {
	p, err := s.reserve(ctx, c, id)
	if err != nil {
		return nil, err
	}
	defer s.settle(p)
	running, err := s.launch(p, spec, confine)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	ended, doomed := s.ended, p.doomed
	if !ended {
		p.Process = running
	}
	s.mu.Unlock()
	if ended {
		_ = running.Close()
		return nil, s.errEnded()
	}
	if doomed {
		p.wasRunning = p.Terminate()
	}
	return p, nil
}

// settle ends the start of p. If nothing has started its id is free again.
func (s *Session) settle(p *process) {
	s.mu.Lock()
	if p.Process == nil {
		delete(s.processes, p.id)
		p.box.release()
	}
	s.mu.Unlock()
	close(p.started)
}

// reserve takes an id for a process that c starts. Where another connection,
// which was lost, began to start one, it waits for how that ends.
//
// A start whose connection has been lost by now is refused: the client may be
// back already, and has been told that there is no such process.
func (s *Session) reserve(ctx context.Context, c *connection, id string) (*process, error) {
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
			p := &process{id: id, order: s.begun, started: make(chan struct{})}
			s.processes[id] = p
			s.mu.Unlock()
			return p, nil
		}
		exists := other.Process != nil
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

// launch confines and executes what p is to be.
func (s *Session) launch(p *process, spec procs.Spec, confine func(*procs.Spec) (*confinement, error)) (*procs.Process, error) {
	var err error
	if p.box, err = confine(&spec); err != nil {
		return nil, err
	}
	spec.Sink = func(e procs.Event) { s.deliver(p, e) }
	running, err := procs.Start(spec)
	if err != nil {
		_ = spec.Cgroup.Close() // nobody was born there
	}
	return running, err
}

// await waits until the start of p is over, or ctx. It gives back the slot of
// the request: starting takes as long as a sandbox, or a busy machine, wants.
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

// process finds a process by its id, nil when there is none. While it is being
// started, for which another connection must have asked, it is waited for.
func (s *Session) process(ctx context.Context, id string) (*process, error) {
	for {
		s.mu.Lock()
		p := s.processes[id]
		starting := p != nil && p.Process == nil
		s.mu.Unlock()
		if !starting {
			return p, nil
		}
		if err := p.await(ctx); err != nil {
			return nil, err
		}
	}
}

// terminate kills a process as [procs.Process.Terminate] does. One that is
// being started is killed as soon as it has started, whether or not ctx ends
// before.
func (s *Session) terminate(ctx context.Context, id string) (running bool, err error) {
	s.mu.Lock()
	p := s.processes[id]
	starting := p != nil && p.Process == nil
	if starting {
		p.doomed = true
	}
	s.mu.Unlock()
	switch {
	case p == nil:
		return false, nil
	case !starting:
		return p.Terminate(), nil
	}
	err = p.await(ctx)
	return err == nil && p.wasRunning, err
}

// list is the session's processes, oldest first. Those that are being started
// are waited for.
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
	return slices.DeleteFunc(all, func(p *process) bool { return p.Process == nil }), nil
}

// deliver announces one event of a process to the attached client, if there
// is one. It blocks while that client does not read: so the process waits,
// and no output is lost.
func (s *Session) deliver(p *process, e procs.Event) {
	if e.Kind == procs.Exited {
		p.box.release()
	}
	if peer := s.peer.Load(); peer != nil {
		// An error means that the connection is gone; what it missed is in
		// the retained output.
		switch e.Kind {
		case procs.Output:
			n := protocol.OutputNotification{ProcessID: p.id}
			n.Seq, n.Stream, n.Chunk = e.Seq, e.Stream.String(), e.Data
			_ = peer.Notify(protocol.MethodProcessOutput, &n)
		case procs.Exited:
			_ = peer.Notify(protocol.MethodProcessExited, &protocol.ExitedNotification{
				ProcessID: p.id, Seq: e.Seq, ExitCode: e.ExitCode, SandboxDenied: p.sandboxDenied(e.ExitCode)})
		case procs.Closed:
			_ = peer.Notify(protocol.MethodProcessClosed,
				&protocol.ClosedNotification{ProcessID: p.id, Seq: e.Seq})
		}
	}
	if e.Kind == procs.Closed {
		s.retain(p)
	}
}

// retain keeps a process that has ended for the TTL.
func (s *Session) retain(p *process) {
	s.mu.Lock()
	if s.ended || s.processes[p.id] != p {
		s.mu.Unlock()
		return
	}
	p.expiry = time.AfterFunc(s.agent.cfg.SessionTTL, func() { s.forget(p) })
	s.mu.Unlock()
	s.agent.retain(s, p)
}

// forget frees the id of an ended process and kills what is left of its
// group.
func (s *Session) forget(p *process) {
	s.mu.Lock()
	known := s.processes[p.id] == p
	if known {
		delete(s.processes, p.id)
		s.forgetting.Add(1)
	}
	s.mu.Unlock()
	if known {
		s.dispose(p)
		s.forgetting.Done()
	}
}
