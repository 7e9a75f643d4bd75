package procs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// patience is how long a test waits for what must come, before it fails. The
// machine may have much else to do.
const patience = 5 * time.Minute

// recorder is a Sink that keeps all events and checks the rules that hold for
// every process.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	events []Event
	data   []byte
}

func (r *recorder) sink(ev Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rig.Is(r.t, ev.Seq, uint64(len(r.events)+1), "the number of event %+v", ev.Kind)
	if n := len(r.events); n > 0 && r.events[n-1].Kind == Closed {
		r.t.Errorf("event %+v after Closed", ev)
	}
	rig.Is(r.t, max(len(ev.Data), chunkSize), chunkSize, "bytes of a chunk, at most")
	r.data = append(r.data, ev.Data...)
	ev.Data = bytes.Clone(ev.Data)
	r.events = append(r.events, ev)
}

// text joins the output of a stream; of all streams for 0.
func (r *recorder) text(s Stream) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, ev := range r.events {
		if s == 0 || ev.Stream == s {
			b.Write(ev.Data)
		}
	}
	return b.String()
}

// order names the kinds of events. Neighbouring output counts as one.
func (r *recorder) order() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, ev := range r.events {
		name := map[EventKind]string{Output: "output", Exited: "exited", Closed: "closed"}[ev.Kind]
		if len(names) == 0 || name != "output" || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// launch starts spec. A spec without a Sink gets a recorder, one without a Dir a
// fresh folder. The process is closed at the end of the test.
func launch(t *testing.T, spec Spec) (*Process, *recorder) {
	t.Helper()
	rec := &recorder{t: t}
	if spec.Sink == nil {
		spec.Sink = rec.sink
	}
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	if spec.Env == nil {
		spec.Env = []string{"PATH=" + os.Getenv("PATH")}
	}
	p, err := Start(spec)
	rig.Must(t, err)
	t.Cleanup(func() { p.Close() })
	return p, rec
}

// begin launches a process, and lets it speak.
func begin(t *testing.T, spec Spec) (*Process, *recorder) {
	t.Helper()
	p, rec := launch(t, spec)
	p.Begin()
	return p, rec
}

// run launches a process and waits for its end.
func run(t *testing.T, spec Spec) (*Process, *recorder) {
	t.Helper()
	p, rec := begin(t, spec)
	finish(t, p)
	return p, rec
}

// awaitExit waits until the leader has exited and that was said.
func awaitExit(t *testing.T, p *Process) {
	t.Helper()
	for exited, next := false, uint64(1); !exited; exited, _, _, next = p.State() {
		rig.Must(t, p.Wait(t.Context(), next-1))
	}
}

func exitCode(p *Process) int {
	_, code, _, _ := p.State()
	return code
}

// gate is a fifo: a script waits at it, by reading from path, until the test
// opens it.
type gate struct{ path string }

func newGate(t *testing.T) gate {
	t.Helper()
	g := gate{filepath.Join(t.TempDir(), "gate")}
	rig.Must(t, syscall.Mkfifo(g.path, 0o600))
	return g
}

// open lets the script go on, once it waits.
func (g gate) open(t *testing.T) {
	t.Helper()
	rig.Must(t, os.WriteFile(g.path, []byte("\n"), 0))
}

func finish(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("process %q is not closed after %v", p.Argv(), patience)
	}
}

