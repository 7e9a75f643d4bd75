package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// cuttable dials, and cuts what it has dialled.
type cuttable struct {
	dial dialFunc

	mu    sync.Mutex
	conns []rpc.Conn
}

func (c *cuttable) Dial(ctx context.Context) (rpc.Conn, error) {
	conn, err := c.dial(ctx)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conns[len(c.conns)-1].Close()
}

func (c *cuttable) dialled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// only returns the one session that a client sees.
func only(t *testing.T, c *client.Client) protocol.ListedSession {
	t.Helper()
	all, err := c.Sessions(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("the sessions are %+v, %v", all, err)
	}
	return all[0]
}

// TestNamedSession: a client starts a process in a session with a name and goes. Another one finds
// it, follows it over cuts, ends it, and gets its exit code and all of its output.
func TestNamedSession(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	dial := overWebSocket(t, newAgent(t))
	first := connect(t, client.Config{Dial: dial, SessionName: "n", Retain: new(time.Hour), ClientName: "first"})
	rig.Is(t, *first.Session(), protocol.OpenedSession{Name: "n", Created: true, RetainMs: 3_600_000}, "the session")
	params := shell("trap 'echo end; exit 3' TERM; echo out; echo err >&2; read x")
	params.ProcessID, params.PipeStdin = "p", true
	p := start(t, first, params)
	for e := range p.Events(t.Context()) {
		if e.Seq == 2 { // the trap is set
			break
		}
	}

	way := &cuttable{dial: dial}
	second := connect(t, client.Config{Dial: way.Dial})
	rig.Is(t, second.Session(), nil, "a session without a name")
	s := only(t, second)
	rig.Is(t, s.Name == "n" && s.Attached && s.ClientName == "first" && s.Running == 1, true, "the session is %+v", s)
	first.Close()
	o := second.Observe(s.SessionID)
	listed, err := o.Processes(t.Context())
	if err != nil || len(listed) != 1 || listed[0].ProcessID != "p" {
		t.Fatalf("the processes are %+v, %v", listed, err)
	}
	waited := make(chan int, 1)
	go func() {
		code, err := o.Wait(t.Context(), "p")
		rig.Check(t, err)
		waited <- code
	}()
	var seen []string
	for r, err := range o.Follow(t.Context(), "p", 0, true) {
		rig.Must(t, err)
		for _, chunk := range r.Chunks {
			if chunk.AtMs == nil || time.UnixMilli(*chunk.AtMs).Before(begun.Truncate(time.Millisecond)) {
				t.Errorf("a chunk is from %v", chunk.AtMs)
			}
			seen = append(seen, chunk.Stream+" "+string(chunk.Chunk))
		}
		if len(seen) == 2 { // and nothing is left: from here on it waits, over a cut
			way.cut()
			rig.Must(t, o.Signal(t.Context(), "p", protocol.SignalTerminate))
		}
	}
	rig.Is(t, strings.Join(seen[2:], "|"), "stdout end\n", "seen at the end")
	rig.Is(t, <-waited, 3, "the exit code")
	rig.Is(t, second.Generation() >= 2, true, "a connection was cut")
	// What is kept is read without waiting, from anywhere.
	n := 0
	for r, err := range o.Follow(t.Context(), "p", 2, false) {
		rig.Must(t, err)
		n += len(r.Chunks)
	}
	rig.Is(t, n, 1, "chunks are kept after the second")
	rig.Is(t, fmt.Sprint(o.Terminate(t.Context(), "p")), "false <nil>", "Terminate gives")
	rig.Must(t, second.EndSession(t.Context(), s.SessionID))
	rig.Is(t, len(rig.Value(second.Sessions(t.Context()))), 0, "sessions that are left")
	rig.Is(t, second.EndSession(t.Context(), s.SessionID) != nil, true, "no session ends twice")
	rig.Is(t, rig.Err(o.Wait(t.Context(), "p")) != nil, true, "a session that has ended cannot be looked into")
	_, err = client.Connect(t.Context(), client.Config{Dial: dial, SessionName: "n", Existing: true})
	rig.Is(t, said(err), "unknown session name n (code -32600)", "opening a session that has ended")
}

