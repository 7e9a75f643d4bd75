package client_test

import (
	"context"
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

// lose makes the next request of a method be carried out, and its connection end before
// the answer.
func (f *fake) lose(method string) {
	f.once(method, func(l *link, r request) any {
		f.answer(l, r)
		l.close()
		return silence{}
	})
}

// background makes a call, and returns the function that tells its error. The test waits
// for it.
func background(t testing.TB, call func() error) (result func() error, over func() bool) {
	t.Helper()
	errs := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		errs <- call()
	}()
	result = func() error {
		<-done
		err := <-errs
		errs <- err
		return err
	}
	over = func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	t.Cleanup(func() { <-done })
	return result, over
}

// isSent reports whether err is the loss of a connection, after the request was sent.
func isSent(err error) bool {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	return ok && lost.Sent
}

// TestStaleLoss: the end of a connection that the client does not use any more changes
// nothing.
func TestStaleLoss(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		time.Sleep(time.Second)
		attempts := 0
		f.on(protocol.MethodInitialize, func(l *link, r request) any {
			if attempts++; attempts < 4 {
				return silence{}
			}
			return f.answer(l, r)
		})
		f.cut()
		time.Sleep(40 * time.Second)
		wants(t, c, client.Connected)
		_, changed := c.State()
		for _, l := range f.links[:len(f.links)-1] {
			l.close()
		}
		time.Sleep(time.Second)
		wants(t, c, client.Connected)
		select {
		case <-changed:
			t.Error("the state has changed")
		default:
		}
		rig.Is(t, c.Generation(), 2, "the generation")
		rig.Is(t, len(f.links), 5, "connections")
	})
}

// TestCandidateLost: a connection that is lost while the processes are brought up to the
// present is not installed, and the next one is tried.
func TestCandidateLost(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c, p := f.process(t)
		time.Sleep(time.Second)
		f.lose(protocol.MethodProcessRead)
		f.cut()
		wants(t, c, client.Recovering)
		time.Sleep(100 * ms)
		wants(t, c, client.Connected)
		f.dialled(time.Second, 0, 100*ms)
		rig.Is(t, c.Generation(), 2, "the generation")
		f.exit("p", 3)
		p.Discard()
		rig.Is(t, fmt.Sprint(p.Wait(t.Context())), "3 <nil>", "Wait gives")
	})
}

// TestCallsWait: while the client recovers calls wait, but not those that do not want to.
func TestCallsWait(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c, p := f.process(t)
		f.meetsLater(refuse)
		f.cut()
		wants(t, c, client.Recovering)

		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		given, givenUp := background(t, func() error { return c.Call(ctx, "a", protocol.Empty{}, nil) })
		call, called := background(t, func() error { return c.Call(t.Context(), "a", protocol.Empty{}, nil) })
		write, written := background(t, func() error { return p.Write(t.Context(), []byte("x")) })
		began, begun := background(t, func() error { return rig.Err(c.Start(t.Context(), named("q"))) })
		opened, open := background(t, func() error { return rig.Err(c.FS(nil).Open(t.Context(), "/f", protocol.OpenRead)) })
		fetched, fetch := background(t, func() error { return rig.Err(c.HTTP(t.Context(), protocol.HTTPRequestParams{})) })
		time.Sleep(10 * time.Second)
		overs := []func() bool{givenUp, called, written, begun, open, fetch}
		for i, over := range overs {
			rig.Is(t, over(), false, "call %d is over", i)
		}
		cancel(cause)
		rig.Is(t, given(), cause, "a call whose context has ended")

		fast := client.FailFast(t.Context())
		for name, err := range map[string]error{
			"Call":   c.Call(fast, "a", protocol.Empty{}, nil),
			"Status": rig.Err(c.Status(t.Context())),
			"Write":  p.Write(fast, []byte("y")),
			"Start":  rig.Err(c.Start(fast, named("r"))),
			"Open":   rig.Err(c.FS(nil).Open(fast, "/f", protocol.OpenRead)),
			"HTTP":   rig.Err(c.HTTP(fast, protocol.HTTPRequestParams{})),
			"Attach": rig.Err(c.Attach(fast, "other")),
		} {
			if !errors.Is(err, client.ErrRecovering) || !strings.HasSuffix(err.Error(), "exec-server environment is recovering") {
				t.Errorf("%s fails with %v", name, err)
			}
		}
		rig.Is(t, rig.Err(c.Status(fast)), client.ErrRecovering, "Status")

		f.meetsLater(nil)
		time.Sleep(100 * ms)
		wants(t, c, client.Connected)
		for i, result := range []func() error{call, write, began, opened, fetched} {
			rig.Is(t, overs[i+1]() && result() == nil, true, "then call %d gives %v", i, result())
		}
		rig.Is(t, f.count("a"), 1, "requests were sent")
		rig.Check(t, rig.Err(c.Status(fast)))
	})
}