// waitFor waits until the output contains text.
func waitFor(t *testing.T, p *Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out []byte
	for after := uint64(0); ; {
		if err := p.Wait(ctx, after); err != nil {
			t.Fatalf("waiting for %q: %v, output %q", text, err, out)
		}
		s := p.Read(after, nil)
		for _, c := range s.Chunks {
			out = append(out, c.Data...)
		}
		if bytes.Contains(out, []byte(text)) {
			return
		}
		if s.Closed {
			t.Fatalf("closed without %q, output %q", text, out)
		}
		after = s.NextSeq - 1
	}
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestExitCode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		script string
		want   int
	}{
		{"success", "exit 0", 0},
		{"code", "exit 3", 3},
		{"high code", "exit 255", 255},
		{"killed", "kill -KILL $$", 137},
		{"terminated", "kill -TERM $$", 143},
		{"interrupted", "kill -INT $$", 130},
	} {
		for _, tty := range []bool{false, true} {
			t.Run(tt.name+"/tty="+strconv.FormatBool(tty), func(t *testing.T) {
				t.Parallel()
				p, rec := run(t, Spec{Argv: sh(tt.script), TTY: tty})
				rig.Is(t, fmt.Sprint(p.State()), fmt.Sprint(true, tt.want, true, 3), "exited, code, closed and next")
				rig.Is(t, rec.order(), "exited closed", "events")
				rig.Is(t, rec.events[0].ExitCode, tt.want, "the exit code in the event")
			})
		}
	}
}

func TestChildSetup(t *testing.T) {
	t.Parallel()
	const show = `echo; ls /proc/self/fd | tr '\n' ' '; set -- $(cat /proc/$$/stat); echo "ids $(($1 == $5)) $(($1 == $6)) tty $(($7 != 0))"`
	for _, tt := range []struct {
		tty  bool
		want string
	}{
		// Descriptor 3 is the folder that ls reads.
		{false, "0 1 2 3 ids 1 1 tty 0"},
		{true, "0 1 2 3 ids 1 1 tty 1"},
	} {
		_, rec := run(t, Spec{Argv: sh(show), TTY: tt.tty})
		rig.Is(t, strings.TrimSpace(rec.text(0)), tt.want, "tty %v: child has", tt.tty)
	}
}

func TestTerminalSize(t *testing.T) {
	t.Parallel()
	_, rec := run(t, Spec{Argv: sh("stty size"), TTY: true})
	rig.Is(t, rec.text(PTY), "24 80\r\n", "size")

	p, rec := begin(t, Spec{
		Argv: sh("trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.02; done"),
		TTY:  true, Size: Winsize{Rows: 3, Cols: 333},
	})
	waitFor(t, p, "3 333\r\n")
	rig.Must(t, p.Resize(Winsize{Rows: 50, Cols: 132}))
	finish(t, p)
	rig.Is(t, rec.text(PTY), "3 333\r\n50 132\r\n", "sizes")
	rig.Check(t, p.Resize(Winsize{Rows: 1, Cols: 1}))
	p, _ = run(t, Spec{Argv: []string{"true"}})
	rig.Is(t, p.Resize(Winsize{Rows: 1, Cols: 1}), ErrNotTTY, "Resize without a terminal")
}

func TestLoginShell(t *testing.T) {
	t.Parallel()
	path := "PATH=" + os.Getenv("PATH")
	for _, tt := range []struct {
		name string
		spec Spec
		want string
	}{
		{"added", Spec{TTY: true, Env: []string{path}}, "SHELL=/bin/x\r\n"},
		{"given", Spec{TTY: true, Env: []string{path, "SHELL=/bin/y"}}, "SHELL=/bin/y\r\n"},
		{"pipes", Spec{Env: []string{path}}, ""},
	} {
		tt.spec.Argv, tt.spec.LoginShell = []string{"sh", "-c", "env | grep -E '^(SHELL|TERM)='"}, "/bin/x"
		_, rec := run(t, tt.spec)
		rig.Is(t, rec.text(0), tt.want, "%s", tt.name)
	}
}

