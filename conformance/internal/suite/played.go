package suite

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/protocol/contract"
)

// A played executor runs nothing. It has one session with one process, which does what the case says.
//
// One goroutine accepts, one for each connection reads it, and one plays the process. All state is under mu, and
// changed wakes who waits for it.
type played struct {
	c      *ClientCase
	token  string
	url    string
	done   chan struct{} // closed at the end of the case
	stop   func()
	giveUp context.CancelFunc
	http   *http.Server
	wg     sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed, and made anew, with each change
	faults   []error
	current  *clientConn // that has the session
	session  bool
	resumes  int
	busy     int
	silent   bool
	lost     bool   // the answer that the case loses
	refused  int    // writes
	accepted int    // connections
	intake   intake // of all of them
	behind   string
	never    map[string]bool // requests without an answer that must not come again
	known    []string        // server requests that were answered by an error
	process  playedProcess
}

type playedProcess struct {
	id      string
	started bool
	seq     uint64
	chunks  []protocol.OutputChunk
	code    *int
	closed  bool
	input   bytes.Buffer
	eof     bool
	writes  map[string]string
}

// A clientConn is one connection of the client.
type clientConn struct {
	p       *played
	ws      *websocket.Conn
	writing sync.Mutex
	// Of the goroutine that reads.
	greeted, initialized bool
	waiting              map[string]bool // ids without an answer, under p.mu
}

// listenAs begins to play an executor. giveUp ends the case, which it calls a while after the first fault.
func listenAs(ctx context.Context, c *ClientCase, token string, giveUp context.CancelFunc) (*played, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &played{c: c, token: token, url: "ws://" + l.Addr().String(), done: make(chan struct{}), changed: make(chan struct{}),
		giveUp: giveUp, busy: c.Busy, refused: c.RefuseWrites, never: map[string]bool{}}
	p.process.writes = map[string]string{}
	p.stop = sync.OnceFunc(func() { close(p.done) })
	context.AfterFunc(ctx, p.stop)
	p.http = &http.Server{Handler: http.HandlerFunc(p.accept), ReadHeaderTimeout: time.Minute, MaxHeaderBytes: maxHead}
	p.wg.Go(func() { _ = p.http.Serve(l) })
	return p, nil
}

// close ends all and returns what the client has done wrong.
func (p *played) close() []error {
	p.mu.Lock() // who is accepted from now on is refused, so nobody joins those that are waited for
	p.stop()
	p.mu.Unlock()
	_ = p.http.Close()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// input is what the client has written to the process.
func (p *played) input() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process.input.String()
}

// maxFaults bounds what a report says of one case.
const maxFaults = 5

func (p *played) faultLocked(format string, args ...any) {
	if len(p.faults) == 0 {
		time.AfterFunc(grace, p.giveUp) // a client that is wrong may wait for ever
	}
	if len(p.faults) < maxFaults {
		p.faults = append(p.faults, fmt.Errorf(format, args...))
	}
}

func (p *played) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until something is so, it is late, or the case has ended.
func (p *played) await(late <-chan time.Time, isLocked func() bool) {
	for {
		p.mu.Lock()
		is, changed := isLocked(), p.changed
		p.mu.Unlock()
		if is {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-p.done:
			return
		}
	}
}

// ended reports whether the case has ended.
func (p *played) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

const (
	// maxAccepted is how many connections a client may open in one case. One that tries every 100 ms opens fewer.
	maxAccepted = 2000
	// maxWaiting is how many requests of a connection may wait for their answers (rpc.md 2.6).
	maxWaiting = 1024
)

