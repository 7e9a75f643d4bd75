package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// server is a server that breaks the rules of the protocol where its table says so.
type server struct {
	*rpc.Peer
	requests chan string // methods, as they come
}

// newServer returns a server that knows the handshake, and how to dial it. It ends
// with its client.
func newServer(t *testing.T, info *protocol.EnvironmentInfo, table rpc.Table) (*server, dialFunc) {
	t.Helper()
	ours, theirs := rpc.Pipe()
	s := &server{requests: make(chan string, 64)}
	all := rpc.Table{protocol.MethodInitialize: {Handle: answer(protocol.InitializeResult{SessionID: "s", EnvironmentInfo: info})}}
	maps.Copy(all, table)
	for name, m := range all {
		handle := m.Handle
		m.Handle = func(ctx context.Context, params json.RawMessage) (any, error) {
			s.requests <- name
			return handle(ctx, params)
		}
		all[name] = m
	}
	s.Peer = rpc.NewPeer(theirs, rpc.Config{Table: all})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() { <-served })
	return s, func(context.Context) (rpc.Conn, error) { return ours, nil }
}

// answer is a handler that always says the same.
func answer(result any) rpc.Handler {
	return func(context.Context, json.RawMessage) (any, error) { return result, nil }
}

// plainInfo is the description of a server without any feature.
var plainInfo = &protocol.EnvironmentInfo{TempDir: protocol.NewPathURI("/tmp")}

// expect waits for a request.
func (s *server) expect(t *testing.T, method string) {
	t.Helper()
	for got := range s.requests {
		if got == method {
			return
		}
	}
}

func TestInitializeTimeout(t *testing.T) {
	t.Parallel()
	for name, conn := range map[string]func() rpc.Conn{
		"does not answer": func() rpc.Conn {
			ours, theirs := rpc.Pipe()
			go func() {
				_, _ = theirs.Read()
				_, _ = theirs.Read() // until the other end is closed
			}()
			return ours
		},
		"does not read": func() rpc.Conn {
			ours, _ := rpc.Pipe()
			return ours
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, err := client.Connect(t.Context(), client.Config{
				Dial: func(context.Context) (rpc.Conn, error) { return conn(), nil },
			})
			late, ok := errors.AsType[*client.InitializeTimeoutError](err)
			rig.Is(t, ok && late.After == 10*time.Second, true, "a server that %s: %v", name, err)
		})
	}
}

func TestHandshakeErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		result any
		resume string
		want   string
	}{
		{"no session", struct{}{}, "", "without a session id"},
		{"another session", protocol.InitializeResult{SessionID: "other"}, "mine", "unexpected session other"},
		{"not an object", "text", "", "cannot unmarshal"},
	} {
		_, dial := newServer(t, nil, rpc.Table{protocol.MethodInitialize: {Handle: answer(tt.result)}})
		_, err := client.Connect(t.Context(), client.Config{Dial: dial, ResumeSessionID: tt.resume})
		rig.Says(t, err, tt.want, "%s", tt.name)
	}
}

// TestInfoIsAskedOnce: a description that the handshake did not bring is asked for
// once.
func TestInfoIsAskedOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	_, dial := newServer(t, nil, rpc.Table{protocol.MethodEnvironmentInfo: {
		Handle: func(context.Context, json.RawMessage) (any, error) {
			asked++
			return &protocol.EnvironmentInfo{ExecutorVersion: "1", TempDir: plainInfo.TempDir}, nil
		},
	}})
	c := connect(t, client.Config{Dial: dial, Single: true})
	for range 3 {
		rig.Is(t, rig.Value(c.Info(t.Context())).ExecutorVersion, "1", "the version")
	}
	rig.Is(t, asked, 1, "times asked")
}

