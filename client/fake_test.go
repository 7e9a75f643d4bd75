package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// fake is a server in memory with one session, which outlives its connections. The test
// says what each dial meets, what happens in the processes, and where an answer is
// another one than that of a server that keeps the rules.
type fake struct {
	t     tester
	begun time.Time

	mu        sync.Mutex
	info      *protocol.EnvironmentInfo
	next      []dialFunc // what the next dials meet
	later     dialFunc   // what all others meet; nil: they are accepted
	dials     []time.Duration
	links     []*link
	attached  *link // that the session has now
	processes map[string]*running
	handlers  map[string]handler // by method, instead of answer
	requests  []request          // all, in order
	answers   []string           // to what the server has asked
	serving   sync.WaitGroup
}

// handler answers a request. A *protocol.Error is a refusal, and silence no answer.
type handler func(l *link, r request) any

type silence struct{}

type request struct {
	link   *link
	ID     *int64
	Method string
	Params json.RawMessage
	Error  json.RawMessage
	id     string // of the process, if the request is about one
}

// running is a process as the server knows it.
type running struct {
	events []client.Event
	first  int // index of the first event whose output is kept
	input  bytes.Buffer
	start  string          // its id
	writes map[string]bool // ids
	stdin  bool            // is closed
	ended  bool            // the process has exited, or was terminated
}

// link is one connection, seen from the server. It sends without waiting: out grows while
// the client does not read.
type link struct {
	fake  *fake
	conn  rpc.Conn
	wake  chan struct{}
	ended chan struct{}

	mu  sync.Mutex
	out [][]byte
}

// tester is what a fake needs of a test.
type tester interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// newFake makes a fake that ends with the test.
func newFake(t tester) *fake {
	f := &fake{
		t: t, begun: time.Now(), processes: map[string]*running{}, handlers: map[string]handler{},
		info: &protocol.EnvironmentInfo{TempDir: protocol.NewPathURI("/tmp"), Capabilities: protocol.Capabilities{
			ProcessResize: true, ProcessCloseStdin: true, ProcessSignals: true, ProcessList: true, FileWriteStreaming: true, FSWatch: true,
		}},
	}
	t.Cleanup(func() {
		f.mu.Lock()
		links := slices.Clone(f.links)
		f.mu.Unlock()
		for _, l := range links {
			_ = l.conn.Close()
		}
		f.serving.Wait()
	})
	return f
}

// faked runs a test against a fake, in time that passes while all wait.
func faked(t *testing.T, test func(t *testing.T, f *fake)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newFake(t)) })
}

func (f *fake) since() time.Duration { return time.Since(f.begun) }

// dial is for client.Config.
func (f *fake) dial(ctx context.Context) (rpc.Conn, error) {
	f.mu.Lock()
	f.dials = append(f.dials, f.since())
	meets := f.later
	if len(f.next) > 0 {
		meets, f.next = f.next[0], f.next[1:]
	}
	f.mu.Unlock()
	if meets == nil {
		meets = f.accept
	}
	return meets(ctx)
}

// accept is what a dial meets at a server that listens.
func (f *fake) accept(context.Context) (rpc.Conn, error) {
	ours, theirs := rpc.Pipe()
	l := &link{fake: f, conn: theirs, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links = append(f.links, l)
	f.serving.Go(l.read)
	f.serving.Go(l.write)
	return ours, nil
}

// acceptAndDrop is what a dial meets at a server that ends the connection at once.
func (f *fake) acceptAndDrop(ctx context.Context) (rpc.Conn, error) {
	conn, err := f.accept(ctx)
	f.mu.Lock()
	last := f.links[len(f.links)-1]
	f.mu.Unlock()
	_ = last.conn.Close()
	return conn, err
}

// acceptLate is what a dial meets at a server that is slow.
func (f *fake) acceptLate(ctx context.Context) (rpc.Conn, error) {
	time.Sleep(time.Second)
	return f.accept(ctx)
}

var errRefused = errors.New("connection refused")

func refuse(context.Context) (rpc.Conn, error) { return nil, errRefused }

func hang(ctx context.Context) (rpc.Conn, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// meets says what the next dials meet.
func (f *fake) meets(next ...dialFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = append(f.next, next...)
}

// meetsLater says what all dials meet after those of meets.
func (f *fake) meetsLater(later dialFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.later = later
}

// on answers a method from now on; nil does it by the rules again.
func (f *fake) on(method string, h handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers[method] = h
}

// once answers only the next request of a method.
func (f *fake) once(method string, h handler) {
	f.on(method, func(l *link, r request) any {
		f.on(method, nil)
		return h(l, r)
	})
}

// connect makes a client of the fake.
func (f *fake) connect(t testing.TB) *client.Client {
	t.Helper()
	return connect(t, client.Config{Dial: f.dial})
}

// process makes a client of the fake, and has it start the process p.
func (f *fake) process(t testing.TB) (*client.Client, *client.Process) {
	t.Helper()
	c := f.connect(t)
	return c, start(t, c, named("p"))
}

// current is the connection that the session has, nil if none.
func (f *fake) current() *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attached
}

// cut ends the connection of the session, after all that was under way has arrived.
func (f *fake) cut() {
	synctest.Wait()
	if l := f.current(); l != nil {
		l.close()
	}
}

// count tells how many requests of a method have come.
func (f *fake) count(method string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r.Method == method {
			n++
		}
	}
	return n
}

