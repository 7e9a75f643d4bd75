package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/protocol"
)

// cleanupTimeout bounds a request that ends, at the server, what the caller has
// given up.
const cleanupTimeout = 10 * time.Second

var errProcessClosed = errors.New("process handle closed")

// Process is a handle of a process on the server. Its methods may be called at
// once; its events go to one consumer.
type Process struct {
	client  *Client
	id      string
	started protocol.StartResult
	writes  atomic.Uint64 // ids of writes so far

	events queue[Event]
	done   chan struct{} // closed when Closed has come, or the handle has failed

	mu        sync.Mutex // guards what follows
	order     order
	exit      *int
	abandoned bool // events are dropped from now on
	ended     bool // done is closed
	err       error
}

// Start starts a process. Its id is made up when params has none; one that is
// in use is refused. Env and the lists of EnvPolicy may be nil. A terminal's
// size needs the server's processResize.
//
// When ctx ends or the connection is lost before the answer comes, the process
// may have been started all the same; it is then terminated, if that is still
// possible.
func (c *Client) Start(ctx context.Context, params protocol.StartParams) (*Process, error) {
	if params.ProcessID == "" {
		params.ProcessID = rand.Text()
	}
	if params.Rows != nil || params.Cols != nil {
		if err := c.require(ctx, "terminals of a given size", hasResize); err != nil {
			return nil, err
		}
	}
	complete(&params)
	p := &Process{client: c, id: params.ProcessID, done: make(chan struct{})}
	if err := c.register(p); err != nil {
		return nil, err
	}
	err := c.Call(ctx, protocol.MethodProcessStart, &params, &p.started)
	if err == nil {
		return p, nil
	}
	if _, refused := errors.AsType[*ServerError](err); refused {
		p.fail(err)
	} else {
		p.abandon(err)
	}
	return nil, err
}

// complete makes empty values of members that are nil and must not be null on the
// wire.
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

// register makes events come to p. It is called before the request is sent, since
// events may come before its answer.
func (c *Client) register(p *Process) error {
	current := c.current()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.processes[p.id]; ok {
		return protocolErrorf("session already registered for process %.256s", p.id)
	}
	select {
	case <-current.done:
		return current.err
	default:
	}
	c.processes[p.id] = p
	return nil
}

// deregister undoes register, but leaves a later process of the same id alone.
func (c *Client) deregister(p *Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[p.id] == p {
		delete(c.processes, p.id)
	}
}

// ID is the id of the process in its session.
func (p *Process) ID() string { return p.id }

// SandboxType is what the server says it confines the process with.
func (p *Process) SandboxType() string { return p.started.SandboxType }

// accept takes an event from the reader.
func (p *Process) accept(ctx context.Context, e Event) {
	p.mu.Lock()
	if p.abandoned {
		p.mu.Unlock()
		return
	}
	err := p.order.add(e)
	p.mu.Unlock()
	if err != nil {
		// Only this process fails; the connection goes on.
		p.abandon(err)
		return
	}
	for {
		p.mu.Lock()
		e, ok := p.order.next()
		if ok && e.Kind == Exited {
			p.exit = &e.ExitCode
		}
		p.mu.Unlock()
		if !ok {
			return
		}
		p.events.put(ctx, e, len(e.Data))
		if e.Kind == Closed {
			p.end(nil, io.EOF)
			return
		}
	}
}

// end settles the outcome, once: err for Wait, last for the consumer of the
// events.
func (p *Process) end(err, last error) {
	p.mu.Lock()
	if !p.ended {
		p.ended, p.err = true, err
		close(p.done)
	}
	p.mu.Unlock()
	p.events.fail(last)
	p.client.deregister(p)
}

func (p *Process) fail(err error) { p.end(err, err) }

// abandon fails a process that may be running, and terminates it.
func (p *Process) abandon(err error) {
	p.mu.Lock()
	p.abandoned = true
	p.mu.Unlock()
	c := p.client
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.cleanups.Add(1)
	}
	c.mu.Unlock()
	if closed {
		p.fail(err)
		return
	}
	p.events.fail(err)
	go func() {
		defer c.cleanups.Done()
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		// Nobody waits for the error. The id stays taken here until Terminate has
		// returned.
		_ = p.Terminate(ctx)
		p.fail(err)
	}()
}

// Close gives up the handle; the process runs on. Events are dropped from now
// on.
func (p *Process) Close() {
	p.events.discard(func(Event) bool { return true })
	p.fail(errProcessClosed)
}