// TestUnsupported: what the server does not advertise is not sent to it.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, rpc.Table{protocol.MethodProcessStart: {Handle: answer(&protocol.StartResult{})}})
	c := connect(t, client.Config{Dial: dial, Single: true})
	s.expect(t, protocol.MethodInitialize)
	p := start(t, c, shell("true"))
	s.expect(t, protocol.MethodProcessStart)
	sized := shell("true")
	sized.Rows = new(uint16(1))
	ctx, files := t.Context(), c.FS(nil)
	for name, err := range map[string]error{
		"Start":      rig.Err(c.Start(ctx, sized)),
		"a proxy":    rig.Err(c.Start(ctx, protocol.StartParams{Argv: []string{"x"}, NetworkProxy: &protocol.NetworkProxy{}})),
		"CloseStdin": p.CloseStdin(ctx),
		"Signal":     p.Signal(ctx, protocol.SignalKill),
		"Resize":     p.Resize(ctx, 1, 1),
		"Processes":  rig.Err(c.Processes(ctx)),
		"ReadConfig": rig.Err(c.ReadConfig(ctx, protocol.ConfigReadParams{})),
		"Installed":  rig.Err(c.Installed(ctx, nil)),
		"Sessions":   rig.Err(c.Sessions(ctx)),
		"EndSession": c.EndSession(ctx, "s"),
		"observer":   rig.Err(c.Observe("s").Processes(ctx)),
		"to wait":    rig.Err(c.Observe("s").Wait(ctx, "p")),
		"to signal":  c.Observe("s").Signal(ctx, "p", protocol.SignalKill),
		"to kill":    rig.Err(c.Observe("s").Terminate(ctx, "p")),
		"Rename":     files.Rename(ctx, "/a", "/b", true),
		"StatMany":   rig.Err(files.StatMany(ctx, []string{"/a"}, "")),
		"Lstat":      rig.Err(files.Lstat(ctx, "/a")),
		"Lstats":     rig.Err(files.ReadDirLstat(ctx, "/a")),
		"Real":       rig.Err(files.CanonicalizeMissing(ctx, "/a")),
		"Options":    files.WriteFileWith(ctx, "/a", nil, client.WriteOptions{Atomic: true}),
		"ApplyPatch": rig.Err(files.ApplyPatch(ctx, "/a", "", true)),
		"Watch":      rig.Err(files.Watch(ctx, "/a", false)),
		"Search":     rig.Err(files.Search(ctx, "/a", protocol.SearchParams{})),
		"WatchPorts": rig.Err(c.WatchPorts(ctx, nil)),
		"DialSocket": rig.Err(c.DialSocket(ctx, "tcp://h:1", nil)),
		"Open":       rig.Err(files.Open(ctx, "/a", protocol.OpenReplace)),
		"sandbox":    rig.Err(c.FS(&protocol.Sandbox{}).Open(ctx, "/a", protocol.OpenRead)),
		"WriteFile":  files.WriteFile(ctx, "/a", make([]byte, 33<<20)),
	} {
		wantError[*client.UnsupportedError](t, err, "%s", name)
	}
	select {
	case method := <-s.requests:
		t.Errorf("%s was sent", method)
	default:
	}
}

// TestStartGivenUp: a start that nobody waits for any more is undone.
func TestStartGivenUp(t *testing.T) {
	t.Parallel()
	terminated := make(chan struct{})
	s, dial := newServer(t, plainInfo, rpc.Table{
		protocol.MethodProcessStart: {Handle: func(context.Context, json.RawMessage) (any, error) {
			<-terminated
			return &protocol.StartResult{}, nil
		}},
		protocol.MethodProcessTerminate: {Handle: func(context.Context, json.RawMessage) (any, error) {
			close(terminated)
			return &protocol.TerminateResult{}, nil
		}},
	})
	c := connect(t, client.Config{Dial: dial, Single: true})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("not any more")
	go func() {
		s.expect(t, protocol.MethodProcessStart)
		cancel(cause)
	}()
	params := shell("true")
	params.ProcessID = "p"
	rig.Is(t, rig.Err(c.Start(ctx, params)), cause, "Start")
	s.expect(t, protocol.MethodProcessTerminate)
}

