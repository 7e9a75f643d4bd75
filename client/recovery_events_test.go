package client_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// spawn makes a process that no client of the test has started.
func (f *fake) spawn(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes[id] = &running{writes: map[string]bool{}}
}

// printed prints lines with the numbers from, up to but not including to, and returns them.
func (f *fake) printed(id string, from, to int) string {
	var all strings.Builder
	for i := from; i < to; i++ {
		line := fmt.Sprintln(i)
		f.print(id, line)
		all.WriteString(line)
	}
	return all.String()
}

// ends checks what a process has printed and how it has ended.
func ends(t testing.TB, p *client.Process, want string, wantCode int) {
	t.Helper()
	var got strings.Builder
	code, err := p.CopyOutput(t.Context(), &got, io.Discard)
	rig.Check(t, err)
	rig.Is(t, code, wantCode, "%s ends with", p.ID())
	if got.String() != want {
		t.Errorf("%s printed %d bytes, want %d: %.100q, want %.100q", p.ID(), got.Len(), len(want), got.String(), want)
	}
}

// TestCatchUp: what a process does while there is no connection arrives once, and in order.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// meanwhile happens while the client has no connection, and returns what was printed.
		meanwhile func(f *fake) string
		ended     bool // the process has
	}{
		{"nothing", func(*fake) string { return "" }, false},
		{"output", func(f *fake) string { return f.printed("p", 3, 50) }, false},
		{"output and exit", func(f *fake) string {
			s := f.printed("p", 3, 50)
			f.exit("p", 7)
			return s
		}, true},
		{"output after the exit", func(f *fake) string {
			f.happens("p", client.Event{Kind: client.Exited, ExitCode: 7})
			s := f.printed("p", 3, 50)
			f.happens("p", client.Event{Kind: client.Closed})
			return s
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c, p := f.process(t)
				want := f.printed("p", 0, 3)
				for range 5 { // connections in vain
					f.meets(refuse)
				}
				f.cut()
				want += tt.meanwhile(f)
				time.Sleep(time.Second)
				wants(t, c, client.Connected)
				if !tt.ended {
					want += f.printed("p", 50, 60)
					f.exit("p", 7)
				}
				ends(t, p, want, 7)
			})
		})
	}
}

// TestFailure: a process that has failed gives its output first.
func TestFailure(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		_, p := f.process(t)
		f.print("p", "one\n")
		f.on(protocol.MethodProcessRead, func(*link, request) any {
			chunk := protocol.OutputChunk{Seq: 2, Stream: protocol.StreamStdout, Chunk: []byte("two\n")}
			return &protocol.ReadResult{Chunks: []protocol.OutputChunk{chunk}, NextSeq: 3, Failure: new("gone")}
		})
		f.cut()
		var got strings.Builder
		_, err := p.CopyOutput(t.Context(), &got, io.Discard)
		rig.Says(t, err, "process failed: gone", "the end")
		rig.Is(t, got.String(), "one\ntwo\n", "output")
	})
}

// TestFlood: the events of a busy process come before the answer to initialize, more than
// can be held, and that hinders nothing.
func TestFlood(t *testing.T) {
	t.Parallel()
	const count = 5000
	var all strings.Builder
	for i := range count {
		fmt.Fprintln(&all, i)
	}
	for name, read := range map[string]bool{"read": true, "not read": false} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c, p := f.process(t)
				f.printed("p", 0, 3)
				f.on(protocol.MethodInitialize, func(l *link, r request) any {
					// Half has happened while nobody was there, and is not told.
					f.printed("p", 3, count/2)
					answer := f.answer(l, r) // from now on the client is told
					f.printed("p", count/2, count)
					return answer
				})
				f.cut()
				done := func() error { ends(t, p, all.String(), 0); return nil }
				if read {
					done, _ = background(t, done)
				}
				time.Sleep(time.Second)
				wants(t, c, client.Connected)
				rig.Check(t, rig.Err(c.Status(t.Context())))
				f.exit("p", 0)
				rig.Check(t, done())
			})
		})
	}
}

// TestRetentionGap: a process of which the server has not kept all is given up and
// terminated. The others go on.
func TestRetentionGap(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		bad, good := start(t, c, named("bad")), start(t, c, named("good"))
		want := f.printed("good", 0, 2)
		f.printed("bad", 0, 2)
		f.meets(refuse)
		f.cut()
		f.printed("bad", 2, 5)
		f.forget("bad")
		f.printed("bad", 5, 7)
		want += f.printed("good", 2, 5)
		time.Sleep(time.Second)
		wants(t, c, client.Connected)
		var got strings.Builder
		_, err := bad.CopyOutput(t.Context(), &got, io.Discard)
		recover, ok := errors.AsType[*client.RecoverError](err)
		gap, isGap := errors.AsType[*client.GapError](err)
		if !ok || !isGap || recover.ProcessID != "bad" || *gap != (client.GapError{After: 2, Through: 7}) {
			t.Errorf("the process fails with %v", err)
		}
		const text = "failed to recover process bad: exec-server protocol error: " +
			"process events are no longer retained while recovering through sequence 7"
		rig.Is(t, strings.HasPrefix(err.Error(), text), true, "the text is %s, want %s", err, text)
		rig.Is(t, got.String(), "0\n1\n", "it printed")
		if !f.terminated("bad") || f.terminated("good") || f.count(protocol.MethodProcessTerminate) != 1 {
			t.Errorf("%d were terminated", f.count(protocol.MethodProcessTerminate))
		}
		f.exit("good", 4)
		ends(t, good, want, 4)
		rig.Is(t, c.Generation(), 2, "the generation")
		again := start(t, c, named("bad"))
		f.exit("bad", 0)
		ends(t, again, "", 0)
	})
}

