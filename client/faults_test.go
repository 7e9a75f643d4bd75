package client_test

import (
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
	tests := map[string]func() rpc.Conn{
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
	}
	for name, conn := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := client.Connect(t.Context(), client.Config{
					Dial: func(context.Context) (rpc.Conn, error) { return conn(), nil },
				})
				late, ok := errors.AsType[*client.InitializeTimeoutError](err)
				if !ok || late.After != 10*time.Second {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestHandshakeErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		result any
		resume string
		want   string
	}{
		{"no session", struct{}{}, "", "without a session id"},
		{"another session", protocol.InitializeResult{SessionID: "other"}, "mine", "unexpected session other"},
		{"not an object", "text", "", "cannot unmarshal"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, dial := newServer(t, nil, rpc.Table{protocol.MethodInitialize: {Handle: answer(tt.result)}})
			_, err := client.Connect(t.Context(), client.Config{Dial: dial, ResumeSessionID: tt.resume})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
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
		if info, err := c.Info(t.Context()); err != nil || info.ExecutorVersion != "1" {
			t.Errorf("got %+v, %v", info, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
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
		"Start":      second(c.Start(ctx, sized)),
		"CloseStdin": p.CloseStdin(ctx),
		"Signal":     p.Signal(ctx, protocol.SignalKill),
		"Resize":     p.Resize(ctx, 1, 1),
		"Processes":  second(c.Processes(ctx)),
		"ReadConfig": second(c.ReadConfig(ctx, protocol.ConfigReadParams{})),
		"Installed":  second(c.Installed(ctx, nil)),
		"Sessions":   second(c.Sessions(ctx)),
		"EndSession": c.EndSession(ctx, "s"),
		"observer":   second(c.Observe("s").Processes(ctx)),
		"to wait":    second(c.Observe("s").Wait(ctx, "p")),
		"to signal":  c.Observe("s").Signal(ctx, "p", protocol.SignalKill),
		"to kill":    second(c.Observe("s").Terminate(ctx, "p")),
		"Rename":     files.Rename(ctx, "/a", "/b", true),
		"ApplyPatch": second(files.ApplyPatch(ctx, "/a", "", true)),
		"Watch":      second(files.Watch(ctx, "/a", false)),
		"DialSocket": second(c.DialSocket(ctx, "tcp://h:1", nil)),
		"Open":       second(files.Open(ctx, "/a", protocol.OpenReplace)),
		"sandbox":    second(c.FS(&protocol.Sandbox{}).Open(ctx, "/a", protocol.OpenRead)),
		"WriteFile":  files.WriteFile(ctx, "/a", make([]byte, 33<<20)),
	} {
		if _, ok := errors.AsType[*client.UnsupportedError](err); !ok {
			t.Errorf("%s gives %v", name, err)
		}
	}
	select {
	case method := <-s.requests:
		t.Errorf("%s was sent", method)
	default:
	}
}

// TestGap: a process of which an event is missing is given up and terminated; the
// other processes go on.
func TestGap(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, rpc.Table{
		protocol.MethodProcessStart:     {Handle: answer(&protocol.StartResult{})},
		protocol.MethodProcessTerminate: {Handle: answer(&protocol.TerminateResult{})},
		// It says that nothing has happened, in the time that it is given.
		protocol.MethodProcessRead: {Handle: rpc.Handle(func(_ context.Context, p protocol.ReadParams) (*protocol.ReadResult, error) {
			if p.WaitMs != nil {
				time.Sleep(time.Duration(*p.WaitMs) * time.Millisecond)
			}
			return &protocol.ReadResult{NextSeq: 1}, nil
		})},
	})
	c := connect(t, client.Config{Dial: dial, Single: true})
	bad, good := shell("true"), shell("true")
	bad.ProcessID, good.ProcessID = "bad", "good"
	lost, kept := start(t, c, bad), start(t, c, good)
	notify := func(method string, params any) {
		t.Helper()
		rig.Must(t, s.Notify(method, params))
	}
	for seq := uint64(2); seq < 300; seq++ {
		notify(protocol.MethodProcessOutput, &protocol.OutputNotification{
			ProcessID: "bad", OutputChunk: protocol.OutputChunk{Seq: seq, Stream: protocol.StreamStdout, Chunk: []byte("x")},
		})
	}
	s.expect(t, protocol.MethodProcessTerminate)
	if _, err := lost.Wait(t.Context()); !isProtocolError(err) {
		t.Errorf("Wait gives %v", err)
	}
	for e, err := range lost.Events(t.Context()) {
		if !isProtocolError(err) {
			t.Errorf("Events gives %v, %v", e, err)
		}
	}
	// Events come in the wrong order, and twice.
	notify(protocol.MethodProcessClosed, &protocol.ClosedNotification{ProcessID: "good", Seq: 2})
	for range 2 {
		notify(protocol.MethodProcessExited, &protocol.ExitedNotification{ProcessID: "good", Seq: 1, ExitCode: 4})
	}
	notify(protocol.MethodProcessExited, &protocol.ExitedNotification{ProcessID: "nobody", Seq: 1})
	notify("unknown/notification", protocol.Empty{})
	if code, err := kept.Wait(t.Context()); code != 4 || err != nil {
		t.Errorf("the other process: %d, %v", code, err)
	}
}

func isProtocolError(err error) bool {
	_, ok := errors.AsType[*client.ProtocolError](err)
	return ok
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
	if _, err := c.Start(ctx, params); !errors.Is(err, cause) {
		t.Fatalf("Start gives %v", err)
	}
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
	f, err := c.FS(nil).Open(t.Context(), "/a", protocol.OpenRead)
	rig.Must(t, err)
	if _, err := f.ReadAt(make([]byte, 1), 0); err == nil || !strings.Contains(err.Error(), "decoding the result") {
		t.Errorf("a malformed answer gives %v", err)
	}
	rig.Must(t, s.Notify(protocol.MethodProcessOutput, json.RawMessage(`{"processId":1}`)))
	<-c.Done()
	if _, err := c.Status(t.Context()); !isProtocolError(err) {
		t.Errorf("after a malformed notification: %v", err)
	}
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
	if _, ok := errors.AsType[*client.DisconnectedError](err); !ok || got.String() != "last words" {
		t.Errorf("got %q, %v", got.String(), err)
	}
	if want := "exec-server transport disconnected"; err.Error() != want {
		t.Errorf("the text is %q, want %q", err, want)
	}
}

func TestWriteErrorIsDisconnected(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, nil)
	c := connect(t, client.Config{Dial: dial, Single: true})
	s.Close()
	_, err := c.Status(t.Context())
	if _, ok := errors.AsType[*client.DisconnectedError](err); !ok || errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestBodySequence: a body that misses a piece fails, not the connection.
func TestBodySequence(t *testing.T) {
	t.Parallel()
	s, dial := newServer(t, plainInfo, rpc.Table{
		protocol.MethodHTTPRequest:       {Handle: answer(&protocol.HTTPResponse{Status: 200})},
		protocol.MethodEnvironmentStatus: {Handle: answer(&protocol.StatusResult{Status: "ready"})},
	})
	c := connect(t, client.Config{Dial: dial, Single: true})
	r, err := c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: "http://localhost/"})
	rig.Must(t, err)
	for _, seq := range []uint64{1, 3} {
		rig.Must(t, s.Notify(protocol.MethodHTTPBodyDelta, &protocol.HTTPBodyDelta{RequestID: "http-1", Seq: seq, DeltaBase64: []byte("x")}))
	}
	got, err := io.ReadAll(r.Body)
	if !isProtocolError(err) || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
	rig.Must(t, r.Body.Close())
	rig.Check(t, rig.Err(c.Status(t.Context())))
}
