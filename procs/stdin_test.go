package procs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// answers compares what a write, or the end of stdin, is answered.
func answers(t *testing.T, want WriteStatus, wantErr error) func(WriteStatus, error) {
	return func(status WriteStatus, err error) {
		t.Helper()
		rig.Is(t, fmt.Sprint(status, " ", err), fmt.Sprint(want, " ", wantErr), "answer")
	}
}

func TestWriteOrder(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]Spec{
		"pipe": {Argv: sh("exec sha256sum"), Stdin: true},
		"pty":  {Argv: sh("stty raw -echo; echo ready; head -c 3000000 | sha256sum"), TTY: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, rec := begin(t, spec)
			if spec.TTY {
				waitFor(t, p, "ready")
			}
			hash := sha256.New()
			for i := range 60 {
				data := bytes.Repeat([]byte(strconv.Itoa(i)+"-"), 50_000)[:50_000]
				hash.Write(data)
				answers(t, Accepted, nil)(p.Write(t.Context(), strconv.Itoa(i), data))
				clear(data) // after the write the caller may use data again
			}
			if !spec.TTY {
				answers(t, Accepted, nil)(p.CloseStdin())
			}
			finish(t, p)
			sum := fmt.Sprintf("%x", hash.Sum(nil))
			rig.Is(t, strings.Contains(rec.text(0), sum), true, "%q is the sum %s", rec.text(0), sum)
		})
	}
}

func TestWriteStatus(t *testing.T) {
	t.Parallel()
	type write struct {
		id     string
		status WriteStatus
		err    error
	}
	check := func(t *testing.T, p *Process, writes ...write) {
		t.Helper()
		for _, w := range writes {
			answers(t, w.status, w.err)(p.TryWrite(w.id, []byte("x\n")))
			answers(t, w.status, w.err)(p.Write(t.Context(), w.id, []byte("x\n")))
		}
	}
	t.Run("pipe", func(t *testing.T) {
		t.Parallel()
		p, rec := begin(t, Spec{Argv: []string{"cat"}, Stdin: true})
		check(t, p, write{"a", Accepted, nil}, write{"", Accepted, nil})
		answers(t, Accepted, nil)(p.CloseStdin())
		answers(t, StdinClosed, nil)(p.CloseStdin())
		check(t, p, write{"a", Accepted, nil}, write{"b", StdinClosed, nil})
		finish(t, p)
		check(t, p, write{"a", Accepted, nil}, write{"b", StdinClosed, nil})
		rig.Is(t, rec.text(0), "x\nx\n", "the child read")
	})
	t.Run("terminal", func(t *testing.T) {
		t.Parallel()
		p, rec := begin(t, Spec{Argv: []string{"cat"}, TTY: true})
		check(t, p, write{"a", Accepted, nil})
		answers(t, 0, ErrTTY)(p.CloseStdin())
		p.TryWrite("end", []byte{4})
		finish(t, p)
		check(t, p, write{"a", Accepted, nil}, write{"b", 0, ErrStdinGone})
		rig.Is(t, rec.text(PTY), "x\r\nx\r\n", "output")
	})
	t.Run("child closed its stdin", func(t *testing.T) {
		t.Parallel()
		p, _ := begin(t, Spec{Argv: sh("exec 0<&-; echo shut; sleep 60"), Stdin: true})
		waitFor(t, p, "shut")
		check(t, p, write{"a", Accepted, nil}, write{"b", Accepted, nil})
	})
}

func TestInterruptByTerminal(t *testing.T) {
	t.Parallel()
	p, _ := begin(t, Spec{Argv: sh("echo up; exec sleep 60"), TTY: true})
	waitFor(t, p, "up")
	p.TryWrite("1", []byte{3})
	finish(t, p)
	rig.Is(t, exitCode(p), 130, "exit code after ^C")
}

// fillStdin writes until a write would have to wait, and returns how much was
// taken.
func fillStdin(t *testing.T, p *Process) (n int) {
	t.Helper()
	for {
		_, err := p.TryWrite(strconv.Itoa(n), make([]byte, 1<<16))
		if err == ErrStdinFull {
			return n
		}
		rig.Must(t, err)
		n++
	}
}