// dialled checks when dials came, since a moment.
func (f *fake) dialled(since time.Duration, want ...time.Duration) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []time.Duration
	for _, at := range f.dials {
		if at >= since {
			got = append(got, at-since)
		}
	}
	rig.Same(f.t, "dialled at", want, got)
}

// happens makes something happen in a process, and tells the client if it is there.
func (f *fake) happens(id string, e client.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.processes[id]
	e.Seq = uint64(len(p.events)) + 1
	p.events = append(p.events, e)
	p.ended = p.ended || e.Kind == client.Exited
	if f.attached != nil {
		f.attached.tell(id, e)
	}
}

// print makes a process print.
func (f *fake) print(id, text string) {
	f.happens(id, client.Event{Kind: client.Output, Stream: protocol.StreamStdout, Data: []byte(text)})
}

// exit ends a process.
func (f *fake) exit(id string, code int) {
	f.happens(id, client.Event{Kind: client.Exited, ExitCode: code})
	f.happens(id, client.Event{Kind: client.Closed})
}

// forget drops the output that a process has printed so far.
func (f *fake) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes[id].first = len(f.processes[id].events)
}

// input is what was written to a process.
func (f *fake) input(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[id].input.String()
}

// terminated reports whether a process was terminated or has exited.
func (f *fake) terminated(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[id].ended
}

// close ends the connection. What was not read is lost.
func (l *link) close() {
	l.fake.mu.Lock()
	if l.fake.attached == l {
		l.fake.attached = nil
	}
	l.fake.mu.Unlock()
	_ = l.conn.Close()
}

func (l *link) send(message []byte) {
	l.mu.Lock()
	l.out = append(l.out, message)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) write() {
	for {
		l.mu.Lock()
		out := l.out
		l.out = nil
		l.mu.Unlock()
		for _, message := range out {
			if l.conn.Write(message) != nil {
				return
			}
		}
		if len(out) > 0 {
			continue
		}
		select {
		case <-l.wake:
		case <-l.ended:
			return
		}
	}
}

// notify sends a notification.
func (l *link) notify(method string, params any) {
	l.send(rig.Value(json.Marshal(map[string]any{"method": method, "params": params})))
}

// tell notifies of an event.
func (l *link) tell(id string, e client.Event) {
	switch e.Kind {
	case client.Output:
		l.notify(protocol.MethodProcessOutput, map[string]any{"processId": id, "seq": e.Seq, "stream": e.Stream, "chunk": e.Data})
	case client.Exited:
		l.notify(protocol.MethodProcessExited, map[string]any{"processId": id, "seq": e.Seq, "exitCode": e.ExitCode, "sandboxDenied": e.SandboxDenied})
	case client.Closed:
		l.notify(protocol.MethodProcessClosed, map[string]any{"processId": id, "seq": e.Seq})
	}
}

// read takes requests until the connection ends.
func (l *link) read() {
	f := l.fake
	defer close(l.ended)
	defer l.close()
	for {
		message, err := l.conn.Read()
		if err != nil {
			return
		}
		r := request{link: l}
		if err := json.Unmarshal(message, &r); err != nil {
			f.t.Errorf("the client sends %.200q: %v", message, err)
			return
		}
		if r.Method == "" {
			f.mu.Lock()
			f.answers = append(f.answers, string(message))
			f.mu.Unlock()
		}
		if r.Method == "" || r.ID == nil {
			continue // an answer, or a notification
		}
		var about struct{ ProcessID string }
		_ = json.Unmarshal(r.Params, &about) // other requests have none
		r.id = about.ProcessID
		f.mu.Lock()
		f.requests = append(f.requests, r)
		h := f.handlers[r.Method]
		f.mu.Unlock()
		if h == nil {
			h = f.answer
		}
		l.answer(*r.ID, h(l, r))
	}
}