// accept is called for each connection.
func (p *played) accept(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.accepted++; p.ended() || p.accepted > maxAccepted {
		p.mu.Unlock()
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	p.wg.Add(1) // close waits for it: the server does not
	defer p.wg.Done()
	if r.Header.Get("Origin") != "" {
		p.faultLocked("the handshake has an Origin")
	}
	if r.Header.Get("Sec-WebSocket-Protocol") != "" {
		p.faultLocked("the handshake asks for a subprotocol")
	}
	if p.token != "" && r.Header.Get("Authorization") != "Bearer "+p.token {
		p.faultLocked("the handshake does not show the token")
	}
	p.mu.Unlock()
	if p.c.Upgrade == "refuse" {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	if p.c.Upgrade != "" {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(grace))
		switch p.c.Upgrade {
		case "garbage":
			_, _ = conn.Write(bytes.Repeat([]byte("\x00\xff\x1b[2Jgarbage\r\n"), 10_000))
		case "silence":
			<-p.done
		}
		return
	}
	ws, err := (&websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}).Upgrade(w, r, nil)
	if err != nil {
		p.mu.Lock()
		p.faultLocked("the handshake: %w", err)
		p.mu.Unlock()
		return
	}
	ws.SetReadLimit(maxMessage)
	c := &clientConn{p: p, ws: ws, waiting: map[string]bool{}}
	gone := make(chan struct{})
	p.wg.Go(func() { // the end of the case unblocks who reads and writes
		select {
		case <-p.done:
		case <-gone:
		}
		c.end()
	})
	defer close(gone)
	for {
		kind, message, err := ws.ReadMessage()
		if err != nil || p.ended() {
			break
		}
		p.mu.Lock()
		err = p.intake.take(message)
		switch {
		case err != nil:
			p.faultLocked("the client: %w", err)
		case kind != websocket.TextMessage:
			p.faultLocked("a message is in a binary frame")
		default:
			c.takeLocked(message)
		}
		p.mu.Unlock()
		if err != nil {
			break
		}
	}
	p.mu.Lock()
	if p.current == c {
		p.current = nil
	}
	p.mu.Unlock()
}

// end cuts the connection.
func (c *clientConn) end() { _ = c.ws.NetConn().Close() }

// cutLocked cuts the connection that has the session.
func (p *played) cutLocked() {
	if p.current != nil {
		p.current.end()
		p.current = nil
	}
}

// send writes a message, and gives a client that does not read up with the case.
func (c *clientConn) send(message []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.ws.WriteMessage(websocket.TextMessage, message)
}

// request has the members of a message of a client.
type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  json.RawMessage `json:"error"`
}

// A refusal is the error of an answer.
type refusal struct {
	Code    protocol.Code   `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// takeLocked judges a message and answers it.
func (c *clientConn) takeLocked(message []byte) {
	p := c.p
	var r request
	if err := json.Unmarshal(message, &r); err != nil {
		p.faultLocked("the client sends %.100q, which is no message: %w", message, err)
		return
	}
	if r.Method == "" {
		if r.Error != nil {
			p.known = append(p.known, strings.Trim(string(r.ID), `"`))
			p.wakeLocked()
		}
		return
	}
	flags, err := contracttest.Asks(message)
	if err != nil {
		p.faultLocked("the contract: %w: %.300s", err, message)
		c.answerLocked(r, nil, &refusal{Code: protocol.CodeInvalidParams, Message: "this does not follow the contract"})
		return
	}
	for _, flag := range flags {
		if r.Method != protocol.MethodInitialize && !slices.Contains(p.c.Flags, flag) {
			p.faultLocked("%s uses what %s stands for, which was not announced", r.Method, flag)
		}
	}
	if r.ID == nil {
		if !c.greeted {
			p.faultLocked("initialized comes before the answer to initialize")
		}
		c.initialized = true
		p.wakeLocked()
		return
	}
	if id := string(r.ID); len(c.waiting) == maxWaiting {
		p.faultLocked("more than %d requests wait for their answers", maxWaiting)
		return
	} else if c.waiting[id] {
		p.faultLocked("the id %.100s is used again before it is answered", id)
	} else {
		c.waiting[id] = true
	}
	if r.Method != protocol.MethodInitialize && !c.initialized {
		p.faultLocked("%s comes before initialized", r.Method)
		c.answerLocked(r, nil, &refusal{Code: protocol.CodeInvalidRequest, Message: "client must send initialized before"})
		return
	}
	if contract.Load().Method(r.Method).Repeat == "never" {
		key := r.Method + string(r.Params)
		if p.never[key] {
			p.faultLocked("%s comes again without an answer, although it may have been done", r.Method)
		}
		p.never[key] = true
	}
	if !p.silent {
		c.carryOutLocked(r)
	}
}