// TestSingle: a client that cannot dial again fails with its connection.
func TestSingle(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		released := 0
		c := connect(t, client.Config{Dial: f.dial, Single: true, Release: func() { released++ }})
		p := start(t, c, named("p"))
		f.cut()
		wants(t, c, client.Failed)
		rig.Is(t, c.Err().Error(), "exec-server transport disconnected", "failed with")
		rig.Is(t, rig.Err(p.Wait(t.Context())), c.Err(), "Wait")
		time.Sleep(time.Minute)
		f.dialled(0, 0)
		_, _ = c.Close(), c.Close()
		rig.Is(t, released, 1, "times released")
	})
}

// TestStartLost: a process whose start was not answered is terminated when the client is
// back. Until the server has answered that, nobody else gets the id; what the process does
// meanwhile is not of interest.
func TestStartLost(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		time.Sleep(time.Second)
		f.lose(protocol.MethodProcessStart)
		f.meets(refuse)
		_, err := c.Start(t.Context(), named("p"))
		if !isSent(err) || client.Retryable(err) {
			t.Fatalf("Start gives %v", err)
		}
		taken := func(when string) {
			t.Helper()
			synctest.Wait()
			err := rig.Err(c.Start(t.Context(), named("p")))
			rig.Says(t, err, "session already registered for process p", "%s another start", when)
		}
		// The terminate is lost too, and then it is not answered for a while.
		terminates := 0
		var waiting request
		f.on(protocol.MethodProcessTerminate, func(l *link, r request) any {
			if terminates++; terminates == 1 {
				l.close()
			}
			waiting = r
			return silence{}
		})
		time.Sleep(300 * ms)
		wants(t, c, client.Connected)
		rig.Is(t, terminates, 2, "requests to terminate")
		rig.Is(t, waiting.id, "p", "the last one is of")
		taken("before the answer")
		f.print("p", "late")
		f.exit("p", 1)
		taken("after late events")
		f.on(protocol.MethodProcessTerminate, nil)
		waiting.link.answer(*waiting.ID, protocol.TerminateResult{})
		synctest.Wait()
		p := start(t, c, named("p"))
		f.print("p", "new")
		f.exit("p", 0)
		ends(t, p, "new", 0)
		rig.Is(t, f.count(protocol.MethodProcessStart), 2, "starts were sent")
	})
}

// TestStartLostForGood: where the client does not come back the id is free again, and the
// client ends.
func TestStartLostForGood(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		f.lose(protocol.MethodProcessStart)
		f.meetsLater(refuse)
		rig.Is(t, isSent(rig.Err(c.Start(t.Context(), named("p")))), true, "the start was sent, and its connection lost")
		time.Sleep(time.Minute)
		wants(t, c, client.Failed)
		rig.Is(t, rig.Err(c.Start(t.Context(), named("p"))), c.Err(), "then Start")
	})
}

