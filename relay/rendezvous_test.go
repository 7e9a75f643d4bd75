package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

const (
	testEnvironment  = "env-1"
	testRegistration = "reg-4c4b3218cf9dc278"
	testToken        = "token-that-nobody-may-print"
	testSignature    = "signature-that-nobody-may-print"
	testAuthority    = "authorization-that-nobody-may-print"
	// patience is how long a test waits for what must happen, on however busy a
	// machine.
	patience = 2 * time.Minute
)

// service is a registry and a rendezvous for tests, written after remote.md 3,
// 4 and 9 and over the generated code for frames. Without a router every
// websocket goes to the test; its hooks make it as bad as a test needs it.
type service struct {
	t        *testing.T
	registry *httptest.Server
	relay    *httptest.Server
	peers    chan *peer // websockets that the test plays the other end of
	log      *journal

	// Hooks, set before anything connects. n counts from 0.
	register func(n int, w http.ResponseWriter) bool // answered: true
	validate func(n int, r *wire.ValidateRequest, w http.ResponseWriter) bool
	connect  func(n int, answer *wire.ConnectResponse, w http.ResponseWriter) bool
	upgrade  func(role string, n int, w http.ResponseWriter) bool
	url      func(role string, n int) string // of the nth answer
	router   *router

	mu          sync.Mutex
	registers   int
	validates   int
	connects    int
	upgrades    map[string]int
	requestIDs  []string
	executorKey *wire.PublicKey
	harnessKey  *wire.PublicKey
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{t: t, peers: make(chan *peer, 16), upgrades: map[string]int{}, log: &journal{}}
	mux := http.NewServeMux()
	base := wire.PathPrefix + testEnvironment
	mux.HandleFunc("POST "+base+wire.PathRegister, s.serveRegister)
	mux.HandleFunc("POST "+base+wire.PathValidate, s.serveValidate)
	mux.HandleFunc("POST "+base+wire.PathConnect, s.serveConnect)
	s.registry = httptest.NewServer(mux)
	t.Cleanup(s.registry.Close)
	s.relay = httptest.NewUnstartedServer(http.HandlerFunc(s.serveRelay))
	s.relay.Listener = cuttingListener{s.relay.Listener}
	s.relay.Start()
	t.Cleanup(s.relay.Close)
	return s
}

func (s *service) rendezvousURL(role string, n int) string {
	if s.url != nil {
		return s.url(role, n)
	}
	return "ws" + strings.TrimPrefix(s.relay.URL, "http") + "/rendezvous?role=" + role + "&sig=" + testSignature
}

// client returns a registry client of our own for this service.
func (s *service) client() *Registry {
	s.t.Helper()
	r, err := NewRegistry(RegistryConfig{
		BaseURL:       s.registry.URL,
		EnvironmentID: testEnvironment,
		Tokens:        auth.Bearer(testToken),
		Logger:        s.log.logger(),
	})
	rig.Must(s.t, err)
	s.t.Cleanup(r.Close)
	return r
}

func decode(r *http.Request, request strictjson.Unmarshaler) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return strictjson.Unmarshal(text, request)
}

func (s *service) serveRegister(w http.ResponseWriter, r *http.Request) {
	var request wire.RegisterRequest
	rig.Check(s.t, decode(r, &request))
	s.mu.Lock()
	n := s.registers
	s.registers++
	s.executorKey = request.ExecutorPublicKey
	s.mu.Unlock()
	if s.register != nil && s.register(n, w) {
		return
	}
	url, profile := s.rendezvousURL("environment", n), wire.SecurityProfile
	reply(w, wire.RegisterResponse{
		EnvironmentID: new(testEnvironment), URL: &url,
		SecurityProfile: &profile, ExecutorRegistrationID: new(testRegistration),
	})
}

func (s *service) serveValidate(w http.ResponseWriter, r *http.Request) {
	var request wire.ValidateRequest
	rig.Check(s.t, decode(r, &request))
	s.mu.Lock()
	n := s.validates
	s.validates++
	known := s.harnessKey
	s.mu.Unlock()
	if s.validate != nil && s.validate(n, &request, w) {
		return
	}
	reply(w, wire.ValidateResponse{Valid: request.HarnessKeyAuthorization == testAuthority &&
		request.ExecutorRegistrationID == testRegistration && known != nil && known.Equal(request.HarnessPublicKey)})
}