// answer sends an answer.
func (l *link) answer(id int64, result any) {
	answer := map[string]any{"id": id}
	switch r := result.(type) {
	case silence:
		return
	case *protocol.Error:
		e := map[string]any{"code": r.Code, "message": r.Message}
		if r.Data != nil {
			e["data"] = json.RawMessage(r.Data)
		}
		answer["error"] = e
	default:
		answer["result"] = r
	}
	l.send(rig.Value(json.Marshal(answer)))
}

// accepted answers a request that changes a process's input.
var accepted = map[string]string{"status": string(protocol.WriteAccepted)}

// answer answers as a server does that keeps the rules.
func (f *fake) answer(l *link, r request) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.processes[r.id]
	switch r.Method {
	case protocol.MethodInitialize:
		f.attached = l
		return protocol.InitializeResult{SessionID: "s", EnvironmentInfo: f.info}
	case protocol.MethodEnvironmentStatus:
		return map[string]string{"status": protocol.StatusReady}
	case protocol.MethodProcessStart:
		var params protocol.StartParams
		rig.Check(f.t, json.Unmarshal(r.Params, &params))
		switch {
		case p != nil && p.start != "" && p.start == params.StartID:
			return map[string]string{"processId": r.id, "sandboxType": protocol.SandboxNone}
		case p != nil && !p.ended:
			return protocol.Errorf(protocol.CodeInvalidRequest, "process %s already exists", r.id)
		}
		f.processes[r.id] = &running{start: params.StartID, writes: map[string]bool{}}
		return map[string]string{"processId": r.id, "sandboxType": protocol.SandboxNone}
	case protocol.MethodHTTPRequest:
		return map[string]any{"status": 200, "headers": []string{}, "bodyBase64": ""}
	case protocol.MethodFSWatch:
		var params protocol.WatchParams
		rig.Check(f.t, json.Unmarshal(r.Params, &params))
		return protocol.WatchResult{Path: params.Path}
	case protocol.MethodFSReadBlock:
		return map[string]any{"chunk": "", "eof": true}
	}
	if r.id == "" {
		return protocol.Empty{}
	}
	if p == nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "unknown process id %s", r.id)
	}
	switch r.Method {
	case protocol.MethodProcessRead:
		var params protocol.ReadParams
		rig.Check(f.t, json.Unmarshal(r.Params, &params))
		after := uint64(0)
		if params.AfterSeq != nil {
			after = *params.AfterSeq
		}
		return p.read(after)
	case protocol.MethodProcessWrite:
		var params struct {
			Chunk   []byte
			WriteID string
		}
		rig.Check(f.t, json.Unmarshal(r.Params, &params))
		if p.stdin {
			return map[string]string{"status": string(protocol.WriteStdinClosed)}
		}
		if !p.writes[params.WriteID] {
			p.writes[params.WriteID] = true
			p.input.Write(params.Chunk)
		}
		return accepted
	case protocol.MethodProcessCloseStdin:
		if p.stdin {
			return map[string]string{"status": string(protocol.WriteStdinClosed)}
		}
		p.stdin = true
		return accepted
	case protocol.MethodProcessTerminate:
		was := p.ended
		p.ended = true
		return map[string]bool{"running": !was}
	}
	return protocol.Empty{}
}

// read answers process/read.
func (p *running) read(after uint64) map[string]any {
	chunks := []map[string]any{}
	r := map[string]any{"nextSeq": len(p.events) + 1, "exited": false, "exitCode": nil, "closed": false, "failure": nil, "sandboxDenied": false}
	for i, e := range p.events {
		switch e.Kind {
		case client.Output:
			if e.Seq > after && i >= p.first {
				chunks = append(chunks, map[string]any{"seq": e.Seq, "stream": e.Stream, "chunk": e.Data})
			}
		case client.Exited:
			r["exited"], r["exitCode"] = true, e.ExitCode
		case client.Closed:
			r["closed"] = true
		}
	}
	r["chunks"] = chunks
	return r
}