// someWait returns once that many writes wait.
func someWait(t *testing.T, p *Process, writes int) {
	t.Helper()
	rig.Until(t, fmt.Sprintf("%d writes wait", writes), func() bool {
		p.stdin.mu.Lock()
		defer p.stdin.mu.Unlock()
		return p.stdin.waiting >= writes
	})
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	blocked := func(t *testing.T, script string) (*Process, chan error) {
		p, _ := begin(t, Spec{Argv: sh(script), Stdin: true})
		// Taken is what fits into the pipe and the queue.
		n := fillStdin(t, p)
		rig.Is(t, min(max(n, 17), 18), n, "writes of 64 KiB that fitted")
		done := make(chan error, 1)
		go func() {
			status, err := p.Write(t.Context(), "waits", make([]byte, 2<<20))
			if err == nil && status != Accepted {
				err = fmt.Errorf("status %v", status)
			}
			done <- err
		}()
		someWait(t, p, 1)
		rig.Is(t, len(done), 0, "writes to a full queue that did not wait")
		return p, done
	}
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		p, _ := blocked(t, "sleep 60")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		rig.Is(t, rig.Err(p.Write(ctx, "z", []byte("z"))), context.DeadlineExceeded, "Write")
	})
	for name, tt := range map[string]struct {
		script string // GATE is where it waits
		then   func(t *testing.T, p *Process, gate gate)
	}{
		"room":  {"read x <GATE; exec cat >/dev/null", func(t *testing.T, _ *Process, gate gate) { gate.open(t) }},
		"exit":  {"sleep 60", func(_ *testing.T, p *Process, _ gate) { p.Terminate() }},
		"close": {"sleep 60", func(_ *testing.T, p *Process, _ gate) { p.Close() }},
		"exit of a leader whose child keeps stdin": {"sleep 60 <&0 & read x <GATE",
			func(t *testing.T, _ *Process, gate gate) { gate.open(t) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := newGate(t)
			p, done := blocked(t, strings.Replace(tt.script, "GATE", gate.path, 1))
			tt.then(t, p, gate)
			rig.Check(t, <-done)
		})
	}
	t.Run("terminal", func(t *testing.T) {
		t.Parallel()
		p, _ := begin(t, Spec{Argv: sh("stty raw -echo; echo ready; exec sleep 60"), TTY: true})
		waitFor(t, p, "ready")
		fillStdin(t, p)
		p.Terminate()
		finish(t, p)
	})
}