// TestStartAgain: where the server knows a start that it gets again, a lost connection delays the start, and the command
// runs once, with all of its output. A start that nobody waits for any more is undone.
func TestStartAgain(t *testing.T) {
	forgotten := &protocol.Error{Code: protocol.CodeInvalidRequest, Message: "gone", Data: []byte(`{"reason":"forgotten"}`)}
	for _, tt := range []struct {
		name   string
		lose   func(f *fake, l *link, r request) // the connection
		back   dialFunc                          // how the client comes back
		ctx    func(context.Context) (context.Context, context.CancelFunc)
		starts int
		check  func(t *testing.T, f *fake, p *client.Process, err error)
	}{
		{"the request does not come", func(_ *fake, l *link, _ request) { l.close() }, nil, nil, 2, runsOn},
		{"the answer does not come", func(f *fake, l *link, r request) { f.answer(l, r); l.close() }, nil, nil, 2, runsOn},
		{"twice", func(f *fake, l *link, r request) { f.answer(l, r); f.lose(r.Method); l.close() }, nil, nil, 3, runsOn},
		{"the process has ended meanwhile", func(f *fake, l *link, r request) {
			f.answer(l, r)
			l.close()
			f.print("p", "out")
			f.exit("p", 3)
		}, nil, nil, 2, func(t *testing.T, f *fake, p *client.Process, err error) { ends(t, p, "out", 3) }},
		{"output is no longer there", func(f *fake, l *link, r request) {
			f.answer(l, r)
			l.close()
			f.print("p", "out")
			f.forget("p")
		}, nil, nil, 2, func(t *testing.T, f *fake, p *client.Process, err error) {
			wantError[*client.GapError](t, rig.Err(p.Wait(t.Context())), "Wait")
			synctest.Wait()
			rig.Is(t, f.terminated("p"), true, "it was terminated")
		}},
		{"the process is forgotten", func(f *fake, l *link, r request) {
			f.once(r.Method, func(*link, request) any { return forgotten })
			l.close()
		}, nil, nil, 2, func(t *testing.T, f *fake, p *client.Process, err error) {
			rig.Is(t, isSent(err) && !client.Retryable(err), true, "Start gives %v", err)
		}},
		{"refused", func(f *fake, l *link, r request) {
			f.once(r.Method, func(*link, request) any { return protocol.InvalidRequest("no") })
			l.close()
		}, nil, nil, 2, func(t *testing.T, f *fake, p *client.Process, err error) {
			wantError[*client.ServerError](t, err, "Start")
		}},
		{"cancelled", func(f *fake, l *link, r request) { f.answer(l, r); l.close() }, slowly,
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Second)
			}, 1, undone},
		{"fail fast", func(f *fake, l *link, r request) { f.answer(l, r); l.close() }, refuse,
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return client.FailFast(ctx), func() {}
			}, 1, undone},
		{"for good", func(f *fake, l *link, r request) { l.close(); f.meetsLater(refuse) }, nil, nil, 1, func(t *testing.T, f *fake, p *client.Process, err error) {
			rig.Is(t, isSent(err) && !client.Retryable(err), true, "Start gives %v", err)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				f.info.Capabilities.ProcessStartID = true
				c := f.connect(t)
				f.once(protocol.MethodProcessStart, func(l *link, r request) any { tt.lose(f, l, r); return silence{} })
				if tt.back != nil {
					f.meets(tt.back)
				}
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if tt.ctx != nil {
					ctx, cancel = tt.ctx(ctx)
				}
				defer cancel()
				p, err := c.Start(ctx, named("p"))
				rig.Is(t, f.count(protocol.MethodProcessStart), tt.starts, "starts were sent")
				tt.check(t, f, p, err)
			})
		})
	}
}

func runsOn(t *testing.T, f *fake, p *client.Process, err error) {
	rig.Must(t, err)
	f.print("p", "out")
	f.exit("p", 0)
	ends(t, p, "out", 0)
}

// slowly is what a dial meets that takes longer than the caller waits.
func slowly(ctx context.Context) (rpc.Conn, error) {
	time.Sleep(2 * time.Second)
	return nil, errRefused
}

func undone(t *testing.T, f *fake, _ *client.Process, err error) {
	rig.Is(t, isSent(err) || errors.Is(err, context.DeadlineExceeded), true, "Start gives %v", err)
	time.Sleep(time.Minute)
	rig.Is(t, f.terminated("p"), true, "it was terminated")
}

// TestLostRequests: a request whose answer is lost is made again only where that does no
// harm.
func TestLostRequests(t *testing.T) {
	type on struct {
		*client.Client
		t *testing.T
		p *client.Process
	}
	for _, tt := range []struct {
		method string
		again  bool
		call   func(on) error
	}{
		{protocol.MethodProcessWrite, true, func(c on) error { return c.p.Write(c.t.Context(), []byte("abc")) }},
		{protocol.MethodProcessRead, true, func(c on) error { return rig.Err(c.p.Read(c.t.Context(), protocol.ReadParams{})) }},
		{protocol.MethodProcessCloseStdin, true, func(c on) error { return c.p.CloseStdin(c.t.Context()) }},
		{protocol.MethodProcessResize, true, func(c on) error { return c.p.Resize(c.t.Context(), 7, 9) }},
		{protocol.MethodProcessList, true, func(c on) error { return rig.Err(c.Processes(c.t.Context())) }},
		{protocol.MethodProcessSignal, false, func(c on) error { return c.p.Signal(c.t.Context(), protocol.SignalUser1) }},
		{protocol.MethodProcessTerminate, false, func(c on) error { return c.p.Terminate(c.t.Context()) }},
		{protocol.MethodFSWriteFile, false, func(c on) error { return c.FS(nil).WriteFile(c.t.Context(), "/f", []byte("x")) }},
		{protocol.MethodFSOpen, false, func(c on) error { return rig.Err(c.FS(nil).Open(c.t.Context(), "/f", protocol.OpenReplace)) }},
		{protocol.MethodHTTPRequest, false, func(c on) error {
			return rig.Err(c.HTTP(c.t.Context(), protocol.HTTPRequestParams{Method: "POST", URL: "http://h/"}))
		}},
		{"any/thing", false, func(c on) error { return c.Call(c.t.Context(), "any/thing", protocol.Empty{}, nil) }},
		{protocol.MethodEnvironmentStatus, false, func(c on) error { return rig.Err(c.Status(c.t.Context())) }},
	} {
		t.Run(tt.method, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c, p := f.process(t)
				f.meets(refuse, refuse)
				p.Discard()
				lost := false
				f.on(tt.method, func(l *link, r request) any {
					if lost {
						return f.answer(l, r)
					}
					lost = true
					f.answer(l, r)
					l.close()
					return silence{}
				})
				err := tt.call(on{c, t, p})
				if tt.again && err != nil || !tt.again && !isSent(err) {
					t.Errorf("the call gives %v", err)
				}
				time.Sleep(time.Second)
				wants(t, c, client.Connected)
				want := 1
				if tt.again {
					want = 2
				}
				// The recovery reads too.
				if n := f.count(tt.method); tt.method != protocol.MethodProcessRead && n != want {
					t.Errorf("the request came %d times, want %d", n, want)
				}
			})
		})
	}
}