// TestMalformed: a message that breaks the rules of the protocol ends the connection
// or the call.
func TestMalformed(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, rpc.Table{
		protocol.MethodFSReadBlock: {Handle: answer(json.RawMessage(`{"chunk":"!","eof":false}`))},
		protocol.MethodFSOpen:      {Handle: answer(protocol.Empty{})},
		protocol.MethodFSClose:     {Handle: answer(protocol.Empty{})},
	})
	c := connect(t, client.Config{Dial: dial, Single: true})
	f := rig.Value(c.FS(nil).Open(t.Context(), "/a", protocol.OpenRead))
	rig.Says(t, rig.Err(f.ReadAt(make([]byte, 1), 0)), "decoding the result", "a malformed answer")
	rig.Must(t, s.Notify(protocol.MethodProcessOutput, json.RawMessage(`{"processId":1}`)))
	<-c.Done()
	wantError[*client.ProtocolError](t, rig.Err(c.Status(t.Context())), "after a malformed notification")
}

// TestLoss: what came before the end of the connection is delivered first.
func TestLoss(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, rpc.Table{protocol.MethodProcessStart: {Handle: answer(&protocol.StartResult{})}})
	c := connect(t, client.Config{Dial: dial, Single: true})
	params := shell("true")
	params.ProcessID = "p"
	p := start(t, c, params)
	err := s.Notify(protocol.MethodProcessOutput, &protocol.OutputNotification{
		ProcessID: "p", OutputChunk: protocol.OutputChunk{Seq: 1, Stream: protocol.StreamStdout, Chunk: []byte("last words")},
	})
	rig.Must(t, err)
	s.Close()
	var got strings.Builder
	_, err = p.CopyOutput(t.Context(), &got, io.Discard)
	wantError[*client.DisconnectedError](t, err, "CopyOutput")
	rig.Is(t, got.String(), "last words", "what came before")
	rig.Is(t, err.Error(), "exec-server transport disconnected", "the text")
}

func TestWriteErrorIsDisconnected(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, nil)
	c := connect(t, client.Config{Dial: dial, Single: true})
	s.Close()
	_, err := c.Status(t.Context())
	wantError[*client.DisconnectedError](t, err, "a call")
	rig.Is(t, errors.Is(err, net.ErrClosed), false, "it is an error of the network: %v", err)
}

// TestBodySequence: a body that misses a piece fails, not the connection.
func TestBodySequence(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, rpc.Table{
		protocol.MethodHTTPRequest:       {Handle: answer(&protocol.HTTPResponse{Status: 200})},
		protocol.MethodEnvironmentStatus: {Handle: answer(&protocol.StatusResult{Status: "ready"})},
	})
	c := connect(t, client.Config{Dial: dial, Single: true})
	r := rig.Value(c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: "http://localhost/"}))
	for _, seq := range []uint64{1, 3} {
		rig.Must(t, s.Notify(protocol.MethodHTTPBodyDelta, &protocol.HTTPBodyDelta{RequestID: "http-1", Seq: seq, DeltaBase64: []byte("x")}))
	}
	got, err := io.ReadAll(r.Body)
	wantError[*client.ProtocolError](t, err, "the body")
	rig.Is(t, string(got), "x", "what came before")
	rig.Must(t, r.Body.Close())
	rig.Check(t, rig.Err(c.Status(t.Context())))
}

