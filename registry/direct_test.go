package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/sigv4"
	"github.com/execagent/execagent/registry/internal/rooms"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

const (
	directBody  = `{"transport":"direct_jsonrpc_v1"}`
	signedScope = "eu-west-1"
)

// signer is the holder of an access key.
type signer struct {
	keys sigv4.Keys
	at   time.Time // zero: now
	host string    // that is signed; "": the one that is asked
}

func newSigner(t *testing.T, st *store.Store, environments string) (s signer, text string) {
	t.Helper()
	text, id := createKey(t, st, ticket.Executor, environments, store.Limits{})
	secret := rig.Value(st.AccessSecret(t.Context(), id, text))
	return signer{keys: sigv4.Keys{AccessKeyID: id, SecretAccessKey: secret}}, text
}

// sign adds what a signature needs to the header.
func (s signer) sign(t *testing.T, method, target, body string, header http.Header) http.Header {
	t.Helper()
	u := rig.Value(url.Parse(target))
	if s.host != "" {
		u.Host = s.host
	}
	at := s.at
	if at.IsZero() {
		at = time.Now()
	}
	r := &http.Request{Method: method, URL: u, Header: header}
	rig.Must(t, s.keys.Sign(t.Context(), r, []byte(body), sigv4.Scope{Region: signedScope, Service: "execute-api"}, at))
	return r.Header
}

// registerSigned asks for the direct transport by a signed request.
func (s *testServer) registerSigned(t *testing.T, who signer, environmentID, body string) (int, wire.DirectResponse) {
	t.Helper()
	path := wire.PathPrefix + environmentID + wire.PathDirectRegister
	header := who.sign(t, http.MethodPost, s.url+path, body, http.Header{"Content-Type": {"application/json"}})
	status, _, text := s.do(t, http.MethodPost, path, body, header)
	var answer wire.DirectResponse
	if status == http.StatusOK {
		rig.Must(t, json.Unmarshal(text, &answer))
	}
	return status, answer
}

func (s *testServer) askDirect(t *testing.T, key, environmentID, path string) (status int, code string, answer wire.DirectResponse) {
	t.Helper()
	status, code, text := s.post(t, "Bearer "+key, wire.PathPrefix+environmentID+path, directBody)
	if status == http.StatusOK {
		rig.Must(t, json.Unmarshal(text, &answer))
	}
	return status, code, answer
}

// opens is the status of the answer to a request for a websocket.
func opens(t *testing.T, link string, header http.Header) int {
	t.Helper()
	c, err := transport.Dial(t.Context(), link, transport.DialConfig{Header: header})
	if refused, ok := errors.AsType[*transport.StatusError](err); ok {
		return refused.Status
	}
	rig.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return http.StatusSwitchingProtocols
}

// executorOpens opens a websocket of an executor, and waits until the registry has it: it is
// open for the executor a moment before.
func (s *testServer) executorOpens(t *testing.T, at wire.DirectResponse) *transport.WebSocket {
	t.Helper()
	c := rig.Value(transport.Dial(t.Context(), at.URL, transport.DialConfig{}))
	t.Cleanup(func() { c.Close() })
	rig.Until(t, "the executor is there", func() bool { return s.direct.HasExecutor(at.RegistrationID) })
	return c
}

// join connects a harness to an executor that is online. On a busy machine the harness may have
// waited too long for a websocket of the executor; then it comes again, as real ones do.
func (s *testServer) join(t *testing.T, key, environmentID string) (*transport.WebSocket, wire.DirectResponse, error) {
	for deadline := time.Now().Add(soon); ; {
		status, code, answer := s.askDirect(t, key, environmentID, wire.PathDirectConnect)
		if status != http.StatusOK {
			return nil, answer, fmt.Errorf("%d %s", status, code)
		}
		c, err := transport.Dial(t.Context(), answer.URL, transport.DialConfig{})
		refused, ok := errors.AsType[*transport.StatusError](err)
		if !ok || refused.Status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			return c, answer, err
		}
	}
}