// Discard drops all output that has not been taken, now and later, so that
// nobody needs to take it. Exited and Closed still come.
func (p *Process) Discard() {
	p.events.discard(func(e Event) bool { return e.Kind == Output })
}

// Events yields the events in order, the last one is Closed. An error ends
// them: that of the handle, or the cause of ctx. After a break, or the end of
// ctx, another call goes on where this one ended. One goroutine may range over
// events at a time.
func (p *Process) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := p.events.take(ctx)
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
// caller has to take its events or discard them.
func (p *Process) CopyOutput(ctx context.Context, stdout, stderr io.Writer) (exitCode int, err error) {
	for e, err := range p.Events(ctx) {
		if err != nil {
			return 0, err
		}
		if e.Kind != Output {
			continue
		}
		w := stdout
		if e.Stream == protocol.StreamStderr {
			w = stderr
		}
		if _, err := w.Write(e.Data); err != nil {
			return 0, err
		}
	}
	return p.Wait(ctx)
}

// Wait waits for Closed and returns the exit code, 128+n after signal n. It takes
// no events: another goroutine has to take them, or Discard was called before.
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

// Read asks the server for output that it has retained. It does not change what
// Events yields.
func (p *Process) Read(ctx context.Context, params protocol.ReadParams) (*protocol.ReadResult, error) {
	params.ProcessID = p.id
	r := new(protocol.ReadResult)
	if err := p.client.Call(ctx, protocol.MethodProcessRead, &params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Write sends bytes to the process's standard input, which must be a terminal or
// have been asked for with PipeStdin. It returns once the server has queued them.
// While the server's queue is full it waits: for a process that does not read,
// until that has ended. If the server does not accept the bytes the error is a
// [WriteError].
func (p *Process) Write(ctx context.Context, data []byte) error {
	params := protocol.WriteParams{
		ProcessID: p.id,
		Chunk:     data,
		WriteID:   strconv.FormatUint(p.writes.Add(1), 10),
	}
	if data == nil {
		params.Chunk = []byte{} // nil would be null
	}
	var r protocol.WriteResult
	if err := p.client.Call(ctx, protocol.MethodProcessWrite, &params, &r); err != nil {
		return err
	}
	return writeError(r.Status)
}

func writeError(status protocol.WriteStatus) error {
	if status == protocol.WriteAccepted {
		return nil
	}
	return &WriteError{Status: status}
}

// CloseStdin ends the standard input, after all writes before it. A terminal
// has none to close: write 0x04. It needs the server's processCloseStdin.
func (p *Process) CloseStdin(ctx context.Context) error {
	err := p.client.require(ctx, "closing the standard input of a process",
		func(c *protocol.Capabilities) bool { return c.ProcessCloseStdin })
	if err != nil {
		return err
	}
	var r protocol.WriteResult
	params := protocol.ProcessParams{ProcessID: p.id}
	if err := p.client.Call(ctx, protocol.MethodProcessCloseStdin, &params, &r); err != nil {
		return err
	}
	return writeError(r.Status)
}

// Signal sends a signal to the process group. All but SignalInterrupt need the
// server's processSignals. A process that has exited is no error.
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

// Terminate kills the process group. Processes that have ended are no error.
func (p *Process) Terminate(ctx context.Context) error {
	return p.client.Call(ctx, protocol.MethodProcessTerminate, &protocol.ProcessParams{ProcessID: p.id}, nil)
}

// Resize sets the size of the process's terminal, 1 to 65535 each. It needs
// the server's processResize.
func (p *Process) Resize(ctx context.Context, rows, cols uint16) error {
	if err := p.client.require(ctx, "resizing terminals", hasResize); err != nil {
		return err
	}
	params := protocol.ResizeParams{ProcessID: p.id, Rows: rows, Cols: cols}
	return p.client.Call(ctx, protocol.MethodProcessResize, &params, nil)
}

func hasResize(c *protocol.Capabilities) bool { return c.ProcessResize }

// Processes lists the processes of the session, oldest first. It needs the
// server's processList.
func (c *Client) Processes(ctx context.Context) ([]protocol.ListedProcess, error) {
	err := c.require(ctx, "listing processes", func(c *protocol.Capabilities) bool { return c.ProcessList })
	if err != nil {
		return nil, err
	}
	var r protocol.ListResult
	err = c.Call(ctx, protocol.MethodProcessList, &protocol.ListParams{}, &r)
	return r.Processes, err
}