// TestLies: a server that lies ends in an error, or is not heard; never in wrong data. What is true
// here is that p prints "one", "two" and "three", and exits with 7; q prints "other" and lives.
func TestLies(t *testing.T) {
	t.Parallel()
	const (
		right = iota // p is told as it is
		alone        // p fails, with a part of the truth; q goes on
		ended        // the same, by an error of the protocol, and p is terminated
		all          // the connection is over, and the client with it
	)
	out := func(seq uint64, text string) client.Event {
		return client.Event{Kind: client.Output, Seq: seq, Stream: protocol.StreamStdout, Data: []byte(text)}
	}
	exit := func(seq uint64, code int) client.Event {
		return client.Event{Kind: client.Exited, Seq: seq, ExitCode: code}
	}
	closed := func(seq uint64) client.Event { return client.Event{Kind: client.Closed, Seq: seq} }
	truth := []client.Event{out(1, "one"), out(2, "two"), out(3, "three"), exit(4, 7), closed(5)}
	tells := func(events ...client.Event) func(*fake, *link) {
		return func(_ *fake, l *link) {
			for _, e := range events {
				l.tell("p", e)
			}
		}
	}
	says := func(messages ...string) func(*fake, *link) {
		return func(_ *fake, l *link) {
			for _, m := range messages {
				l.send([]byte(m))
			}
			tells(truth...)(nil, l)
		}
	}
	reads := func(result string) func(*fake, *link) {
		return func(f *fake, l *link) {
			f.on(protocol.MethodProcessRead, func(l *link, r request) any {
				if r.id == "p" {
					return json.RawMessage(result)
				}
				return f.answer(l, r)
			})
			l.tell("p", truth[0])
			l.tell("p", truth[2]) // and so it is asked for the second one
		}
	}
	for _, tt := range []struct {
		name string
		lies func(f *fake, l *link)
		want int
	}{
		{"none", tells(truth...), right},
		{"another order", tells(truth[4], truth[1], truth[3], truth[0], truth[2]), right},
		{"an event twice", tells(truth[0], truth[1], truth[1], truth[2], truth[3], truth[4], truth[4]), right},
		{"an event twice, and different", tells(truth[0], out(1, "ONE"), truth[1], truth[2], truth[3], exit(4, 8), truth[4]), right},
		{"back to the beginning", tells(truth[0], truth[1], truth[2], truth[0], truth[1], truth[3], truth[4]), right},
		{"an event after the last", tells(append(truth, out(6, "more"), exit(7, 9))...), right},
		{"number 0", tells(append([]client.Event{out(0, "zero")}, truth...)...), right},
		{"a jump", tells(truth[0], out(1<<40, "far"), truth[1], truth[2]), ended},
		{"a jump to the end of numbers", tells(truth[0], out(1<<64-1, "far"), truth[1], truth[2]), ended},
		{"an end too early", tells(truth[0], closed(2)), alone},
		{"two exits", tells(truth[0], truth[1], truth[2], exit(4, 7), exit(5, 8), closed(6)), alone},
		{"an end twice", tells(truth[0], closed(2), closed(3)), alone},

		{"nobody's events", says(`{"method":"process/output","params":{"processId":"nobody","seq":1,"stream":"stdout","chunk":"eHg="}}`), right},
		{"nobody's body", says(`{"method":"http/request/bodyDelta","params":{"requestId":"nobody","seq":1,"deltaBase64":"eHg=","done":true}}`), right},
		{"an unknown notification", says(`{"method":"no/such","params":{}}`), right},
		{"an answer to nothing", says(`{"id":4711,"result":{}}`), all},
		{"an answer again", says(`{"id":1,"result":{"sessionId":"t"}}`), all},
		{"a stream of no name", says(`{"method":"process/output","params":{"processId":"p","seq":1,"stream":"fourth","chunk":"eHg="}}`), all},
		{"no number", says(`{"method":"process/output","params":{"processId":"p","stream":"stdout","chunk":"eHg="}}`), all},
		{"a negative number", says(`{"method":"process/closed","params":{"processId":"p","seq":-1}}`), all},
		{"no base64", says(`{"method":"process/output","params":{"processId":"p","seq":1,"stream":"stdout","chunk":"!"}}`), all},
		{"no JSON", says(`nonsense`), all},
		{"64 MiB of nothing", says(strings.Repeat(" ", 64<<20)), all},
		{"64 MiB of brackets", says(strings.Repeat("[", 64<<20)), all},

		{"nothing new", reads(`{"chunks":[],"nextSeq":2,"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}`), alone},
		{"a jump over it", reads(`{"chunks":[],"nextSeq":9,"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}`), alone},
		{"a failure", reads(`{"chunks":[],"nextSeq":2,"exited":false,"exitCode":null,"closed":false,"failure":"gone","sandboxDenied":false}`), alone},
		{"output of no stream", reads(`{"chunks":[{"seq":2,"stream":"fourth","chunk":"eA=="}],"nextSeq":3,` +
			`"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}`), alone},
		{"no result of it", reads(`{"chunks":7}`), alone},
		{"chunks in another order", reads(`{"chunks":[{"seq":3,"stream":"stdout","chunk":"eA=="},{"seq":2,"stream":"stdout","chunk":"eA=="}],"nextSeq":4,` +
			`"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}`), alone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c := connect(t, client.Config{Dial: f.dial, Single: true})
				p, q := start(t, c, named("p")), start(t, c, named("q"))
				f.print("q", "other")
				tt.lies(f, f.current())
				var got bytes.Buffer
				code, err := p.CopyOutput(t.Context(), &got, &got)
				const want = "onetwothree"
				synctest.Wait()
				state, _ := c.State()
				switch {
				case !strings.HasPrefix(want, got.String()):
					t.Errorf("p printed %q, want a part of %q", got.String(), want)
				case tt.want == right && (err != nil || code != 7 || got.String() != want):
					t.Errorf("p ends with %q, %d, %v", got.String(), code, err)
				case tt.want != right && err == nil:
					t.Errorf("p is believed to have printed %q and to have exited with %d", got.String(), code)
				case (tt.want == all) != (state == client.Failed):
					t.Errorf("the client is %v (%v); p: %v", state, c.Err(), err)
				}
				if tt.want == all {
					return
				}
				if tt.want == ended {
					wantError[*client.ProtocolError](t, err, "the output")
					wantError[*client.ProtocolError](t, rig.Err(p.Wait(t.Context())), "Wait")
					rig.Is(t, f.count(protocol.MethodProcessTerminate), 1, "requests to terminate")
				}
				f.exit("q", 0)
				ends(t, q, "other", 0)
			})
		})
	}
}