func TestNothingBeforeBegin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, rec := launch(t, Spec{Argv: sh("echo hello; echo done > ended"), Dir: dir})
	// The child has written, exited and been reaped before the caller speaks.
	for p.group.signal(0) {
		runtime.Gosched()
	}
	p.group.await()
	rig.Is(t, fmt.Sprint(p.State()), "false 0 false 1", "before Begin: exited, code, closed and next")
	rig.Is(t, len(rec.events), 0, "events before Begin")
	rig.Is(t, p.Terminate(), false, "Terminate after the exit: running")
	p.Begin()
	p.Begin()
	finish(t, p)
	rig.Is(t, rec.order()+": "+rec.text(0), "output exited closed: hello\n", "events and output")
}

// TestExitAfterOutput: what the leader wrote comes before its exit, however
// much it is (rpc.md 4.6).
func TestExitAfterOutput(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		tty  bool
	}{{"pipes", false}, {"pty", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const size = 1 << 20
			_, rec := run(t, Spec{Argv: sh("exec head -c 1048576 /dev/zero"), TTY: tt.tty})
			rig.Is(t, fmt.Sprint(len(rec.data), " ", rec.order()), fmt.Sprint(size, " output exited closed"), "bytes and events")
			for range 64 {
				_, rec := run(t, Spec{Argv: []string{"echo", "one line"}, TTY: tt.tty})
				rig.Is(t, rec.order()+": "+strings.TrimSpace(rec.text(0)), "output exited closed: one line", "events and output")
			}
		})
	}
}

// TestSlowSinkLosesNothing: with a slow sink, the last bytes of a terminal are
// still in the kernel when the exit of the leader hangs it up. None is lost.
func TestSlowSinkLosesNothing(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		var rec *recorder
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		rec = &recorder{t: t}
		// As much as fits into the kernel, after a line that keeps the sink
		// busy.
		p, _ := launch(t, Spec{
			Argv: sh("stty raw 2>/dev/null; echo; sleep 0.05; head -c 10000 /dev/zero"), TTY: tty,
			Sink: func(ev Event) { <-gate; rec.sink(ev) },
		})
		t.Cleanup(open)
		p.Begin()
		rig.Until(t, "the leader has exited", func() bool { return !p.group.signal(0) })
		open()
		finish(t, p)
		rig.Is(t, strings.Count(rec.text(0), "\x00"), 10000, "tty %v: bytes", tty)
		rig.Is(t, rec.order(), "output exited closed", "tty %v: events", tty)
	}
}

func TestGrandchild(t *testing.T) {
	t.Parallel()
	t.Run("late output", func(t *testing.T) {
		t.Parallel()
		gate := newGate(t)
		p, rec := begin(t, Spec{Argv: sh("echo first; (read x <" + gate.path + "; echo late) & exit 4")})
		awaitExit(t, p)
		gate.open(t)
		finish(t, p)
		rig.Is(t, rec.order()+": "+rec.text(0), "output exited output closed: first\nlate\n", "events and output")
	})
	t.Run("endless output", func(t *testing.T) {
		t.Parallel()
		p, _ := begin(t, Spec{Argv: sh("cat /dev/zero & exit 0")})
		awaitExit(t, p)
		p.KillGroup()
		finish(t, p)
	})
	t.Run("hangup ends a terminal", func(t *testing.T) {
		t.Parallel()
		_, rec := run(t, Spec{Argv: sh("sleep 60 & exit 0"), TTY: true})
		rig.Is(t, rec.order(), "exited closed", "events")
	})
}

