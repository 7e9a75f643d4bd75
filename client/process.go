package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/client/internal/queue"
	"github.com/execagent/execagent/protocol"
)

// cleanupTimeout bounds a request that ends, at the server, something that the
// caller has given up.
const cleanupTimeout = 10 * time.Second

var errProcessClosed = errors.New("process handle closed")

// Process is a handle of a process on the server. Its methods may be called at
// once; its events go to one consumer. The handle outlives connections: after a
// reconnect, it asks for the events in between.
type Process struct {
	client  *Client
	id      string
	from    uint64 // events up to this one are not wanted
	started protocol.StartResult
	writer  string        // distinguishes the writes of this handle from others
	writes  atomic.Uint64 // so far
	writing chan struct{} // holds an element during a write; its holder owns the next field
	// unsure are the ids of writes that were given up. The server may still expect them.
	unsure []string

	events queue.Queue[Event]
	done   chan struct{} // closed when Closed has come, or the handle has failed

	catching sync.Mutex // held while the server is asked for missed events

	mu      sync.Mutex // guards what follows; the client's is taken after it
	order   order
	pipes   *pipes // nil until Stdout or Stderr is asked for
	exit    *int
	ending  protocol.Ending
	behind  bool // events are held until the server has been asked for earlier ones
	unknown bool // whether the server has it: the start is under way once more, and until then nobody asks for events
	chasing bool // a goroutine is asking
	deaf    bool // events are dropped from now on
	ended   bool // done is closed
	err     error
}

func newProcess(c *Client, id string) *Process {
	return &Process{client: c, id: id, writer: rand.Text() + "-", writing: make(chan struct{}, 1), done: make(chan struct{})}
}

// Start starts a process. If params has no id, Start chooses one; an id that is
// in use is refused. Env and the lists of EnvPolicy may be nil. A terminal's
// size needs the server's processResize. Start replaces the StartID.
//
// If the connection is lost before the answer comes, Start makes the request again
// after the recovery, where the server has processStartId: the server starts the
// process once. If it has not, if the client fails, or if ctx ends first, the process
// may have been started; it is then terminated as soon as possible. The error for a
// lost connection is a [DisconnectedError].
func (c *Client) Start(ctx context.Context, params protocol.StartParams) (*Process, error) {
	if params.ProcessID == "" {
		params.ProcessID = rand.Text()
	}
	if params.Rows != nil || params.Cols != nil {
		if err := c.require(ctx, "terminals of a given size", hasResize); err != nil {
			return nil, err
		}
	}
	if params.Builtin {
		if err := c.require(ctx, "tools of its own", func(c *protocol.Capabilities) bool { return c.ProcessBuiltins }); err != nil {
			return nil, err
		}
	}
	if params.NetworkProxy != nil {
		if err := c.require(ctx, "proxies for processes", func(c *protocol.Capabilities) bool { return c.NetworkProxyLaunch }); err != nil {
			return nil, err
		}
	}
	if params.ExecApproval != nil {
		if err := c.require(ctx, "rules about commands", func(c *protocol.Capabilities) bool { return c.SubcommandApprovals }); err != nil {
			return nil, err
		}
		if a := params.ExecApproval; a.Opaque != "" || a.ForcedRM != "" || a.Enforce != "" {
			if err := c.require(ctx, "opaque, forcedRm and enforce in rules about commands", func(c *protocol.Capabilities) bool { return c.ExecApprovalEnforce }); err != nil {
				return nil, err
			}
		}
	}
	if err := c.requireBounds(ctx, &params); err != nil {
		return nil, err
	}
	complete(&params)
	params.StartID = ""
	if c.has(func(c *protocol.Capabilities) bool { return c.ProcessStartID }) {
		params.StartID = rand.Text()
	}
	for {
		p := newProcess(c, params.ProcessID)
		// Events may come before the answer, so the handle is known before the request
		// is sent.
		l, err := c.register(ctx, p)
		if err != nil {
			return nil, err
		}
		err = l.called(ctx, protocol.MethodProcessStart, &params, &p.started)
		if params.StartID != "" && isLoss(err) && !unsent(err) {
			p.doubt()
			l.starts.Done()
			return p.startAgain(ctx, &params, err)
		}
		p.settleStart(err)
		l.starts.Done()
		if err == nil {
			return p, nil
		}
		if !unsent(err) {
			return nil, err
		}
	}
}

// settleStart ends the handle if the start has failed.
func (p *Process) settleStart(err error) {
	_, refused := errors.AsType[*ServerError](err)
	switch {
	case err == nil:
	case unsent(err), refused, errors.Is(err, ErrTooManyCalls):
		p.fail(err)
	default:
		p.abandon(err)
	}
}