// TestLiesInAnswers: an answer that is none fails its call.
func TestLiesInAnswers(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		for _, result := range []string{`7`, `null`, `[]`, `{"path":7}`, `{"path":"relative"}`, `{"path":"file://host/a"}`, `{}`} {
			f.on(protocol.MethodFSCanonicalize, func(*link, request) any { return json.RawMessage(result) })
			rig.Is(t, rig.Err(c.FS(nil).Canonicalize(t.Context(), "/a")) != nil, true, "%s is an error", result)
			rig.Check(t, rig.Err(c.Status(t.Context())))
		}
	})
}

// TestLiesInNames: a list with what is no name of a session is none, since names are printed.
func TestLiesInNames(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		f.info.Capabilities.NamedSessions = true
		c := f.connect(t)
		for _, name := range []string{"", "-rf", "a b", "a\nb", "\x1b]0;x\a", "$(reboot)", "é", strings.Repeat("n", 129)} {
			f.on(protocol.MethodSessionList, func(*link, request) any {
				return protocol.SessionListResult{Sessions: []protocol.ListedSession{{SessionID: "s", Name: "good"}, {SessionID: "t", Name: name}}}
			})
			all, err := c.Sessions(t.Context())
			wantError[*client.ProtocolError](t, err, "with %q Sessions", name)
			rig.Is(t, len(all), 0, "sessions")
		}
	})
}

// TestTwoAnswers: the first one counts.
func TestTwoAnswers(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		f.on(protocol.MethodFSCanonicalize, func(l *link, r request) any {
			l.answer(*r.ID, map[string]string{"path": "file:///first"})
			return map[string]string{"path": "file:///second"}
		})
		for range 10 {
			rig.Is(t, rig.Value(c.FS(nil).Canonicalize(t.Context(), "/a")), "/first", "the path")
		}
		time.Sleep(time.Second)
		if err := c.Err(); err != nil && !errors.Is(err, client.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestLongRefusal: of a refusal that is as long as a message may be, not much is kept.
func TestLongRefusal(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on(protocol.MethodFSReadFile, func(*link, request) any {
		return &protocol.Error{Code: -1, Message: strings.Repeat("é", 1<<20), Data: []byte(`"` + strings.Repeat("x", 1<<20) + `"`)}
	})
	c := f.connect(t)
	_, err := c.FS(nil).ReadFile(t.Context(), "/x")
	refused, ok := errors.AsType[*client.ServerError](err)
	if !ok || len(refused.Err.Message) > 64<<10 || len(refused.Err.Data) > 0 || !strings.HasPrefix(refused.Err.Message, "éé") || refused.Err.Code != -1 {
		t.Errorf("the error is %.100v", err)
	}
}