func (s *service) serveConnect(w http.ResponseWriter, r *http.Request) {
	var request wire.ConnectRequest
	rig.Check(s.t, decode(r, &request))
	s.mu.Lock()
	n := s.connects
	s.connects++
	s.harnessKey = request.HarnessPublicKey
	answer := wire.ConnectResponse{
		EnvironmentID: testEnvironment, URL: s.rendezvousURL("harness", n),
		SecurityProfile: wire.SecurityProfile, ExecutorRegistrationID: testRegistration,
		ExecutorPublicKey: s.executorKey, HarnessKeyAuthorization: testAuthority,
	}
	s.mu.Unlock()
	if s.connect != nil && s.connect(n, &answer, w) {
		return
	}
	reply(w, answer)
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func (s *service) serveRelay(w http.ResponseWriter, r *http.Request) {
	role := r.URL.Query().Get("role")
	s.mu.Lock()
	n := s.upgrades[role]
	s.upgrades[role]++
	upgrade := s.upgrade
	if role == "environment" {
		s.requestIDs = append(s.requestIDs, r.Header.Get(wire.HeaderRequestID))
	}
	s.mu.Unlock()
	if upgrade != nil && upgrade(role, n, w) {
		return
	}
	upgrader := websocket.Upgrader{}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	p := &peer{t: s.t, role: role, header: r.Header, query: r.URL.Query(), ws: ws}
	s.t.Cleanup(func() { ws.Close() })
	if s.router != nil {
		s.router.serve(p)
		return
	}
	s.peers <- p
}

// counts returns how often the executor has registered and tried to connect.
func (s *service) counts() (registers, upgrades int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registers, s.upgrades["environment"]
}

func (s *service) registrations() int { registers, _ := s.counts(); return registers }

// next returns the next websocket that the test plays the other end of.
func (s *service) next() *peer {
	s.t.Helper()
	select {
	case p := <-s.peers:
		return p
	case <-time.After(patience):
		s.t.Fatalf("nobody connected; log:\n%s", s.log)
		return nil
	}
}

// peer is the rendezvous's end of one websocket.
type peer struct {
	t      *testing.T
	role   string
	header http.Header
	query  url.Values
	ws     *websocket.Conn
	mu     sync.Mutex // for writing
}

func (p *peer) write(message []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.ws.WriteMessage(websocket.BinaryMessage, message) // a cut connection is the test's
}

func (p *peer) send(f *relaypb.RelayMessageFrame) {
	p.t.Helper()
	if f.Version == 0 {
		f.Version = 1
	}
	message := rig.Value(proto.Marshal(f))
	p.write(message)
}

// read returns the next frame, whatever it is.
func (p *peer) read() *relaypb.RelayMessageFrame {
	p.t.Helper()
	_ = p.ws.SetReadDeadline(time.Now().Add(patience))
	kind, message, err := p.ws.ReadMessage()
	rig.Must(p.t, err)
	if kind != websocket.BinaryMessage {
		p.t.Fatalf("message of kind %d", kind)
	}
	f := &relaypb.RelayMessageFrame{}
	rig.Must(p.t, proto.Unmarshal(message, f))
	return f
}

// wantRecord reads the record of a message of the given text.
func (p *peer) wantRecord(keys *noise.Session, want string) {
	p.t.Helper()
	text := rig.Value(keys.Open(p.read().GetData().GetPayload()))
	rig.Is(p.t, string(text[4:]), want, "the record")
}

// wantReset reads the reset of a stream.
func (p *peer) wantReset(id string) {
	p.t.Helper()
	f := p.read()
	if f.StreamId != id || f.GetReset_() == nil {
		p.t.Fatalf("got %.300s, want a reset of %s", f, id)
	}
	rig.Is(p.t, f.GetReset_().Reason, resetReason, "reset reason")
}

// ends waits for the other end to drop the websocket, without a close frame.
func (p *peer) ends() {
	p.t.Helper()
	_ = p.ws.SetReadDeadline(time.Now().Add(patience))
	for {
		_, _, err := p.ws.ReadMessage()
		if err == nil {
			continue
		}
		rig.Is(p.t, websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway), false,
			"websocket ended with a close frame: %v", err)
		timeout, ok := err.(net.Error)
		rig.Is(p.t, ok && timeout.Timeout(), false, "websocket did not end")
		return
	}
}

func dataFrame(id string, seq uint32, payload []byte) *relaypb.RelayMessageFrame {
	return &relaypb.RelayMessageFrame{StreamId: id, Body: &relaypb.RelayMessageFrame_Data{
		Data: &relaypb.RelayData{Seq: seq, SegmentCount: 1, Payload: payload}}}
}

func handshakeFrame(id string, payload []byte) *relaypb.RelayMessageFrame {
	return &relaypb.RelayMessageFrame{StreamId: id, Body: &relaypb.RelayMessageFrame_Handshake{
		Handshake: &relaypb.RelayHandshake{Payload: payload}}}
}

func resetFrame(id, reason string) *relaypb.RelayMessageFrame {
	return &relaypb.RelayMessageFrame{StreamId: id, Body: &relaypb.RelayMessageFrame_Reset_{
		Reset_: &relaypb.RelayReset{Reason: reason}}}
}

func resumeFrame(id string, next uint32) *relaypb.RelayMessageFrame {
	return &relaypb.RelayMessageFrame{StreamId: id, Body: &relaypb.RelayMessageFrame_Resume{
		Resume: &relaypb.RelayResume{NextSeq: next}}}
}