func mustRead(t *testing.T, c *transport.WebSocket) string {
	t.Helper()
	return string(rig.Value(c.Read()))
}

// TestSignedRegistration: who may register by a signature, and what its URL is good for.
func TestSignedRegistration(t *testing.T) {
	t.Parallel()
	log := new(rig.Transcript)
	s := startServer(t, Config{Direct: "ci-*", Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	good, text := newSigner(t, s.store, "ci-*")
	status, answer := s.registerSigned(t, good, "ci-1", directBody)
	if status != http.StatusOK || answer.EnvironmentID != "ci-1" || answer.Transport != wire.TransportDirect || answer.RegistrationID == "" || answer.Websockets != rooms.Websockets {
		t.Fatalf("got %d, %+v", status, answer)
	}

	for name, tt := range map[string]struct {
		change      func(*signer)
		environment string
		body        string
		status      int
	}{
		"another secret":      {func(s *signer) { s.keys.SecretAccessKey += "x" }, "ci-1", directBody, 401},
		"the text of the key": {func(s *signer) { s.keys.SecretAccessKey = text }, "ci-1", directBody, 401},
		"no such key":         {func(s *signer) { s.keys.AccessKeyID = "0123456789abcdef" }, "ci-1", directBody, 401},
		"no id of a key":      {func(s *signer) { s.keys.AccessKeyID = "AKIDEXAMPLE" }, "ci-1", directBody, 401},
		"16 minutes ago":      {func(s *signer) { s.at = time.Now().Add(-16 * time.Minute) }, "ci-1", directBody, 401},
		"in 16 minutes":       {func(s *signer) { s.at = time.Now().Add(16 * time.Minute) }, "ci-1", directBody, 401},
		"14 minutes ago":      {func(s *signer) { s.at = time.Now().Add(-14 * time.Minute) }, "ci-1", directBody, 200},
		"for another host":    {func(s *signer) { s.host = "example.com" }, "ci-1", directBody, 401},
		"a long body":         {func(*signer) {}, "ci-1", directBody + strings.Repeat(" ", maxSignedBody), 401},
		"no body":             {func(*signer) {}, "ci-1", "", 400},
		"another transport":   {func(*signer) {}, "ci-1", `{"transport":"noise"}`, 400},
		"more members":        {func(*signer) {}, "ci-1", `{"transport":"direct_jsonrpc_v1","x":1}`, 400},
		"not for this key":    {func(*signer) {}, "prod-1", directBody, 403},
	} {
		who := good
		tt.change(&who)
		status, _ := s.registerSigned(t, who, tt.environment, tt.body)
		rig.Is(t, status, tt.status, "%s", name)
	}

	// A signature is for this operation alone.
	path := wire.PathPrefix + "ci-1" + wire.PathRegister
	header := good.sign(t, http.MethodPost, s.url+path, directBody, http.Header{"Content-Type": {"application/json"}})
	rig.Is(t, statusOf(s.do(t, http.MethodPost, path, directBody, header)), http.StatusUnauthorized, "for the other transport")

	// The URL needs a signature of the same key, made for it.
	other, _ := newSigner(t, s.store, "ci-*")
	for name, tt := range map[string]struct {
		header http.Header
		status int
	}{
		"unsigned":        {http.Header{}, 403},
		"the text":        {http.Header{"Authorization": {"Bearer " + text}}, 403},
		"by another key":  {other.sign(t, http.MethodGet, answer.URL, "", http.Header{}), 403},
		"for another URL": {good.sign(t, http.MethodGet, answer.URL+"1", "", http.Header{}), 403},
		"as it has to be": {good.sign(t, http.MethodGet, answer.URL, "", http.Header{}), 101},
	} {
		rig.Is(t, opens(t, answer.URL, tt.header), tt.status, "a websocket, %s", name)
	}
	for _, secret := range []string{good.keys.SecretAccessKey, "Signature="} {
		rig.Is(t, strings.Contains(log.String(), secret), false, "the log has a secret")
	}
}

// TestSignedByRotatedKey: a new text of a key has a new secret, and the one before counts as long
// as that text.
func TestSignedByRotatedKey(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*"})
	former, _ := newSigner(t, s.store, "*")
	next := former
	wants := func(what string, who signer, want int) {
		t.Helper()
		status, _ := s.registerSigned(t, who, "e", directBody)
		rig.Is(t, status, want, "%s", what)
	}
	for _, grace := range []time.Duration{time.Hour, 0} {
		text, key, err := s.store.RotateKey(t.Context(), former.keys.AccessKeyID, grace)
		rig.Must(t, err)
		next.keys.SecretAccessKey = rig.Value(s.store.AccessSecret(t.Context(), key.ID, text))
		wants("the former secret", former, map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[grace > 0])
		wants("the new secret", next, http.StatusOK)
	}
	rig.Value(s.store.RevokeKey(t.Context(), former.keys.AccessKeyID))
	wants("a revoked key", next, http.StatusUnauthorized)
}

// TestSignedBehindProxy: a signature is for the host and path that the client knows.
func TestSignedBehindProxy(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*", PublicURL: "https://registry.example/base"})
	who, _ := newSigner(t, s.store, "*")
	path := wire.PathPrefix + "e" + wire.PathDirectRegister
	for target, want := range map[string]int{
		"https://registry.example/base" + path: http.StatusOK,
		"https://registry.example" + path:      http.StatusUnauthorized,
		"https://other.example/base" + path:    http.StatusUnauthorized,
		s.url + path:                           http.StatusOK,
	} {
		header := who.sign(t, http.MethodPost, target, directBody, http.Header{"Content-Type": {"application/json"}})
		rig.Is(t, statusOf(s.do(t, http.MethodPost, path, directBody, header)), want, "signed for %s", target)
	}
	// What was signed for another server is not taken from it, whatever it says of its name.
	for host, want := range map[string]int{"registry.example": http.StatusOK, "registry.example:8443": http.StatusOK, "other.example": http.StatusUnauthorized} {
		header := who.sign(t, http.MethodPost, "https://"+host+path, directBody, http.Header{"Content-Type": {"application/json"}})
		header.Set("Host", host)
		rig.Is(t, statusOf(s.do(t, http.MethodPost, path, directBody, header)), want, "as %s", host)
	}
}

// TestSignedNameless: a registry that was not told its name takes no signature for a host that
// only the request names, nor for one of a proxy, and says why. Bearers need no name.
func TestSignedNameless(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*", TrustProxy: true})
	who, key := newSigner(t, s.store, "*")
	path := wire.PathPrefix + "e" + wire.PathDirectRegister
	for name, tt := range map[string]struct {
		host, forwarded string
		want            int
	}{
		"loopback": {strings.TrimPrefix(s.url, "http://"), "", http.StatusOK}, "localhost": {"localhost", "", http.StatusOK},
		"a host": {"registry.example", "", http.StatusUnauthorized}, "an address": {"192.0.2.1:8080", "", http.StatusUnauthorized},
		"a host of a proxy": {"registry.example", "registry.example", http.StatusUnauthorized},
	} {
		for _, signed := range []bool{true, false} {
			header, want := http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + key}}, http.StatusOK
			if signed {
				header, want = who.sign(t, http.MethodPost, "https://"+tt.host+path, directBody, header), tt.want
			}
			header.Set("Host", tt.host)
			if tt.forwarded != "" {
				header.Set("X-Forwarded-Host", tt.forwarded)
			}
			status, _, text := s.do(t, http.MethodPost, path, directBody, header)
			rig.Is(t, status != want || want != http.StatusOK && !strings.Contains(string(text), "--public-url"), false,
				"%s, signed %v: got %d, %s", name, signed, status, text)
		}
	}
}