// answerLocked answers a request, unless the case loses the answer.
func (c *clientConn) answerLocked(r request, result any, no *refusal) {
	p := c.p
	if r.ID == nil {
		return
	}
	if r.Method == p.c.Lose && !p.lost {
		p.lost = true
		p.cutLocked()
		return
	}
	message := map[string]any{"id": r.ID}
	if no != nil {
		message["error"] = no
	} else {
		message["result"] = result
	}
	text, err := json.Marshal(message)
	if err != nil {
		p.faultLocked("an answer of the suite: %w", err)
		return
	}
	delete(c.waiting, string(r.ID))
	delete(p.never, r.Method+string(r.Params))
	c.writing.Lock() // before mu is free: an event that follows comes behind the answer
	p.mu.Unlock()
	_ = c.ws.WriteMessage(websocket.TextMessage, text)
	c.writing.Unlock()
	p.mu.Lock()
}

var sessionID = "5f3c1c5e-7f0b-4c39-9d5a-2f1a3c1d9e77"

// carryOutLocked does what a request asks for.
func (c *clientConn) carryOutLocked(r request) {
	p := c.p
	var params struct {
		ResumeSessionID *string `json:"resumeSessionId"`
		ProcessID       string  `json:"processId"`
		protocolParams
	}
	_ = json.Unmarshal(r.Params, &params) // the contract has seen it
	process := &p.process
	running := process.started && params.ProcessID == process.id
	switch r.Method {
	case protocol.MethodInitialize:
		c.initializeLocked(r, params.ResumeSessionID)
	case protocol.MethodEnvironmentInfo:
		c.answerLocked(r, p.info(), nil)
	case protocol.MethodEnvironmentStatus:
		c.answerLocked(r, map[string]any{"status": "ready"}, nil)
	case protocol.MethodProcessStart:
		switch {
		case !slices.Equal(params.Argv, p.c.Argv):
			p.faultLocked("process/start: argv is %.300q, not %.300q", params.Argv, p.c.Argv)
		case process.started:
			p.faultLocked("process/start comes twice")
		}
		if p.c.Error != nil {
			c.answerLocked(r, nil, p.c.Error)
			return
		}
		first := !process.started
		process.started, process.id = true, params.ProcessID
		c.answerLocked(r, map[string]any{"processId": params.ProcessID, "sandboxType": "none"}, nil)
		if first {
			p.wg.Go(p.play)
		}
	case protocol.MethodProcessWrite:
		c.writeLocked(r, params.protocolParams, running)
	case protocol.MethodProcessCloseStdin:
		status := "unknownProcess"
		if running {
			status, process.eof = "accepted", true
			p.wakeLocked()
		}
		c.answerLocked(r, map[string]any{"status": status}, nil)
	case protocol.MethodProcessRead:
		if !running {
			c.answerLocked(r, nil, &refusal{Code: protocol.CodeInvalidRequest, Message: "unknown process"})
			return
		}
		p.wg.Go(func() { c.read(r, params.protocolParams) })
	case protocol.MethodProcessTerminate:
		c.answerLocked(r, map[string]any{"running": running && process.code == nil}, nil)
	case protocol.MethodProcessSignal, protocol.MethodProcessResize:
		c.answerLocked(r, map[string]any{}, nil)
	default:
		c.answerLocked(r, nil, &refusal{Code: protocol.CodeMethodNotFound, Message: "this executor plays a part without " + r.Method})
	}
}