// TestNobodyReads: what a process that nobody reads prints is held by the server, before
// and after a loss of the connection. Then all arrives.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		prints int
		size   int
		cuts   int
	}{
		{"lines", 2000, 10, 3},
		{"large", 50, 60_000, 2},
		{"huge", 4, 900_000, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c, p := f.process(t)
				var want strings.Builder
				worst := [4]int{}
				look := func() {
					synctest.Wait()
					a, b, c, d := p.Held()
					for i, n := range []int{a, b, c, d} {
						worst[i] = max(worst[i], n)
					}
				}
				for cut := range tt.cuts {
					for i := range tt.prints {
						text := strings.Repeat(string(rune('a'+(cut*7+i)%26)), tt.size)
						f.print("p", text)
						want.WriteString(text)
					}
					look()
					f.cut()
					look()
					time.Sleep(time.Second)
					wants(t, c, client.Connected)
					look()
				}
				// The answer to one process/read is published whole, so the queue may hold
				// more than usual by what the server keeps of a process. This one keeps all.
				t.Logf("at most %d events with %d bytes wait, and %d with %d bytes for others", worst[0], worst[1], worst[2], worst[3])
				rig.Is(t, worst[2] <= 256 && worst[3] <= 1<<20, true, "%d events with %d bytes wait for others", worst[2], worst[3])
				f.exit("p", 5)
				ends(t, p, want.String(), 5)
			})
		})
	}
}

// TestAttachAnew: a client takes over a process of its session that it has not started.
func TestAttachAnew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		after   uint64
		forget  bool // the first five events
		exit    bool // before
		lose    bool // the first request
		want    string
		skipped uint64
		gap     *client.GapError
	}{
		{name: "all", want: "0\n1\n2\n3\n4\n5\n6\n7\n"},
		{name: "ended", exit: true, want: "0\n1\n2\n3\n4\n5\n6\n7\n"},
		{name: "forgotten", forget: true, want: "5\n6\n7\n", skipped: 5},
		{name: "forgotten and ended", forget: true, exit: true, want: "5\n6\n7\n", skipped: 5},
		{name: "after", after: 2, want: "2\n3\n4\n5\n6\n7\n"},
		{name: "after, forgotten", after: 5, forget: true, want: "5\n6\n7\n", skipped: 5},
		{name: "after, later ones forgotten", after: 4, forget: true, gap: &client.GapError{After: 4, Through: 5}},
		{name: "lost", lose: true, want: "0\n1\n2\n3\n4\n5\n6\n7\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				f.spawn("p")
				f.printed("p", 0, 5)
				if tt.forget {
					f.forget("p")
				}
				f.printed("p", 5, 8)
				if tt.exit {
					f.exit("p", 6)
				}
				c := f.connect(t)
				if tt.lose {
					f.lose(protocol.MethodProcessRead)
				}
				attach := func() (*client.Process, error) { return c.Attach(t.Context(), "p") }
				if tt.after > 0 {
					attach = func() (*client.Process, error) { return c.AttachAfter(t.Context(), "p", tt.after) }
				}
				p, err := attach()
				if tt.gap != nil {
					gap, ok := errors.AsType[*client.GapError](err)
					rig.Is(t, ok && *gap == *tt.gap, true, "AttachAfter gives %v", err)
					rig.Is(t, f.terminated("p"), false, "the process was terminated")
					p, err = c.Attach(t.Context(), "p") // the id is free
					rig.Must(t, err)
					tt.want, tt.skipped = "5\n6\n7\n", 5
				}
				rig.Must(t, err)
				rig.Is(t, p.Skipped(), tt.skipped, "skipped events")
				if !tt.exit {
					wantError[*client.ProtocolError](t, rig.Err(c.Attach(t.Context(), "p")), "attaching twice")
					tt.want += f.printed("p", 8, 10)
					f.cut()
					time.Sleep(time.Second)
					tt.want += f.printed("p", 10, 12)
					f.exit("p", 6)
				}
				ends(t, p, tt.want, 6)
			})
		})
	}
	t.Run("unknown", func(t *testing.T) {
		faked(t, func(t *testing.T, f *fake) {
			c := f.connect(t)
			for range 2 {
				rig.Is(t, said(rig.Err(c.Attach(t.Context(), "nobody"))), "unknown process id nobody (code -32600)", "Attach gives")
			}
			rig.Is(t, f.count(protocol.MethodProcessTerminate), 0, "requests to terminate")
		})
	})
}