// startAgain makes the request of a start again and again, until an answer comes, because
// the answer was lost. The server knows the request by its StartID. lost is the error of a
// start that is given up.
func (p *Process) startAgain(ctx context.Context, params *protocol.StartParams, lost error) (*Process, error) {
	for {
		l, err := p.client.connected(ctx)
		if err == nil {
			err = l.called(ctx, protocol.MethodProcessStart, params, &p.started)
			if isLoss(err) || errors.Is(err, ErrTooManyCalls) && sleep(ctx, pause) == nil {
				continue
			}
		}
		if errors.Is(err, ErrRecovering) || errors.Is(err, ErrTooManyCalls) {
			err = lost
		}
		p.settleStart(err)
		if err == nil {
			p.believe()
			return p, nil
		}
		if failed, ok := errors.AsType[*DisconnectedError](err); ok {
			err = failed.sent()
		} else if reasonOf(err) == protocol.ReasonForgotten {
			err = &DisconnectedError{Err: err, Sent: true}
		}
		return nil, err
	}
}

// requireBounds fails if the server does not know a bound of the params, or another user.
func (c *Client) requireBounds(ctx context.Context, params *protocol.StartParams) error {
	for _, asked := range []struct {
		is   bool
		what string
		flag func(*protocol.Capabilities) bool
	}{
		{params.TimeoutMs != nil, "a time limit for processes", func(c *protocol.Capabilities) bool { return c.ProcessTimeout }},
		{params.MaxOutputBytes != nil, "a bound on the output of processes", func(c *protocol.Capabilities) bool { return c.ProcessMaxOutput }},
		{params.Limits != nil, "limits of one process", func(c *protocol.Capabilities) bool { return c.ProcessLimits }},
		{params.RunAs != nil, "processes of another user", func(c *protocol.Capabilities) bool { return c.ProcessRunAs }},
	} {
		if !asked.is {
			continue
		}
		if err := c.require(ctx, asked.what, asked.flag); err != nil {
			return err
		}
	}
	return nil
}

// register routes events to p, and returns the connection for the request that
// starts p. After that request the caller calls starts.Done.
func (c *Client) register(ctx context.Context, p *Process) (*connection, error) {
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		if c.state != Connected || c.current != l {
			c.mu.Unlock()
			continue
		}
		if _, taken := c.processes[p.id]; taken {
			c.mu.Unlock()
			return nil, protocolErrorf("session already registered for process %.256s", p.id)
		}
		c.processes[p.id] = p
		l.starts.Add(1)
		c.mu.Unlock()
		return l, nil
	}
}

// Attach returns a handle of a process of the session that this client has no handle
// of: a process from before a resume, or of another client of the session. Its events
// begin with the oldest event that the server has kept, see [Process.Skipped]. For an
// unknown process the error is a [ServerError].
func (c *Client) Attach(ctx context.Context, id string) (*Process, error) {
	return c.attach(ctx, id, 0)
}

// AttachAfter is Attach for a caller that already knows the events up to seq. If the
// server has not kept all later events, the error is a [GapError].
func (c *Client) AttachAfter(ctx context.Context, id string, seq uint64) (*Process, error) {
	p, err := c.attach(ctx, id, seq)
	if err == nil && p.Skipped() > seq {
		err = &GapError{After: seq, Through: p.Skipped()}
		p.Close()
		return nil, err
	}
	return p, err
}