// TestDirectOrNoise: a registration is of one transport, and nobody is sent from one to the other.
func TestDirectOrNoise(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st, Direct: "*"})
	executor, _ := createKey(t, st, ticket.Executor, "*", store.Limits{})
	second, _ := createKey(t, st, ticket.Executor, "*", store.Limits{})
	harness, _ := createKey(t, st, ticket.Harness, "*", store.Limits{})
	// want says what the answer to a request is, which is of this transport unless it has a body.
	want := func(s *testServer, key, path string, body any, answer, what string) {
		t.Helper()
		if body == nil {
			body = directBody
		}
		rig.Is(t, s.refusal(t, key, path, body), answer, "%s", what)
	}
	const conflict, offline = "503 " + wire.CodeConflict, "409 " + wire.CodeEnvironmentOffline
	_, _, first := s.askDirect(t, executor, "e", wire.PathDirectRegister)
	want(s, harness, "e"+wire.PathDirectConnect, nil, offline, "connect, offline")
	noise := wire.ConnectRequest{HarnessPublicKey: storetest.Key(t)}
	want(s, harness, "e"+wire.PathConnect, noise, "409 "+codeTransport, "connect to the other transport")

	// An executor of the same principal gets the same registration, while no websocket is open.
	_, _, again := s.askDirect(t, executor, "e", wire.PathDirectRegister)
	rig.Is(t, again.RegistrationID, first.RegistrationID, "the registration of the same principal")
	s.executorOpens(t, first)
	want(s, executor, "e"+wire.PathDirectRegister, nil, conflict, "a second executor of the principal")
	itself := mustPost[wire.DirectResponse](t, s, executor, "e"+wire.PathDirectRegister,
		wire.DirectRequest{Transport: wire.TransportDirect, RegistrationID: first.RegistrationID})
	rig.Is(t, itself.RegistrationID, first.RegistrationID, "the registration of the executor itself")
	want(s, second, "e"+wire.PathDirectRegister, nil, conflict, "another principal")
	want(s, second, "e"+wire.PathRegister, registerBody(storetest.Key(t)), conflict, "another principal, by the other transport")

	// And the other way round.
	_, link := s.mustRegister(t, executor, "n", storetest.Key(t))
	want(s, harness, "n"+wire.PathDirectConnect, nil, "409 "+codeTransport, "connect to the encrypted one")

	// URLs are not good for the other path.
	for _, moved := range []string{
		strings.Replace(link, ticket.RendezvousPath, ticket.DirectPath, 1), strings.Replace(first.URL, ticket.DirectPath, ticket.RendezvousPath, 1),
	} {
		rig.Is(t, opens(t, moved, nil)/100, 4, "%s is answered", strings.Split(moved, "?")[0])
	}

	// Roles and permission.
	want(s, harness, "e"+wire.PathDirectRegister, nil, "403 "+codeForbidden, "register as a harness")
	want(s, executor, "e"+wire.PathDirectConnect, nil, "403 "+codeForbidden, "connect as an executor")
	want(startServer(t, Config{Store: st}), executor, "e"+wire.PathDirectRegister, nil, "403 "+codeForbidden, "where it is not allowed")
}

