package agent

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/procs"
)

// inBubble runs a test of sessions in a bubble, with an agent that executes nothing: every start
// makes a fake, whose part the test plays.
func inBubble(t *testing.T, cfg Config, test func(t *testing.T, r *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := harnessOf(t, New(cfg))
		r.agent.start = r.fake
		test(t, r)
	})
}

// fake is a process that does what its test says.
type fake struct {
	spec         procs.Spec
	since        time.Time
	begin        sync.Once
	begun, ended chan struct{}
	turn         chan struct{} // has an element while an event is announced

	mu      sync.Mutex // guards what follows
	moved   chan struct{}
	events  procs.Snapshot
	endedAt time.Time
	input   string
	signals []syscall.Signal
	ending  bool
	closing bool
}

// noProgram is what a fake cannot be started as.
const noProgram = "no-such-program"

// fake is the start of an agent that executes nothing. It waits while starts are held.
func (r *harness) fake(spec procs.Spec) (proc, error) {
	r.mu.Lock()
	held := r.held
	r.mu.Unlock()
	if held != nil {
		<-held
	}
	if spec.Argv[len(spec.Argv)-1] == noProgram {
		return nil, syscall.ENOENT
	}
	return &fake{
		spec: spec, since: time.Now(), begun: make(chan struct{}), ended: make(chan struct{}), turn: make(chan struct{}, 1),
		moved: make(chan struct{}), events: procs.Snapshot{NextSeq: 1},
	}, nil
}

// holdStarts keeps starts under way until release is called.
func (r *harness) holdStarts() (release func()) {
	held := make(chan struct{})
	r.mu.Lock()
	r.held = held
	r.mu.Unlock()
	return sync.OnceFunc(func() {
		r.mu.Lock()
		r.held = nil
		r.mu.Unlock()
		close(held)
	})
}

// starts starts a fake of that id.
func (c *client) starts(id string) *fake {
	c.t.Helper()
	c.must("process/start", sh(id, ""), nil)
	return c.harness.process(c.session, id).proc.(*fake)
}

// emit numbers, keeps and announces an event, as a process does.
func (f *fake) emit(e procs.Event) {
	<-f.begun
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	f.mu.Lock()
	e.Seq = f.events.NextSeq
	f.events.NextSeq++
	switch e.Kind {
	case procs.Output:
		f.events.Chunks = append(f.events.Chunks, procs.Chunk{Seq: e.Seq, Stream: e.Stream, Data: e.Data})
	case procs.Exited:
		f.events.Exited, f.events.ExitCode, f.endedAt = true, e.ExitCode, time.Now()
	case procs.Closed:
		f.events.Closed = true
	}
	close(f.moved)
	f.moved = make(chan struct{})
	quiet := f.closing
	f.mu.Unlock()
	if !quiet {
		f.spec.Sink(e)
	}
}

func (f *fake) prints(text string) {
	f.emit(procs.Event{Kind: procs.Output, Stream: procs.Stdout, Data: []byte(text)})
}

// exit ends the process, unless it has ended, and returns when that is announced.
func (f *fake) exit(code int) {
	if f.ends() {
		f.emit(procs.Event{Kind: procs.Exited, ExitCode: code})
		f.emit(procs.Event{Kind: procs.Closed})
		close(f.ended)
	}
	<-f.ended
}

// ends reports whether nothing has ended the process yet.
func (f *fake) ends() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.ending
	f.ending = true
	return first
}

// runs reports whether nobody has ended the process.
func (f *fake) runs() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.ending
}

// closes reports whether nothing is left of the process.
func (f *fake) closes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closing
}

// heard returns what was written to the process, and the signals that it has got.
func (f *fake) heard() (input string, signals []syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.input, f.signals
}

func (f *fake) Begin() { f.begin.Do(func() { close(f.begun) }) }

func (f *fake) TryWrite(_ string, data []byte) (procs.WriteStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.input += string(data)
	return procs.Accepted, nil
}

func (f *fake) Write(context.Context, string, []byte) (procs.WriteStatus, error) {
	return 0, errors.ErrUnsupported // TryWrite never waits
}

func (f *fake) CloseStdin() (procs.WriteStatus, error) { return procs.Accepted, nil }
func (f *fake) Resize(procs.Winsize) error             { return procs.ErrNotTTY }

func (f *fake) Signal(sig syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signals = append(f.signals, sig)
}

func (f *fake) Terminate() (running bool) {
	running = f.runs()
	go f.exit(137)
	return running
}

func (f *fake) Close() error {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	f.Begin()
	f.exit(137)
	return nil
}

func (f *fake) Read(after uint64, _ *uint64) procs.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	got := f.events
	for len(got.Chunks) > 0 && got.Chunks[0].Seq <= after {
		got.Chunks = got.Chunks[1:]
	}
	return got
}

func (f *fake) Kept() int64 { return 0 }

func (f *fake) Ready(after uint64) bool {
	got := f.Read(after, nil)
	return len(got.Chunks) > 0 || got.Closed || got.Exited && got.NextSeq > after+1
}

func (f *fake) Wait(ctx context.Context, after uint64) error {
	return f.await(ctx, func() bool { return f.Ready(after) })
}

func (f *fake) WaitExit(ctx context.Context) error {
	return f.await(ctx, func() bool { return f.Read(0, nil).Exited })
}

func (f *fake) await(ctx context.Context, done func() bool) error {
	for {
		f.mu.Lock()
		moved := f.moved
		f.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) State() (exited bool, exitCode int, closed bool, nextSeq uint64) {
	got := f.Read(0, nil)
	return got.Exited, got.ExitCode, got.Closed, got.NextSeq
}

func (f *fake) ExitedAt() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.endedAt
}

func (f *fake) PID() int             { return 1 }
func (f *fake) Argv() []string       { return f.spec.Argv }
func (f *fake) TTY() bool            { return false }
func (f *fake) StartClock()          {}
func (f *fake) StartedAt() time.Time { return f.since }