// TestCloseStdinOfOthers: an input that somebody else has closed before is still an error.
func TestCloseStdinOfOthers(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		_, p := f.process(t)
		f.lose(protocol.MethodProcessCloseStdin)
		rig.Check(t, p.CloseStdin(t.Context()))
		rig.Is(t, isClosed(p.CloseStdin(t.Context())), true, "closing again is refused")
	})
}

// TestStreamsEnd: bodies and files end with their connection, at once.
func TestStreamsEnd(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		r := rig.Value(c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: "http://h/"}))
		f.current().notify(protocol.MethodHTTPBodyDelta, map[string]any{
			"requestId": "http-1", "seq": 1, "deltaBase64": []byte("begun"), "done": false, "error": nil,
		})
		file := rig.Value(c.FS(nil).Open(t.Context(), "/f", protocol.OpenReplace))
		rig.Must(t, rig.Err(file.WriteAt([]byte("x"), 0)))
		f.meets(hang)
		f.cut()
		got, err := io.ReadAll(r.Body)
		rig.Is(t, string(got) == "begun" && isSent(err), true, "the body gives %q, %v", got, err)
		for range 2 {
			wantError[*client.DisconnectedError](t, rig.Err(file.WriteAt([]byte("y"), 1)), "writing")
			wantError[*client.DisconnectedError](t, rig.Err(file.ReadAt(make([]byte, 1), 0)), "reading")
			if f.since() == 0 {
				time.Sleep(time.Minute) // and then the client is back
			}
		}
		wants(t, c, client.Connected)
		rig.Must(t, errors.Join(file.Close(), r.Body.Close()))
		for method, want := range map[string]int{
			protocol.MethodFSOpen: 1, protocol.MethodFSWriteBlock: 1, protocol.MethodFSReadBlock: 0,
			protocol.MethodFSClose: 0, protocol.MethodHTTPRequest: 1,
		} {
			rig.Is(t, f.count(method), want, "%s came", method)
		}
	})
}

// TestFutileConnections: a server that takes the client back and drops it each time does
// not get more time each time. One that has been of use does.
func TestFutileConnections(t *testing.T) {
	t.Parallel()
	for name, useful := range map[string]bool{"futile": false, "useful": true} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c := f.connect(t)
				time.Sleep(time.Second)
				f.meetsLater(func(ctx context.Context) (rpc.Conn, error) {
					conn, err := f.accept(ctx)
					l := f.links[len(f.links)-1]
					time.AfterFunc(50*ms, l.close)
					return conn, err
				})
				f.cut()
				for f.since() < 40*time.Second {
					if useful {
						_ = c.Call(t.Context(), "a", protocol.Empty{}, nil)
					}
					time.Sleep(10 * ms)
				}
				synctest.Wait()
				if state, _ := c.State(); state == client.Failed {
					t.Fatalf("failed already: %v", c.Err())
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				state, _ := c.State()
				rig.Is(t, state != client.Failed, useful, "after a minute the client, which is %v, is there", state)
				if !useful && !strings.Contains(c.Err().Error(), "recovery timed out after 45s") {
					t.Errorf("failed with %v", c.Err())
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if last := f.dials[len(f.dials)-1]; !useful && (last < 45*time.Second || last > 46*time.Second) {
					t.Errorf("the last attempt came after %v, want 46 s at most", last)
				}
			})
		})
	}
}
