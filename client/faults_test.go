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
				rig.Is(t, ok && late.After == 10*time.Second, true, "got %v", err)
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
			wantText(t, "Connect", err, tt.want)
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
		"ApplyPatch": rig.Err(files.ApplyPatch(ctx, "/a", "", true)),
		"Watch":      rig.Err(files.Watch(ctx, "/a", false)),
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
	f, err := c.FS(nil).Open(t.Context(), "/a", protocol.OpenRead)
	rig.Must(t, err)
	wantText(t, "a malformed answer", rig.Err(f.ReadAt(make([]byte, 1), 0)), "decoding the result")
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
	r, err := c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: "http://localhost/"})
	rig.Must(t, err)
	for _, seq := range []uint64{1, 3} {
		rig.Must(t, s.Notify(protocol.MethodHTTPBodyDelta, &protocol.HTTPBodyDelta{RequestID: "http-1", Seq: seq, DeltaBase64: []byte("x")}))
	}
	got, err := io.ReadAll(r.Body)
	wantError[*client.ProtocolError](t, err, "the body")
	rig.Is(t, string(got), "x", "what came before")
	rig.Must(t, r.Body.Close())
	rig.Check(t, rig.Err(c.Status(t.Context())))
}