func (c *Client) attach(ctx context.Context, id string, from uint64) (*Process, error) {
	p := newProcess(c, id)
	p.from, p.behind, p.order.fresh = from, true, true
	l, err := c.register(ctx, p)
	if err != nil {
		return nil, err
	}
	l.starts.Done()
	for {
		err = p.catchUp(ctx, l)
		if isLoss(err) {
			l, err = c.connected(ctx)
			if err == nil {
				continue
			}
		}
		if err != nil {
			p.fail(err)
			return nil, err
		}
		// A recovery may have ended the handle first.
		p.mu.Lock()
		err := p.err
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// Skipped is how many events the server no longer had when [Client.Attach] asked for
// them. If the process's exit was among them, it is still reported, as the last of
// them.
func (p *Process) Skipped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.order.skipped
}

// complete replaces nil members that must not be null on the wire by empty
// values.
func complete(params *protocol.StartParams) {
	if params.Env == nil {
		params.Env = map[string]string{}
	}
	if params.EnvPolicy == nil {
		return
	}
	policy := *params.EnvPolicy
	if policy.Exclude == nil {
		policy.Exclude = []string{}
	}
	if policy.Set == nil {
		policy.Set = map[string]string{}
	}
	if policy.IncludeOnly == nil {
		policy.IncludeOnly = []string{}
	}
	params.EnvPolicy = &policy
}

// deregister undoes register, but does not touch a later process with the same id.
func (c *Client) deregister(p *Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[p.id] == p {
		delete(c.processes, p.id)
	}
}

// ID is the id of the process in its session.
func (p *Process) ID() string { return p.id }

// Started is the server's answer to the start, with the layers that confine the process,
// for example. It is empty for a process of another client.
func (p *Process) Started() protocol.StartResult { return p.started }

// settle decides the outcome, once: err for Wait, last for the consumer of the
// events.
func (p *Process) settle(err, last error) {
	p.mu.Lock()
	p.deaf = true
	if !p.ended {
		p.ended, p.err = true, err
		close(p.done)
	}
	p.mu.Unlock()
	p.events.Fail(last)
}

// end settles the outcome and frees the id.
func (p *Process) end(err, last error) {
	p.settle(err, last)
	p.client.deregister(p)
}

func (p *Process) fail(err error) { p.end(err, err) }

// abandon fails a process that may be running, and terminates it. The id stays taken
// until then.
func (p *Process) abandon(err error) {
	p.settle(err, err)
	c := p.client
	began := c.begin(func() {
		defer c.deregister(p)
		// The request is made even if the client must recover first.
		ctx, cancel := context.WithTimeout(c.ctx, c.cfg.RecoveryTimeout+cleanupTimeout)
		defer cancel()
		// No caller waits for the error.
		_ = c.replay(ctx, protocol.MethodProcessTerminate, &protocol.TerminateParams{ProcessID: p.id}, nil)
	})
	if !began {
		c.deregister(p)
	}
}

// Close gives up the handle; the process runs on. Events are dropped from now
// on.
func (p *Process) Close() {
	p.events.Discard(func(Event) bool { return true })
	p.fail(errProcessClosed)
	p.mu.Lock()
	pipes := p.pipes
	p.mu.Unlock()
	if pipes != nil {
		_ = pipes.stdout.Close() // neither has an error
		_ = pipes.stderr.Close()
	}
}

// Discard drops all output that was not taken, now and later, so that no
// consumer is needed. Exited and Closed still come.
func (p *Process) Discard() {
	p.events.Discard(func(e Event) bool { return e.Kind == Output })
}

// Events yields the events in order; the last one is Closed. An error ends the
// sequence: the error of the handle, or the cause of ctx. After a break, or the
// end of ctx, another call continues where this one ended. One goroutine may
// range over events at a time.
func (p *Process) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := p.events.Take(ctx)
			if err == io.EOF {
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// CopyOutput takes all events, writes standard output and that of a terminal to
// stdout and standard error to stderr, and returns the exit code once all output
// has ended. An error of a writer ends it early: the process then runs on, and the
// caller must take its events or discard them.
func (p *Process) CopyOutput(ctx context.Context, stdout, stderr io.Writer) (exitCode int, err error) {
	return p.copyOutput(ctx, stdout, stderr, func(*Event) {})
}

// copyOutput is CopyOutput, which also shows each event to see.
func (p *Process) copyOutput(ctx context.Context, stdout, stderr io.Writer, see func(*Event)) (exitCode int, err error) {
	for e, err := range p.Events(ctx) {
		if err != nil {
			return 0, err
		}
		see(&e)
		if e.Kind != Output {
			continue
		}
		w := stdout
		if e.Stream == protocol.StreamStderr {
			w = stderr
		}
		_, err := w.Write(e.Data) // Write does not keep the data (io.Writer)
		queue.Recycle(e.Data)
		if err != nil {
			return 0, err
		}
	}
	return p.Wait(ctx)
}

// Wait waits for Closed and returns the exit code, 128+n after signal n. It takes
// no events: another goroutine must take them, or the caller calls Discard first.
func (p *Process) Wait(ctx context.Context) (exitCode int, err error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.err != nil:
		return 0, p.err
	case p.exit == nil:
		return 0, protocolErrorf("process %.256s closed without having exited", p.id)
	}
	return *p.exit, nil
}

// Ending says what else is known of the end, once [Process.Wait] has returned the exit code: for a caller that does
// not take the events itself.
func (p *Process) Ending() protocol.Ending {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}

// Read asks the server for retained output. It does not affect Events.
func (p *Process) Read(ctx context.Context, params protocol.ReadParams) (*protocol.ReadResult, error) {
	params.ProcessID = p.id
	r := new(protocol.ReadResult)
	if err := p.client.replay(ctx, protocol.MethodProcessRead, &params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Write sends bytes to the process's standard input, which must be a terminal or
// a pipe (PipeStdin). It returns once the server has queued them. While the
// server's queue is full, it waits; if the process does not read, until the
// process has ended. If the server does not accept the bytes, the error is a
// [WriteError]. After an error the process may have got the beginning of data.
// A write waits for earlier writes of this handle.
func (p *Process) Write(ctx context.Context, data []byte) error {
	if err := p.startWriting(ctx); err != nil {
		return err
	}
	defer p.endWriting()
	f := p.Feed(ctx)
	// A server that has refused a write expects it before all others. It gets the write
	// without data, because the caller was told that the write had failed.
	f.ids = p.unsure
	for range p.unsure {
		f.add([]byte{}, nil)
	}
	if data == nil {
		data = []byte{} // nil would be null
	}
	f.add(data, nil)
	f.finish(0)
	p.unsure = nil
	for _, w := range f.ahead[:f.tried] {
		p.unsure = append(p.unsure, w.params.WriteID)
	}
	return f.err
}

// startWriting waits until no other write of this handle is under way.
func (p *Process) startWriting(ctx context.Context) error {
	for {
		state, changed := p.client.State()
		if state == Recovering && ctx.Value(failFastKey{}) != nil {
			return ErrRecovering
		}
		select {
		case p.writing <- struct{}{}:
			return nil
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *Process) endWriting() { <-p.writing }

func writeError(status protocol.WriteStatus) error {
	if status == protocol.WriteAccepted {
		return nil
	}
	return &WriteError{Status: status}
}

// CloseStdin ends the standard input, after all writes before it, also after a write
// that has failed. A terminal's input cannot be closed: write 0x04. It needs the
// server's processCloseStdin.
func (p *Process) CloseStdin(ctx context.Context) error {
	if err := p.client.require(ctx, "closing the standard input of a process", hasCloseStdin); err != nil {
		return err
	}
	if err := p.startWriting(ctx); err != nil {
		return err
	}
	defer p.endWriting()
	params := protocol.ProcessParams{ProcessID: p.id}
	for sent := false; ; {
		l, err := p.client.connected(ctx)
		if err != nil {
			return err
		}
		var r protocol.WriteResult
		switch err = l.called(ctx, protocol.MethodProcessCloseStdin, &params, &r); {
		case isLoss(err):
			sent = sent || !unsent(err)
			continue
		case err != nil:
			return err
		case sent && r.Status == protocol.WriteStdinClosed:
			return nil // closed by the request whose answer was lost
		}
		return writeError(r.Status)
	}
}

// Signal sends a signal to the process group, once: if the connection is lost before the
// answer comes, the error is a [DisconnectedError]. Every signal except SignalInterrupt
// needs the server's processSignals. An exited process is no error.
func (p *Process) Signal(ctx context.Context, signal protocol.Signal) error {
	if signal != protocol.SignalInterrupt {
		err := p.client.require(ctx, "signal "+string(signal),
			func(c *protocol.Capabilities) bool { return c.ProcessSignals })
		if err != nil {
			return err
		}
	}
	params := protocol.SignalParams{ProcessID: p.id, Signal: signal}
	return p.client.Call(ctx, protocol.MethodProcessSignal, &params, nil)
}

// Terminate kills the process group. Like Signal, it does so once, and ended processes are no
// error.
func (p *Process) Terminate(ctx context.Context) error {
	return p.client.Call(ctx, protocol.MethodProcessTerminate, &protocol.TerminateParams{ProcessID: p.id}, nil)
}

// Resize sets the size of the process's terminal, in characters, 1 to 65535
// each. It needs the server's processResize.
func (p *Process) Resize(ctx context.Context, rows, cols uint16) error {
	if err := p.client.require(ctx, "resizing terminals", hasResize); err != nil {
		return err
	}
	params := protocol.ResizeParams{ProcessID: p.id, Rows: rows, Cols: cols}
	return p.client.replay(ctx, protocol.MethodProcessResize, &params, nil)
}

func hasCloseStdin(c *protocol.Capabilities) bool { return c.ProcessCloseStdin }

func hasResize(c *protocol.Capabilities) bool { return c.ProcessResize }

// Processes lists the processes of the session, oldest first. It needs the
// server's processList.
func (c *Client) Processes(ctx context.Context) ([]protocol.ListedProcess, error) {
	err := c.require(ctx, "listing processes", func(c *protocol.Capabilities) bool { return c.ProcessList })
	if err != nil {
		return nil, err
	}
	var r protocol.ListResult
	err = c.replay(ctx, protocol.MethodProcessList, &protocol.ListParams{}, &r)
	return r.Processes, err
}