// protocolParams are those of requests about a process that a part needs.
type protocolParams struct {
	Argv     []string `json:"argv"`
	Chunk    []byte   `json:"chunk"`
	WriteID  string   `json:"writeId"`
	AfterSeq uint64   `json:"afterSeq"`
	MaxBytes *uint64  `json:"maxBytes"`
	WaitMs   uint64   `json:"waitMs"`
}

func (c *clientConn) initializeLocked(r request, resume *string) {
	p := c.p
	switch {
	case c.greeted:
		p.faultLocked("initialize comes twice on one connection")
	case resume == nil && p.session:
		p.faultLocked("after a cut the client opens another session instead of resuming its own")
	case resume != nil && (!p.session || *resume != sessionID):
		p.faultLocked("the client resumes the session %.100q, which it does not have", *resume)
	}
	if resume != nil && p.c.Forget {
		c.answerLocked(r, nil, &refusal{Code: protocol.CodeInvalidRequest, Message: "unknown session id " + *resume})
		return
	}
	if resume != nil && p.busy > 0 {
		p.busy--
		c.answerLocked(r, nil, &refusal{Code: protocol.CodeSessionAttached, Message: "the session has a connection"})
		return
	}
	p.session, p.current, c.greeted = true, c, true
	if resume != nil {
		p.resumes++
		p.wakeLocked()
	}
	result := map[string]any{"sessionId": sessionID, "environmentInfo": p.info()}
	maps.Copy(result, p.c.Answers)
	c.answerLocked(r, result, nil)
}

// info is the example of the contract, with the capabilities of the case.
func (p *played) info() map[string]any {
	var info map[string]any
	if err := json.Unmarshal(contract.Load().Method(protocol.MethodEnvironmentInfo).ResultExample, &info); err != nil {
		panic(err) // a test of the contract reads it
	}
	flags := map[string]bool{}
	for _, name := range p.c.Flags {
		flags[name] = true
	}
	info["capabilities"] = flags
	return info
}

func (c *clientConn) writeLocked(r request, w protocolParams, running bool) {
	p := c.p
	process := &p.process
	before, repeated := process.writes[w.WriteID]
	switch {
	case !running:
		c.answerLocked(r, map[string]any{"status": "unknownProcess"}, nil)
		return
	case repeated && before != string(w.Chunk):
		p.faultLocked("the writeId %.100q comes again with other bytes", w.WriteID)
	case !repeated && p.refused > 0, !repeated && p.behind != "" && p.behind != w.WriteID:
		// The first refused write has to come again before any later one is taken.
		p.refused = max(0, p.refused-1)
		if p.behind == "" {
			p.behind = w.WriteID
		}
		c.answerLocked(r, nil, &refusal{Code: protocol.CodeInvalidRequest, Message: "busy", Data: json.RawMessage(`{"reason":"busy"}`)})
		return
	case !repeated:
		p.behind = ""
		process.writes[w.WriteID] = string(w.Chunk)
		if process.input.Len()+len(w.Chunk) <= 2*maxLong {
			process.input.Write(w.Chunk)
		}
		p.wakeLocked()
	}
	c.answerLocked(r, map[string]any{"status": "accepted"}, nil)
}