// router is a rendezvous that does its work: it passes frames on by stream id. It
// keeps every message that it has seen. With tamper it is a malicious one.
type router struct {
	// arrived is called with every websocket before anything is read.
	arrived func(p *peer)
	// tamper returns what is passed on instead of a message, in its order.
	tamper func(toExecutor bool, message []byte) [][]byte

	mu       sync.Mutex
	executor *peer
	routes   map[string]*peer
	seen     [][]byte
	acks     map[string][2]bool // by stream: to the harness, to the executor
}

func newRouter() *router { return &router{routes: map[string]*peer{}, acks: map[string][2]bool{}} }

func (r *router) serve(p *peer) {
	defer r.gone(p)
	defer p.ws.Close()
	if r.arrived != nil {
		r.arrived(p)
	}
	if p.role == "environment" {
		r.mu.Lock()
		r.forsakeLocked()
		r.executor = p
		r.mu.Unlock()
	}
	for {
		_, message, err := p.ws.ReadMessage()
		if err != nil {
			return
		}
		f := &relaypb.RelayMessageFrame{}
		if err := proto.Unmarshal(message, f); err != nil {
			p.t.Errorf("frame from the %s: %v", p.role, err)
			return
		}
		r.mu.Lock()
		r.seen = append(r.seen, bytes.Clone(message))
		to, direction := r.executor, 1
		if p.role == "environment" {
			to, direction = r.routes[f.StreamId], 0
		} else {
			r.routes[f.StreamId] = p
		}
		if f.Ack != 0 || f.AckBits != 0 || f.GetAckFrame() != nil {
			acks := r.acks[f.StreamId]
			acks[direction] = true
			r.acks[f.StreamId] = acks
		}
		tamper := r.tamper
		r.mu.Unlock()
		passed := [][]byte{message}
		if tamper != nil {
			passed = tamper(direction == 1, message)
		}
		for _, m := range passed {
			if to != nil {
				to.write(m)
			}
		}
	}
}

// gone tells the other ends of its streams that p is gone, unless the stream may
// outlive that.
func (r *router) gone(p *peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p == r.executor {
		r.forsakeLocked()
		return
	}
	for stream, harness := range r.routes {
		if harness == p && !r.patient(stream) {
			r.executor.send(resetFrame(stream, "harness is gone"))
			delete(r.routes, stream)
		}
	}
}

// forsakeLocked tells the harnesses that their executor is gone.
func (r *router) forsakeLocked() {
	for stream, harness := range r.routes {
		if !r.patient(stream) {
			harness.send(resetFrame(stream, "executor is gone"))
			delete(r.routes, stream)
		}
	}
}

func (r *router) patient(stream string) bool { return r.acks[stream] == [2]bool{true, true} }

// drop cuts the executor's websocket or all of the harnesses'.
func (r *router) drop(executor bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if executor {
		r.executor.ws.Close()
		return
	}
	for _, p := range r.routes {
		p.ws.Close()
	}
}

// saw reports whether marker was in any frame.
func (r *router) saw(marker string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.seen, func(m []byte) bool { return bytes.Contains(m, []byte(marker)) })
}

// cuttingListener makes connections that a test can cut at any byte.
type cuttingListener struct{ net.Listener }

func (l cuttingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &cutConn{Conn: conn}
	c.left.Store(math.MaxInt64)
	return c, nil
}

// cutConn breaks off when left bytes have passed, both ways counted.
type cutConn struct {
	net.Conn
	left atomic.Int64
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left.Add(-int64(n)) <= 0 {
		c.Conn.Close()
	}
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	// The bytes before the cut still go out, so that the cut is at its byte.
	allowed := max(0, min(int64(len(b)), c.left.Add(-int64(len(b)))+int64(len(b))))
	n, err := c.Conn.Write(b[:allowed])
	if err == nil && n < len(b) {
		c.Conn.Close()
		err = io.ErrClosedPipe
	}
	return n, err
}

// cutAfter breaks the websocket's connection off when n more bytes have passed.
func (p *peer) cutAfter(n int64) { p.ws.NetConn().(*cutConn).left.Store(n) }

// journal is a log that a test can search.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// delays are the pauses before attempts that were logged.
func (j *journal) delays(t *testing.T) []time.Duration {
	t.Helper()
	var all []time.Duration
	for _, found := range regexp.MustCompile(` delay=(\S+)`).FindAllStringSubmatch(j.String(), -1) {
		d := rig.Value(time.ParseDuration(found[1]))
		all = append(all, d)
	}
	return all
}

// checkSecrets fails the test if anything that must stay secret was logged.
func (j *journal) checkSecrets(t *testing.T) {
	t.Helper()
	for _, secret := range []string{testToken, testSignature, testAuthority, "sig="} {
		rig.Is(t, strings.Contains(j.String(), secret), false, "log holds the secret %q:\n%s", secret, j)
	}
}

func plainAnswer(w http.ResponseWriter, status int) bool { w.WriteHeader(status); return true }

func errorAnswer(w http.ResponseWriter, status int, code string) bool {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%q,"message":"because"}}`, code)
	return true
}