// TestTaken: a client whose session is taken fails, says so, and does not come back; who has taken
// it survives the loss of connections as ever.
func TestTaken(t *testing.T) {
	t.Parallel()
	dial := overWebSocket(t, newAgent(t))
	way := &cuttable{dial: dial}
	first := connect(t, client.Config{Dial: way.Dial, SessionName: "n"})
	p := start(t, first, shell("sleep 600"))
	_, err := client.DialURL(t.Context(), "ws://127.0.0.1:1", client.Named("n"), client.Settings(client.Config{Dial: dial}))
	rig.Is(t, client.Retryable(err), true, "nobody listens there: %v", err)
	err = rig.Err(client.Connect(t.Context(), client.Config{Dial: dial, SessionName: "n"}))
	rig.Is(t, client.Retryable(err), true, "another client has the session: %v", err)
	theirs := &cuttable{dial: dial}
	second := connect(t, client.Config{Dial: theirs.Dial, SessionName: "n", Take: true, ClientName: "second"})
	_, err = p.Wait(t.Context())
	if !errors.Is(err, client.ErrTaken) || !strings.Contains(err.Error(), `"second"`) || client.Retryable(err) {
		t.Errorf("the process of the first client gives %v", err)
	}
	<-first.Done()
	rig.Is(t, first.Err(), client.ErrTaken, "the first client")
	rig.Is(t, way.dialled(), 1, "times it has dialled")
	theirs.cut()
	rig.Check(t, rig.Err(second.Processes(t.Context())))
	rig.Is(t, second.Generation(), 2, "the generation after a cut")
}

// TestTakenAtOnce: a session may be taken before its client has finished the handshake, and while
// it recovers.
func TestTakenAtOnce(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		taken := func(l *link, r request) any {
			l.answer(*r.ID, f.answer(l, r))
			l.notify(protocol.MethodSessionTaken, protocol.TakenNotification{ClientName: "c"})
			return silence{}
		}
		f.once(protocol.MethodInitialize, taken)
		c, err := client.Connect(t.Context(), client.Config{Dial: f.dial})
		if err == nil {
			<-c.Done()
			err = c.Err()
			c.Close()
		}
		rig.Is(t, err, client.ErrTaken, "Connect")
		c = f.connect(t)
		f.on(protocol.MethodInitialize, taken)
		f.cut()
		<-c.Done()
		rig.Is(t, c.Err(), client.ErrTaken, "the client has failed with")
		synctest.Wait()
		rig.Is(t, f.count(protocol.MethodInitialize), 3, "handshakes")
	})
}

// TestNamedUnsupported: what a server does not know is no session with a name, nor one that ends
// when it should.
func TestNamedUnsupported(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		for _, cfg := range []client.Config{{SessionName: "n"}, {Retain: new(time.Second)}} {
			cfg.Dial = f.dial
			wantError[*client.UnsupportedError](t, rig.Err(client.Connect(t.Context(), cfg)), "%+v", cfg)
		}
		f.once(protocol.MethodInitialize, func(*link, request) any {
			return protocol.InitializeResult{SessionID: "s", Session: &protocol.OpenedSession{Name: "m"}}
		})
		wantError[*client.ProtocolError](t, rig.Err(client.Connect(t.Context(), client.Config{Dial: f.dial, SessionName: "n"})), "another name")
	})
}

// TestEndSessionLost: the end of a session is asked for again when the answer is lost, and that the
// session is unknown then is no error.
func TestEndSessionLost(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		f.info.Capabilities.NamedSessions = true
		c := f.connect(t)
		unknown := protocol.InvalidRequest("unknown session id n")
		f.on(protocol.MethodSessionEnd, func(l *link, _ request) any {
			f.on(protocol.MethodSessionEnd, func(*link, request) any { return unknown })
			l.close()
			return silence{}
		})
		rig.Must(t, c.EndSession(t.Context(), "n"))
		rig.Is(t, c.EndSession(t.Context(), "n") != nil, true, "an unknown session does not end")
		// A server that breaks the rules.
		f.on(protocol.MethodProcessRead, func(*link, request) any { return protocol.ReadResult{Chunks: []protocol.OutputChunk{}} })
		for _, err := range c.Observe("n").Follow(t.Context(), "p", 0, true) {
			wantError[*client.ProtocolError](t, err, "Follow")
		}
		f.on(protocol.MethodProcessRead, func(*link, request) any {
			return protocol.ReadResult{Chunks: []protocol.OutputChunk{}, NextSeq: 2, Exited: true}
		})
		wantError[*client.ProtocolError](t, rig.Err(c.Observe("n").Wait(t.Context(), "p")), "Wait")
	})
}