// TestDirectURLs: what an executor and a harness are answered by whose URL nobody has signed.
func TestDirectURLs(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*"})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	_, _, answer := s.askDirect(t, executor, "e", wire.PathDirectRegister)
	rig.Is(t, opens(t, answer.URL+"x", nil), http.StatusConflict, "a forged URL of an executor")
	u := rig.Value(url.Parse(answer.URL))
	q := u.Query()
	q.Set("role", "harness")
	u.RawQuery = q.Encode()
	rig.Is(t, opens(t, u.String(), nil), http.StatusUnauthorized, "a forged URL of a harness")
}

// TestDirectPairs: each harness has a websocket of the executor to itself; the end of one is the
// end of the other, and a harness that comes early waits.
func TestDirectPairs(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*"})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	harness, _ := createKey(t, s.store, ticket.Harness, "*", store.Limits{})
	_, _, at := s.askDirect(t, executor, "e", wire.PathDirectRegister)
	const pairs = 5
	for range pairs {
		c := s.executorOpens(t, at)
		go func() {
			message, err := c.Read()
			if err == nil {
				err = c.Write(message)
			}
			rig.Check(t, err)
		}()
	}
	for i := range pairs {
		c, answer, err := s.join(t, harness, "e")
		if err != nil || answer.RegistrationID != at.RegistrationID || answer.Websockets != 0 {
			t.Fatalf("got %+v, %v", answer, err)
		}
		t.Cleanup(func() { c.Close() })
		message := fmt.Sprint(i)
		rig.Must(t, c.Write([]byte(message)))
		rig.Is(t, mustRead(t, c), message, "the result")
	}

	// One more harness comes before its websocket of the executor.
	type joined struct {
		c   *transport.WebSocket
		err error
	}
	opened := make(chan joined, 1)
	go func() {
		c, _, err := s.join(t, harness, "e")
		opened <- joined{c, err}
	}()
	pings := make(chan string, 8)
	last := rig.Value(transport.Dial(t.Context(), at.URL, transport.DialConfig{Ping: func(payload string) { pings <- payload }}))
	defer last.Close()
	came := <-opened
	rig.Must(t, came.err)
	early := came.c
	defer early.Close()
	large := strings.Repeat("x", 1<<20)
	for i, message := range []string{"one", large, "", "three"} {
		from, to := early, last
		if i%2 == 1 {
			from, to = last, early
		}
		rig.Must(t, from.Write([]byte(message)))
		rig.Is(t, mustRead(t, to), message, "message %d", i)
	}
	if told := <-pings; !strings.HasPrefix(told, wire.PingPrincipal) || len(told) < len(wire.PingPrincipal)+20 {
		t.Errorf("the executor is told %q", told)
	}
	early.Close()
	rig.Is(t, rig.Err(last.Read()), io.EOF, "the executor's websocket goes on")
}