// TestLostAfterCatchingUp: a process that had caught up over a connection which was lost before
// all had, is caught up again over the next one.
func TestLostAfterCatchingUp(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		p, q := start(t, c, named("p")), start(t, c, named("q"))
		f.printed("p", 0, 3)
		f.on(protocol.MethodProcessRead, func(l *link, r request) any {
			if r.id == "q" {
				return silence{}
			}
			time.AfterFunc(time.Second, func() {
				f.on(protocol.MethodProcessRead, nil)
				l.close()
				// Now nobody hears of it.
				f.printed("p", 3, 6)
				f.exit("p", 4)
			})
			return f.answer(l, r)
		})
		f.cut()
		ends(t, p, "0\n1\n2\n3\n4\n5\n", 4)
		f.exit("q", 5)
		ends(t, q, "", 5)
	})
}

// handed returns a connection to the fake for Accept and Replace.
func (f *fake) handed(t testing.TB) rpc.Conn {
	t.Helper()
	return rig.Value(f.accept(t.Context()))
}

// TestReplace: a client that cannot dial goes on over the connections that it is given.
func TestReplace(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c, err := client.Accept(t.Context(), f.handed(t), client.Config{})
		rig.Must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		p := start(t, c, named("p"))
		want := f.printed("p", 0, 3)
		synctest.Wait()

		// A connection that still lives is given up.
		time.Sleep(time.Second)
		rig.Must(t, c.Replace(f.handed(t)))
		wants(t, c, client.Connected)
		rig.Is(t, c.Generation(), 2, "the generation")
		want += f.printed("p", 3, 6)
		f.cut()
		want += f.printed("p", 6, 9)
		wants(t, c, client.Recovering)
		time.Sleep(30 * time.Second)

		// A server that has not noticed the loss yet is asked again on the connection that
		// there is.
		f.once(protocol.MethodInitialize, attachedStill)
		rig.Must(t, c.Replace(f.handed(t)))
		time.Sleep(time.Second)
		wants(t, c, client.Connected)
		f.cut()
		wants(t, c, client.Recovering)

		// One after the other is taken up.
		f.on(protocol.MethodInitialize, silent)
		rig.Must(t, c.Replace(f.handed(t)))
		synctest.Wait()
		busy := f.handed(t)
		rig.Is(t, c.Replace(busy), client.ErrReplacing, "Replace")
		rig.Is(t, rig.Err(busy.Read()) != nil, true, "the connection that was not taken is closed")
		f.on(protocol.MethodInitialize, nil)
		time.Sleep(11 * time.Second) // the handshake takes too long
		wants(t, c, client.Recovering)
		rig.Check(t, c.Replace(f.handed(t)))
		wants(t, c, client.Connected)
		f.exit("p", 2)
		ends(t, p, want, 2)

		// Nobody brings another one.
		f.cut()
		time.Sleep(45 * time.Second)
		wants(t, c, client.Failed)
		late := f.handed(t)
		rig.Is(t, c.Replace(late), c.Err(), "Replace of a client that has failed")
		rig.Is(t, rig.Err(late.Read()) != nil, true, "the connection that came too late is closed")
	})
}

// TestReplaceOfOthers: a client that dials takes no connections.
func TestReplaceOfOthers(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		wantError[*client.ProtocolError](t, c.Replace(f.handed(t)), "Replace")
		wants(t, c, client.Connected)
	})
}

// TestRetire: a client whose executor was replaced says so, to those that wait too.
func TestRetire(t *testing.T) {
	t.Parallel()
	for name, recovering := range map[string]bool{"connected": false, "recovering": true} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c, p := f.process(t)
				if recovering {
					f.meetsLater(hang)
					f.cut()
					wants(t, c, client.Recovering)
				}
				f.on("a", silent)
				call, _ := background(t, func() error { return c.Call(t.Context(), "a", protocol.Empty{}, nil) })
				synctest.Wait()
				c.Retire()
				wants(t, c, client.Failed)
				for name, err := range map[string]error{
					"the client": c.Err(), "the call": call(), "the process": rig.Err(p.Wait(t.Context())),
					"a new call": c.Call(t.Context(), "b", nil, nil), "a new start": rig.Err(c.Start(t.Context(), named("q"))),
				} {
					wantError[*client.DisconnectedError](t, err, "%s", name)
					rig.Is(t, err, client.ErrReplaced, "%s", name)
					rig.Is(t, strings.HasSuffix(err.Error(), "exec-server executor was replaced"), true, "%s fails with %v", name, err)
				}
				rig.Is(t, isSent(call()), !recovering, "sent was the call that fails with %#v", call())
				rig.Is(t, f.count("b"), 0, "a call was sent afterwards")
			})
		})
	}
}
