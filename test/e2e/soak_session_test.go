package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Codes of rpc.md 2.2 that the soak test tells apart.
const (
	codeInvalid  = -32600
	codeNoMethod = -32601
	codeNotFound = -32004
	codeAttached = -32010
)

// A soakSession is one session that outlives its connections. Run keeps it connected and cuts it
// at random.
type soakSession struct {
	url    string
	random *rand.Rand // used by run only
	fail   context.CancelCauseFunc

	mu        sync.Mutex
	id        string
	conn      *soakConn     // nil while there is none
	connected chan struct{} // closed when conn is set, replaced when it is lost
	processes map[string]*soakProcess
	cuts      int
	nextName  int
}

func newSoakSession(url string, seed uint64, fail context.CancelCauseFunc) *soakSession {
	return &soakSession{
		url: url, random: rand.New(rand.NewPCG(seed, 1)), fail: fail,
		connected: make(chan struct{}), processes: map[string]*soakProcess{},
	}
}

// run connects, lets the session work for a while, cuts the connection and starts over, until
// done is closed.
func (s *soakSession) run(ctx context.Context, done <-chan struct{}) error {
	for {
		c, err := s.attach(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.conn = c
		close(s.connected)
		s.mu.Unlock()
		finished := false
		select {
		case <-time.After(time.Duration(20+s.random.IntN(700)) * time.Millisecond):
		case <-c.ended:
			err = errors.New("the agent ended the connection by itself")
		case <-done:
			finished = true
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.mu.Lock()
		s.conn, s.connected = nil, make(chan struct{})
		s.cuts++
		s.mu.Unlock()
		c.end(cut(s.random.IntN(int(cutKinds))))
		if err != nil || finished {
			return err
		}
		if s.random.IntN(2) == 0 { // stay away for a while, so that output is produced meanwhile
			select {
			case <-time.After(time.Duration(s.random.IntN(300)) * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// attach opens a connection, begins or resumes the session and reads what the processes wrote
// meanwhile.
func (s *soakSession) attach(ctx context.Context) (*soakConn, error) {
	last := map[string]uint64{} // per process, on this connection
	c, err := dialSoak(ctx, s.url, func(method string, params json.RawMessage) {
		if err := s.notified(last, method, params); err != nil {
			s.fail(err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("dialing: %w", err)
	}
	params := map[string]any{"clientName": "soak"}
	if s.id != "" {
		params["resumeSessionId"] = s.id
	}
	var hello struct {
		SessionID string `json:"sessionId"`
	}
	for start := time.Now(); ; {
		err = c.call(ctx, "initialize", params, &hello)
		remote, ok := errors.AsType[*remoteError](err)
		if !ok || remote.Code != codeAttached || time.Since(start) > 10*time.Second {
			break
		}
	}
	if err == nil {
		err = c.notification("initialized")
	}
	if err != nil {
		c.end(cutFinish)
		return nil, fmt.Errorf("session %q: %w", s.id, err)
	}
	s.id = hello.SessionID
	s.mu.Lock()
	var live []*soakProcess
	for _, p := range s.processes {
		select {
		case <-p.complete:
		default:
			live = append(live, p)
		}
	}
	s.mu.Unlock()
	for _, p := range live {
		if err := p.catchUp(ctx, c); err != nil {
			c.end(cutFinish)
			return nil, fmt.Errorf("process %s: catching up: %w", p.id, err)
		}
	}
	return c, nil
}

// call makes a request on the connection of the moment, waiting for one if there is none.
func (s *soakSession) call(ctx context.Context, method string, params, result any) error {
	s.mu.Lock()
	c, connected := s.conn, s.connected
	s.mu.Unlock()
	for c == nil {
		select {
		case <-connected:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.mu.Lock()
		c, connected = s.conn, s.connected
		s.mu.Unlock()
	}
	return c.call(ctx, method, params, result)
}

// persist repeats a request until it is answered. When a second attempt is refused with the code
// done, the first one was carried out; done is 0 where there is no such code.
func (s *soakSession) persist(ctx context.Context, method string, params, result any, done int) error {
	for attempt := 0; ; attempt++ {
		err := s.call(ctx, method, params, result)
		if errors.Is(err, errCut) {
			continue
		}
		if remote, ok := errors.AsType[*remoteError](err); ok && attempt > 0 && remote.Code == done {
			return nil
		}
		return err
	}
}

// name returns an id that the session has not used.
func (s *soakSession) name(kind string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextName++
	return fmt.Sprintf("%s-%d", kind, s.nextName)
}

func (s *soakSession) notified(last map[string]uint64, method string, raw json.RawMessage) error {
	var n struct {
		ProcessID string `json:"processId"`
		soakEvent
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return fmt.Errorf("notification %q %s: %w", method, raw, err)
	}
	s.mu.Lock()
	p := s.processes[n.ProcessID]
	s.mu.Unlock()
	if p == nil {
		return fmt.Errorf("notification %s of unknown process %q", method, n.ProcessID)
	}
	if n.Seq <= last[n.ProcessID] && *flagSoakAgent == "" { // the reference does not promise it

		return fmt.Errorf("process %s: notification %d after %d", n.ProcessID, n.Seq, last[n.ProcessID])
	}
	last[n.ProcessID] = n.Seq
	switch method {
	case "process/output":
		return p.output(n.soakEvent)
	case "process/exited":
		return p.exited(n.Seq, n.ExitCode)
	case "process/closed":
		return p.closed(n.Seq)
	}
	return fmt.Errorf("notification of unknown method %q", method)
}

type soakEvent struct {
	Seq      uint64 `json:"seq"`
	Stream   string `json:"stream"`
	Chunk    []byte `json:"chunk"`
	ExitCode int    `json:"exitCode"`
}

// A soakProcess puts together what notifications and reads tell of one process.
type soakProcess struct {
	id       string
	argv     []string
	spoken   chan struct{} // closed when its first output is known
	complete chan struct{} // closed when every number up to closed is known

	mu        sync.Mutex
	chunks    map[uint64]soakEvent
	exitSeq   uint64 // 0: not told by a notification (a read does not say it)
	closedSeq uint64 // 0: not closed
	exitCode  int
	hasExit   bool
	forgotten bool
}

// watch registers a process before it is started.
func (s *soakSession) watch(id string, argv []string) *soakProcess {
	p := &soakProcess{
		id: id, argv: argv, spoken: make(chan struct{}), complete: make(chan struct{}), chunks: map[uint64]soakEvent{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[id] = p
	return p
}

// forget drops the output of a complete process. A notification may still bring what a read has
// told already.
func (p *soakProcess) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunks, p.forgotten = nil, true
}

func (p *soakProcess) output(e soakEvent) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forgotten {
		return p.lateLocked(e.Seq)
	}
	if old, ok := p.chunks[e.Seq]; ok && (old.Stream != e.Stream || !bytes.Equal(old.Chunk, e.Chunk)) {
		return fmt.Errorf("process %s: output %d was told twice and differs", p.id, e.Seq)
	}
	if len(p.chunks) == 0 {
		close(p.spoken)
	}
	p.chunks[e.Seq] = e
	p.checkLocked()
	return nil
}

func (p *soakProcess) exited(seq uint64, code int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasExit && p.exitCode != code || p.exitSeq != 0 && seq != 0 && p.exitSeq != seq {
		return fmt.Errorf("process %s: exit told twice and differs", p.id)
	}
	p.exitCode, p.hasExit = code, true
	if seq != 0 {
		p.exitSeq = seq
	}
	p.checkLocked()
	return nil
}

func (p *soakProcess) closed(seq uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closedSeq != 0 && p.closedSeq != seq {
		return fmt.Errorf("process %s: closed is %d and %d", p.id, p.closedSeq, seq)
	}
	p.closedSeq = seq
	p.checkLocked()
	return nil
}

// lateLocked: a number of a process that is complete must be one of those it had.
func (p *soakProcess) lateLocked(seq uint64) error {
	if seq >= p.closedSeq {
		return fmt.Errorf("process %s: output %d after closed, which was %d", p.id, seq, p.closedSeq)
	}
	return nil
}

// checkLocked: the numbers 1 to closedSeq are the chunks, one exit and closed itself.
func (p *soakProcess) checkLocked() {
	if p.forgotten || p.closedSeq == 0 || !p.hasExit || uint64(len(p.chunks)) < p.closedSeq-2 {
		return
	}
	select {
	case <-p.complete:
	default:
		close(p.complete)
	}
}

// catchUp reads what came while no connection was there.
func (p *soakProcess) catchUp(ctx context.Context, c *soakConn) error {
	p.mu.Lock()
	after := uint64(0)
	for p.chunks[after+1].Seq != 0 || p.exitSeq == after+1 {
		after++
	}
	p.mu.Unlock()
	var r struct {
		Chunks   []soakEvent `json:"chunks"`
		NextSeq  uint64      `json:"nextSeq"`
		Exited   bool        `json:"exited"`
		ExitCode *int        `json:"exitCode"`
		Closed   bool        `json:"closed"`
	}
	err := c.call(ctx, "process/read", map[string]any{"processId": p.id, "afterSeq": after}, &r)
	if remote, ok := errors.AsType[*remoteError](err); ok && remote.Code == codeInvalid {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.chunks) == 0 && !p.hasExit {
			return nil // its start was lost with a connection and is sent again, or is under way
		}
		return err
	}
	if err != nil {
		return err
	}
	for _, e := range r.Chunks {
		if err := p.output(e); err != nil {
			return err
		}
	}
	if r.Exited && r.ExitCode != nil {
		if err := p.exited(0, *r.ExitCode); err != nil {
			return err
		}
	}
	if r.Closed {
		return p.closed(r.NextSeq - 1)
	}
	return nil
}

// wait returns the output by stream, in order, and the exit code, once the process is complete.
func (p *soakProcess) wait(ctx context.Context) (output map[string][]byte, code int, err error) {
	select {
	case <-p.complete:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		return nil, 0, fmt.Errorf("process %s %q: waiting with %d chunks, exited %v (%d), closed %d: %w",
			p.id, p.argv, len(p.chunks), p.hasExit, p.exitSeq, p.closedSeq, context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	output = map[string][]byte{}
	gaps := 0
	for seq := uint64(1); seq < p.closedSeq; seq++ {
		e, ok := p.chunks[seq]
		if !ok {
			if gaps++; gaps > 1 || p.exitSeq != 0 && p.exitSeq != seq {
				return nil, 0, fmt.Errorf("process %s: number %d of %d is missing", p.id, seq, p.closedSeq)
			}
			continue
		}
		output[e.Stream] = append(output[e.Stream], e.Chunk...)
	}
	if len(p.chunks) != int(p.closedSeq)-2 {
		return nil, 0, fmt.Errorf("process %s: %d chunks but closed is %d", p.id, len(p.chunks), p.closedSeq)
	}
	return output, p.exitCode, nil
}