// TestDirectStorm: harnesses that come and go at once each get an answer from a websocket that is
// theirs alone, while websockets of the executor end and are opened again.
func TestDirectStorm(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*", Limits: store.Limits{Requests: -1, RequestBurst: -1, Connections: -1}})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	harness, _ := createKey(t, s.store, ticket.Harness, "*", store.Limits{})
	_, _, at := s.askDirect(t, executor, "e", wire.PathDirectRegister)
	over := make(chan struct{})
	var executors, harnesses sync.WaitGroup
	for range 4 {
		executors.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				c, err := transport.Dial(t.Context(), at.URL, transport.DialConfig{})
				if err != nil {
					continue // busy
				}
				stop := make(chan struct{})
				go func() {
					select {
					case <-over:
						c.Close()
					case <-stop:
					}
				}()
				for message, err := c.Read(); err == nil; message, err = c.Read() {
					_ = c.Write(message) // the next read fails if it does
				}
				close(stop)
				c.Close()
			}
		})
	}
	rounds := 5
	if rig.Runs(rig.Merge) {
		rounds = 25
	}
	for i := range 8 {
		harnesses.Go(func() {
			for round := 0; round < rounds; {
				_, _, answer := s.askDirect(t, harness, "e", wire.PathDirectConnect)
				if answer.URL == "" {
					continue // no executor just now
				}
				c, err := transport.Dial(t.Context(), answer.URL, transport.DialConfig{})
				if err != nil {
					continue
				}
				message := fmt.Sprint(i, " ", round)
				if c.Write([]byte(message)) == nil {
					if got, err := c.Read(); err == nil {
						rig.Is(t, string(got), message, "what arrives")
						round++
					}
				}
				c.Close()
			}
		})
	}
	harnesses.Wait()
	close(over)
	executors.Wait()
}

// TestDirectPings: a peer that floods the rendezvous with pings is dropped.
func TestDirectPings(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Direct: "*"})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	_, _, at := s.askDirect(t, executor, "e", wire.PathDirectRegister)
	c := rig.Value(transport.Dial(t.Context(), at.URL, transport.DialConfig{PingInterval: time.Millisecond}))
	defer c.Close()
	rig.Is(t, rig.Err(c.Read()) == nil, false, "it is not dropped")
}