// TestBlockedSink: a sink that blocks stops the output of its own process, and
// nothing else.
func TestBlockedSink(t *testing.T) {
	t.Parallel()
	gate, entered := make(chan struct{}), make(chan struct{})
	enter := sync.OnceFunc(func() { close(entered) })
	open := sync.OnceFunc(func() { close(gate) })
	rec := &recorder{t: t}
	p, _ := launch(t, Spec{
		Argv: sh("yes & yes >&2 & exec cat >/dev/null"), Stdin: true,
		Sink: func(ev Event) { enter(); <-gate; rec.sink(ev) },
	})
	t.Cleanup(open)
	p.Begin()
	<-entered
	s := p.Read(0, nil)
	rig.Is(t, fmt.Sprint(len(s.Chunks) > 0, s.Exited), "true false", "Read: chunks, exited")
	rig.Check(t, p.Wait(t.Context(), 0))
	rig.Is(t, fmt.Sprint(p.Write(t.Context(), "1", make([]byte, 1<<17))), fmt.Sprint(Accepted, nil), "Write")
	_, _, _, next := p.State()
	rig.Is(t, next <= 3, true, "the next event while the first is not taken: %v, at most %v", next, 3)
	p.Signal(syscall.SIGWINCH)
	rig.Is(t, p.Terminate(), true, "Terminate: running")
	rig.Until(t, "the leader has exited", func() bool { return !p.group.signal(0) })
	rig.Is(t, p.Terminate(), false, "Terminate after the exit: running")
	open()
	finish(t, p)
	rig.Is(t, exitCode(p), 137, "exit code")
}

func TestWait(t *testing.T) {
	t.Parallel()
	p, _ := begin(t, Spec{Argv: sh("read x; echo $x; read x; sleep 60 & exit 5"), Stdin: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	rig.Is(t, p.Wait(ctx, 0), context.DeadlineExceeded, "Wait without output")
	waited := make(chan error, 1)
	go func() { waited <- p.Wait(t.Context(), 0) }()
	p.TryWrite("1", []byte("a\n"))
	rig.Must(t, <-waited)
	s := p.Read(0, nil)
	rig.Is(t, fmt.Sprint(len(s.Chunks), s.NextSeq), "1 2", "Read(0): chunks, next")
	p.TryWrite("2", []byte("b\n"))
	rig.Must(t, p.Wait(t.Context(), 1))
	want := Snapshot{NextSeq: 3, Exited: true, ExitCode: 5}
	rig.Same(t, "Read(1) after the exit", want, p.Read(1, nil))
	// The exit is known already: only the close is news.
	go func() { waited <- p.Wait(t.Context(), 2) }()
	p.KillGroup()
	rig.Must(t, <-waited)
	want.NextSeq, want.Closed = 4, true
	rig.Same(t, "Read(2) after the close", want, p.Read(2, nil))
}

func TestClose(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spec  Spec
		begin bool
	}{
		{"running", Spec{Argv: sh("sleep 60"), Stdin: true}, true},
		{"not begun", Spec{Argv: sh("sleep 60")}, false},
		{"terminal", Spec{Argv: sh("sleep 60"), TTY: true}, true},
		{"flood", Spec{Argv: []string{"yes"}}, true},
		{"escaped from the group", Spec{Argv: sh("setsid sleep 1 & exec sleep 60")}, true},
		{"ended", Spec{Argv: []string{"true"}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _ := launch(t, tt.spec)
			if tt.begin {
				p.Begin()
			}
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { p.Close() })
			}
			all.Wait()
			finish(t, p)
			rig.Is(t, syscall.Kill(p.PID(), 0), error(syscall.ESRCH), "a signal to the leader")
			s := p.Read(0, nil)
			rig.Is(t, fmt.Sprint(len(s.Chunks), s.Closed), "0 true", "after Close: chunks, closed")
			if status, err := p.TryWrite("x", []byte("x")); err == nil && status != StdinClosed {
				t.Errorf("TryWrite after Close: %v", status)
			}
		})
	}
}

func TestStartedProcess(t *testing.T) {
	t.Parallel()
	before := time.Now()
	p, rec := run(t, Spec{Argv: sh("echo $$")})
	rig.Is(t, strings.TrimSpace(rec.text(0)), strconv.Itoa(p.PID()), "pid %d, the child says", p.PID())
	if at := p.StartedAt(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("started at %v, want after %v", at, before)
	}
	rig.Same(t, "argv", sh("echo $$"), p.Argv())
	rig.Is(t, p.TTY(), false, "TTY")
}