// TestLongWrite: the rest of a write longer than the queue stays with the
// caller until it fits.
func TestLongWrite(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	long := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	last := []byte("the last line\n")
	want := fmt.Sprintf("%x", sha256.Sum256(append(bytes.Clone(long), last...)))
	held := func(t *testing.T, p *Process) {
		t.Helper()
		p.stdin.mu.Lock()
		defer p.stdin.mu.Unlock()
		total := 0
		for _, piece := range p.stdin.queue {
			total += len(piece)
		}
		if total > stdinQueue || total != p.stdin.queued {
			t.Errorf("%d bytes are queued, %d counted, want at most %d", total, p.stdin.queued, stdinQueue)
		}
	}
	// cutShort begins a write that has to wait, and ends its context then.
	cutShort := func(t *testing.T, p *Process) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- rig.Err(p.Write(ctx, "long", long)) }()
		someWait(t, p, 1)
		cancel()
		rig.Is(t, <-done, context.Canceled, "Write")
	}
	reader := func(t *testing.T) (p *Process, rec *recorder, read func()) {
		gate := newGate(t)
		p, rec = begin(t, Spec{Argv: sh("read x <" + gate.path + "; exec sha256sum"), Stdin: true})
		return p, rec, func() { gate.open(t) }
	}
	check := func(t *testing.T, p *Process, rec *recorder) {
		t.Helper()
		finish(t, p)
		rig.Is(t, strings.TrimSuffix(rec.text(Stdout), "  -\n"), want, "the sum of what the child has read")
	}

	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		p, rec, read := reader(t)
		answers(t, 0, ErrStdinFull)(p.TryWrite("long", long))
		done := make(chan struct{})
		data := bytes.Clone(long)
		go func() {
			defer close(done)
			answers(t, Accepted, nil)(p.Write(t.Context(), "long", data))
			held(t, p)
			clear(data) // after the write the caller may use data again
		}()
		someWait(t, p, 1)
		select {
		case <-done:
			t.Fatal("accepted while the child reads nothing")
		default:
		}
		held(t, p)
		answers(t, 0, ErrStdinFull)(p.TryWrite("other", last))
		read()
		<-done
		answers(t, Accepted, nil)(p.Write(t.Context(), "last", last))
		answers(t, Accepted, nil)(p.CloseStdin())
		check(t, p, rec)
	})
	t.Run("stdin is closed behind it", func(t *testing.T) {
		t.Parallel()
		p, rec, read := reader(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			answers(t, Accepted, nil)(p.Write(t.Context(), "long", append(bytes.Clone(long), last...)))
		}()
		someWait(t, p, 1)
		answers(t, Accepted, nil)(p.CloseStdin())
		answers(t, StdinClosed, nil)(p.TryWrite("late", last))
		read()
		<-done
		check(t, p, rec)
	})
	t.Run("goes on where it was cut short", func(t *testing.T) {
		t.Parallel()
		p, rec, read := reader(t)
		for range 2 {
			cutShort(t, p)
			held(t, p)
		}
		answers(t, 0, ErrStdinCut)(p.TryWrite("last", last))
		answers(t, 0, ErrStdinCut)(p.Write(t.Context(), "last", last))
		// There are two callers, as when the first has not seen the end of its
		// connection yet.
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { answers(t, Accepted, nil)(p.Write(t.Context(), "long", long)) })
		}
		read()
		both.Wait()
		answers(t, Accepted, nil)(p.Write(t.Context(), "long", long)) // accepted before: the id is known
		answers(t, Accepted, nil)(p.Write(t.Context(), "last", last))
		answers(t, Accepted, nil)(p.CloseStdin())
		check(t, p, rec)
	})
	t.Run("stdin is closed after it was cut short", func(t *testing.T) {
		t.Parallel()
		p, rec, read := reader(t)
		cutShort(t, p)
		answers(t, Accepted, nil)(p.CloseStdin())
		answers(t, StdinClosed, nil)(p.Write(t.Context(), "long", long))
		read()
		finish(t, p)
		rig.Is(t, strings.HasPrefix(rec.text(Stdout), want), false, "the child has read everything")
	})
	t.Run("the process ends", func(t *testing.T) {
		t.Parallel()
		p, _, _ := reader(t)
		cutShort(t, p)
		p.Terminate()
		finish(t, p)
		answers(t, Accepted, nil)(p.Write(t.Context(), "long", long))
		answers(t, 0, ErrStdinGone)(p.Write(t.Context(), "other", long))
		answers(t, 0, ErrStdinGone)(p.TryWrite("other", long))
	})
	t.Run("the child closes its stdin", func(t *testing.T) {
		t.Parallel()
		p, _ := begin(t, Spec{Argv: sh("exec 0<&-; sleep 60"), Stdin: true})
		answers(t, Accepted, nil)(p.Write(t.Context(), "long", long))
		answers(t, Accepted, nil)(p.TryWrite("longer", long))
	})
}

func TestSeenIDs(t *testing.T) {
	t.Parallel()
	var s seenIDs
	for i := range 3 * maxSeen {
		s.add(keyOf(strconv.Itoa(i)))
	}
	for _, tt := range []struct {
		id   int
		want bool
	}{{0, false}, {2*maxSeen - 1, false}, {2 * maxSeen, true}, {3*maxSeen - 1, true}, {3 * maxSeen, false}} {
		rig.Is(t, s.has(keyOf(strconv.Itoa(tt.id))), tt.want, "after %d ids %d is known", 3*maxSeen, tt.id)
	}
	rig.Is(t, fmt.Sprint(len(s.known), len(s.ring)), fmt.Sprint(maxSeen, maxSeen), "ids that are remembered")
}