// read answers process/read, once there is something to tell.
func (c *clientConn) read(r request, w protocolParams) {
	p := c.p
	if w.WaitMs > 0 {
		late := time.NewTimer(time.Duration(min(w.WaitMs, 600_000)) * time.Millisecond)
		defer late.Stop()
		p.await(late.C, func() bool { return p.process.seq > w.AfterSeq || p.process.closed })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	process := &p.process
	chunks, size, next := []protocol.OutputChunk{}, uint64(0), process.seq+1
	for _, chunk := range process.chunks {
		if chunk.Seq <= w.AfterSeq {
			continue
		}
		size += uint64(len(chunk.Chunk))
		if len(chunks) > 0 && w.MaxBytes != nil && size > *w.MaxBytes {
			next = chunk.Seq
			break
		}
		chunks = append(chunks, chunk)
	}
	c.answerLocked(r, map[string]any{"chunks": chunks, "nextSeq": next, "exited": process.code != nil, "exitCode": process.code,
		"closed": process.closed, "failure": nil, "sandboxDenied": false}, nil)
}

// play is the process.
func (p *played) play() {
	for i, a := range p.c.Play {
		if err := p.act(a); err != nil {
			p.mu.Lock()
			p.faultLocked("act %d: %w", i+1, err)
			p.mu.Unlock()
			return
		}
		if p.ended() {
			return
		}
	}
}

func (p *played) act(a act) error {
	switch {
	case a.Out != nil:
		p.print("stdout", string(*a.Out), a)
	case a.Err != nil:
		p.print("stderr", string(*a.Err), a)
	case a.Exit != nil:
		p.event(protocol.MethodProcessExited, a, func(seq uint64) map[string]any {
			p.process.code = a.Exit
			return map[string]any{"exitCode": *a.Exit}
		})
	case a.Closed:
		p.event(protocol.MethodProcessClosed, a, func(seq uint64) map[string]any {
			p.process.closed = true
			return map[string]any{}
		})
	case a.Stdin > 0:
		p.await(nil, func() bool { return p.process.input.Len() >= a.Stdin })
	case a.EOF:
		p.await(nil, func() bool { return p.process.eof })
	case a.Answered != "":
		p.await(nil, func() bool { return slices.Contains(p.known, a.Answered) })
	case a.Resumed:
		p.await(nil, func() bool { return p.current != nil && p.current.initialized && p.resumes > 0 })
	case a.Cut:
		p.mu.Lock()
		p.cutLocked()
		p.mu.Unlock()
	case a.Silent:
		p.mu.Lock()
		p.silent = true
		p.mu.Unlock()
	default:
		return p.say(a)
	}
	return nil
}

// say sends what a case has as it is.
func (p *played) say(a act) error {
	p.mu.Lock()
	c := p.current
	p.mu.Unlock()
	if c == nil {
		return nil
	}
	switch {
	case a.Send != nil:
		c.send(a.Send)
	case a.SendText != nil:
		c.send([]byte(*a.SendText))
	case a.Frame != nil:
		c.writing.Lock()
		defer c.writing.Unlock()
		_, _ = c.ws.NetConn().Write(a.Frame)
	default:
		return errors.New("it says nothing")
	}
	return nil
}

// chunkSize is how much output one event has.
const chunkSize = 16 << 10

func (p *played) print(stream, text string, a act) {
	for chunk := range slices.Chunk([]byte(text), chunkSize) {
		p.event(protocol.MethodProcessOutput, a, func(seq uint64) map[string]any {
			p.process.chunks = append(p.process.chunks, protocol.OutputChunk{Seq: seq, Stream: stream, Chunk: chunk})
			return map[string]any{"stream": stream, "chunk": base64.StdEncoding.EncodeToString(chunk)}
		})
	}
}

// event numbers an event of the process, keeps it, and tells it, unless it is to be lost or nobody is attached.
func (p *played) event(method string, a act, keepLocked func(seq uint64) map[string]any) {
	p.mu.Lock()
	p.process.seq++
	params := keepLocked(p.process.seq)
	params["processId"], params["seq"] = p.process.id, p.process.seq
	c := p.current
	p.wakeLocked()
	p.mu.Unlock()
	if c == nil || a.Lost {
		return
	}
	message, _ := json.Marshal(map[string]any{"method": method, "params": params}) // of plain values
	c.send(message)
	if a.Twice {
		c.send(message)
	}
}
