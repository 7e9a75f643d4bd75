package relay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// registryToken is the bearer of these tests; nothing that is printed may show it.
const registryToken = "tok-s3cret"

// plainKey is a public key of the right lengths; a registry of these tests does not use it.
func plainKey() *wire.PublicKey {
	return &wire.PublicKey{
		Suite: wire.KeySuite, X25519: make([]byte, wire.X25519KeySize), MLKEM768: make([]byte, wire.MLKEM768KeySize),
	}
}

func newTestRegistry(t *testing.T, cfg RegistryConfig) *Registry {
	t.Helper()
	if cfg.EnvironmentID == "" {
		cfg.EnvironmentID = "env-1"
	}
	if cfg.Tokens == nil {
		cfg.Tokens = auth.Bearer(registryToken)
	}
	r := rig.Value(NewRegistry(cfg))
	t.Cleanup(r.Close)
	return r
}

// answers starts a registry that answers request n by the n-th function, and all
// later ones by the last.
func answers(t *testing.T, functions ...http.HandlerFunc) (base string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(asked.Add(1))
		functions[min(n, len(functions))-1](w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const (
	registered = `{"environment_id":"env-1","url":"ws://127.0.0.1:7270/rv?sig=s3cret","security_profile":"noise_hybrid_ik_v1","executor_registration_id":"reg-1"}`
	conflict   = `{"error":{"code":"registration_conflict","message":"another one"}}`
	offline    = `{"error":{"code":"environment_offline","message":"nobody there"}}`
)

func connected(change func(map[string]any)) string {
	m := map[string]any{
		"environment_id": "env-1", "url": "ws://127.0.0.1:7274/rv/h?role=harness&sig=s3cret", "security_profile": "noise_hybrid_ik_v1",
		"executor_registration_id": "reg-h", "executor_public_key": plainKey(), "harness_key_authorization": "auth-s3cret", "more": 1,
	}
	if change != nil {
		change(m)
	}
	return string(rig.Value(json.Marshal(m)))
}

// says checks the text of an error, which tells no secret. If text is empty, there is no error.
func says(t *testing.T, err error, text, what string, args ...any) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && (!strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "s3cret")) {
		t.Errorf(what+": error %v, want one with %q", append(args, err, text)...)
	}
}

// refusal is the status with which a registry has refused, or 0.
func refusal(err error) int {
	if refused, ok := errors.AsType[*RegistryError](err); ok {
		return refused.Status
	}
	return 0
}

func TestNewRegistry(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		base, id string
		tokens   auth.TokenSource
		wantErr  string
	}{
		{base: " https://example.com/base// ", id: " env_1-Z "},
		{base: "https://example.com", id: strings.Repeat("a", 256)},
		{base: "http://example.com", wantErr: "plain http"},
		{base: "http://127.0.0.1", id: " ", wantErr: "environment id"},
		{base: "http://127.0.0.1", id: "a/b", wantErr: "environment id"},
		{base: "http://127.0.0.1", id: "a b", wantErr: "environment id"},
		{base: "http://127.0.0.1", id: strings.Repeat("a", 257), wantErr: "environment id"},
	} {
		cfg := RegistryConfig{BaseURL: tt.base, EnvironmentID: tt.id, Tokens: auth.Bearer("t")}
		if tt.id == "" {
			cfg.EnvironmentID = "env-1"
		}
		r, err := NewRegistry(cfg)
		if says(t, err, tt.wantErr, "NewRegistry(%q, %q)", tt.base, tt.id); err == nil {
			rig.Is(t, r.environmentID, strings.TrimSpace(cfg.EnvironmentID), "EnvironmentID")
		}
	}
	rig.Is(t, rig.Err(NewRegistry(RegistryConfig{BaseURL: "http://127.0.0.1", EnvironmentID: "env-1"})), auth.ErrNoCredential, "NewRegistry without tokens")
}

// rawRegistry answers each request on one connection after another and keeps every
// byte it was sent.
func rawRegistry(t *testing.T, bodies ...string) (base string, requests func() []string) {
	t.Helper()
	l := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	var got []string
	connections := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for len(got) < len(bodies) {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections++
			var seen bytes.Buffer
			in := bufio.NewReader(io.TeeReader(conn, &seen))
			for len(got) < len(bodies) {
				r, err := http.ReadRequest(in)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, r.Body)
				got = append(got, seen.String())
				seen.Reset()
				body := bodies[len(got)-1]
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "http://" + l.Addr().String(), func() []string {
		<-done
		return append(got, fmt.Sprint(connections))
	}
}

// TestRegistryOnTheWire holds every byte of the requests to remote.md 3.
func TestRegistryOnTheWire(t *testing.T) {
	t.Parallel()
	base, requests := rawRegistry(t, registered, `{"valid":true}`, `{"valid":true,"x":1}`, connected(nil))
	r := newTestRegistry(t, RegistryConfig{BaseURL: base + "/"})
	registration := rig.Value(r.register(t.Context(), plainKey()))
	rig.Is(t, registration.URL+" "+registration.ID, "ws://127.0.0.1:7270/rv?sig=s3cret reg-1", "Register")
	rig.Must(t, rig.Err(r.validate(t.Context(), "reg-1", plainKey(), "auth<1>", []byte("4FAA9B06FEF2463F8E45A01233809670"))))
	rig.Must(t, rig.Err(r.validate(t.Context(), "reg-1", plainKey(), "", []byte("no uuid"))))
	connection := rig.Value(askUntil(t.Context(), r))
	if connection.URL != "ws://127.0.0.1:7274/rv/h?role=harness&sig=s3cret" || connection.RegistrationID != "reg-h" ||
		connection.Authorization != "auth-s3cret" || !connection.ExecutorKey.Equal(plainKey()) {
		t.Errorf("Connect = %v", connection)
	}

	key := rig.Value(json.Marshal(plainKey()))
	got := requests()
	rig.Is(t, got[4] == "4", false, "no connection was kept") // net/http gives up one that has been slow to write
	for i, want := range []struct {
		path, streamID string
		body           map[string]any
	}{
		{"register", "", map[string]any{"security_profile": "noise_hybrid_ik_v1", "executor_public_key": json.RawMessage(key)}},
		{"validate", "4faa9b06-fef2-463f-8e45-a01233809670", map[string]any{
			"executor_registration_id": "reg-1", "harness_public_key": json.RawMessage(key), "harness_key_authorization": "auth<1>"}},
		{"validate", "", map[string]any{
			"executor_registration_id": "reg-1", "harness_public_key": json.RawMessage(key), "harness_key_authorization": ""}},
		{"connect", "", map[string]any{"harness_public_key": json.RawMessage(key)}},
	} {
		head, body, _ := strings.Cut(got[i], "\r\n\r\n")
		lines := strings.Split(head, "\r\n")
		wantLines := []string{
			"accept: */*", "authorization: Bearer " + registryToken, fmt.Sprintf("content-length: %d", len(body)),
			"content-type: application/json", "host: " + strings.TrimPrefix(base, "http://"),
		}
		if want.streamID != "" {
			wantLines = append(wantLines, "x-codex-noise-stream-id: "+want.streamID)
		}
		rig.Is(t, lines[0], "POST /cloud/environment/env-1/"+want.path+" HTTP/1.1", "request %d begins", i)
		var headers []string
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ":")
			headers = append(headers, strings.ToLower(name)+":"+value)
		}
		slices.Sort(headers)
		rig.Same(t, fmt.Sprintf("headers of request %d", i), wantLines, headers)
		var wantBody, gotBody any
		rig.Must(t, json.Unmarshal(rig.Value(json.Marshal(want.body)), &wantBody), json.Unmarshal([]byte(body), &gotBody))
		rig.Same(t, fmt.Sprintf("body of request %d", i), wantBody, gotBody)
	}
}

func TestCanonicalUUID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"4faa9b06-fef2-463f-8e45-a01233809670":          "4faa9b06-fef2-463f-8e45-a01233809670",
		"4FAA9B06-FEF2-463F-8E45-A01233809670":          "4faa9b06-fef2-463f-8e45-a01233809670",
		"4faa9b06fef2463f8e45a01233809670":              "4faa9b06-fef2-463f-8e45-a01233809670",
		"00000000-0000-0000-0000-000000000000":          "00000000-0000-0000-0000-000000000000",
		"":                                              "",
		"stream":                                        "",
		"4faa9b06-fef2-463f-8e45-a0123380967":           "",
		"4faa9b06-fef2-463f-8e45-a0123380967g":          "",
		"4faa9b06fef2-463f-8e45-a01233809670--":         "",
		" 4faa9b06-fef2-463f-8e45-a01233809670":         "",
		"{4faa9b06-fef2-463f-8e45-a01233809670}":        "",
		"urn:uuid:4faa9b06-fef2-463f-8e45-a01233809670": "",
	} {
		rig.Is(t, canonicalUUID([]byte(id)), want, "canonicalUUID(%q)", id)
	}
}

// TestRegisterIsFinal has one row for each answer that ends an executor.
func TestRegisterIsFinal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		status     int
		body       string
		wantErr    string
		wantStatus int
	}{
		{"other environment", 200, strings.Replace(registered, "env-1", "env-2", 1), "another environment", 0},
		{"other profile", 200, strings.Replace(registered, "hybrid_ik_v1", "none", 1), "security_profile", 0},
		{"no environment", 200, `{"url":"u","security_profile":"noise_hybrid_ik_v1","executor_registration_id":"r"}`, "lacks", 0},
		{"no url", 200, `{"environment_id":"env-1","security_profile":"noise_hybrid_ik_v1","executor_registration_id":"r"}`, "lacks", 0},
		{"null url", 200, strings.Replace(registered, `"ws://127.0.0.1:7270/rv?sig=s3cret"`, "null", 1), "lacks", 0},
		{"no profile", 200, `{"environment_id":"env-1","url":"u","executor_registration_id":"r"}`, "lacks", 0},
		{"no registration", 200, `{"environment_id":"env-1","url":"u","security_profile":"noise_hybrid_ik_v1"}`, "lacks", 0},
		{"url of another kind", 200, strings.Replace(registered, `"ws://127.0.0.1:7270/rv?sig=s3cret"`, "1", 1), "JSON", 0},
		{"no JSON", 200, "s3cret", "JSON", 0},
		{"nothing", 204, "", "JSON", 0},
		{"endless", 200, strings.Repeat(" ", 1<<20+1), "longer than", 0},
		{"conflict of another status", 409, conflict, "registration_conflict", 409},
		{"503 with another code", 503, `{"error":{"code":"x"}}`, "answered 503 x", 503},
		{"503 without code", 503, "busy", "answered 503: busy", 503},
		{"503 with the code of 502", 503, `{"error":{"code":"authentication_service_unavailable"}}`, "503", 503},
		{"502 with the code of 503", 502, conflict, "502", 502},
		{"502 without code", 502, "", "answered 502", 502},
		{"401", 401, "", "401", 401}, {"403", 403, "", "403", 403}, {"404", 404, "", "404", 404}, {"429", 429, "", "429", 429},
		{"500", 500, "", "500", 500}, {"302", 302, "", "302", 302}, {"304", 304, "", "304", 304},
	} {
		base, asked := answers(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			answer(tt.status, tt.body)(w, r)
		})
		_, err := newTestRegistry(t, RegistryConfig{BaseURL: base}).register(t.Context(), plainKey())
		says(t, err, tt.wantErr, "%s: Register", tt.name)
		rig.Is(t, refusal(err), tt.wantStatus, "%s: status of %v", tt.name, err)
		rig.Is(t, asked.Load(), 1, "%s: requests", tt.name)
	}
}

func TestRegisterAccepts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		want   registration
	}{
		"201 and unknown members": {201, strings.Replace(registered, "{", `{"transport_policy":{},`, 1), registration{URL: "ws://127.0.0.1:7270/rv?sig=s3cret", ID: "reg-1"}},
		"empty registration":      {200, strings.Replace(registered, "reg-1", "", 1), registration{URL: "ws://127.0.0.1:7270/rv?sig=s3cret"}},
		"empty url":               {200, strings.Replace(registered, "ws://127.0.0.1:7270/rv?sig=s3cret", "", 1), registration{ID: "reg-1"}},
	} {
		base, _ := answers(t, answer(tt.status, tt.body))
		got := rig.Value(newTestRegistry(t, RegistryConfig{BaseURL: base}).register(t.Context(), plainKey()))
		rig.Is(t, *got, tt.want, "%s: Register", name)
	}
}

func TestRegisterUnreachable(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, RegistryConfig{BaseURL: "http://" + rig.FreeAddress(t)})
	says(t, rig.Err(r.register(t.Context(), plainKey())), "refused", "Register")
}

// TestRegisterMalformed: net/http quotes what it cannot read, which may be what was sent.
func TestRegisterMalformed(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"HTTP/1.1 " + registryToken + "\r\n\r\n",
		registryToken + " 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\n" + registryToken + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: " + registryToken + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + registryToken + "\r\n\r\n",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			rig.Must(t, err)
			defer conn.Close()
			_, _ = io.WriteString(conn, answer)
		}))
		r := newTestRegistry(t, RegistryConfig{BaseURL: s.URL})
		says(t, rig.Err(r.register(t.Context(), plainKey())), "malformed", "Register, answered %q", answer)
		s.Close()
	}
}

// virtual returns a client of a registry in memory, so that time can be the bubble's. It must
// run in a bubble.
func virtual(t *testing.T, cfg RegistryConfig, handler http.HandlerFunc) *Registry {
	t.Helper()
	cfg.BaseURL = "http://127.0.0.1:1"
	r := newTestRegistry(t, cfg)
	l, dial := rig.Pipes(&net.IPAddr{})
	r.Transport().DialContext = dial
	s := &http.Server{Handler: handler}
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		r.Close()
		s.Close()
		<-done
	})
	return r
}

// TestRegisterRepeats watches the pace of 3.4 through every step, 5 s at most, for
// both codes and for a token that is not to be had.
func TestRegisterRepeats(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]http.HandlerFunc{
		"registration_conflict":              answer(503, conflict),
		"authentication_service_unavailable": answer(502, `{"error":{"code":"authentication_service_unavailable"}}`),
	} {
		subtest(t, name, func(t *testing.T) {
			var log bytes.Buffer
			var at []time.Time
			r := virtual(t, RegistryConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(w http.ResponseWriter, req *http.Request) {
				if at = append(at, time.Now()); len(at) < 8 {
					refuse(w, req)
					return
				}
				answer(200, registered)(w, req)
			})
			rig.Must(t, rig.Err(r.register(t.Context(), plainKey())))
			const most = 5 * time.Second * 2 / 3
			for i, base := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, most, most, most, most} {
				pause := at[i+1].Sub(at[i])
				rig.Is(t, min(max(pause, base), base*3/2), pause, "pause %d", i)
			}
			rig.Is(t, strings.Count(log.String(), "environment=env-1"), 7, "lines in the log:\n%s", &log)
			rig.Is(t, strings.Contains(log.String(), "s3cret"), false, "a secret is in the log")
		})
	}
}

// sometimes is a token source that fails so many times, and then works.
type sometimes struct {
	failures int
	err      error
	fresh    []bool // answers to Unauthorized
	freshErr error
	made     int
}

func (s *sometimes) Authorize(_ context.Context, h http.Header) error {
	if s.failures--; s.failures >= 0 {
		return s.err
	}
	s.made++
	h.Set("Authorization", fmt.Sprintf("Bearer token-%d", s.made))
	h.Set(wire.HeaderAccountID, "acct-1")
	h.Set(wire.HeaderFedRAMP, "true")
	return nil
}

func (s *sometimes) Unauthorized(context.Context) (bool, error) {
	if s.freshErr != nil {
		return false, s.freshErr
	}
	fresh := s.fresh[0]
	s.fresh = s.fresh[1:]
	return fresh, nil
}

func TestRegisterWithoutToken(t *testing.T) {
	alone(t, func(t *testing.T) {
		passing := fmt.Errorf("asking for a token: %w", auth.ErrTemporary)
		var headers []http.Header
		r := virtual(t, RegistryConfig{Tokens: &sometimes{failures: 3, err: passing}}, func(w http.ResponseWriter, req *http.Request) {
			headers = append(headers, req.Header)
			answer(200, registered)(w, req)
		})
		start := time.Now()
		rig.Must(t, rig.Err(r.register(t.Context(), plainKey())))
		rig.Is(t, min(time.Since(start), 3500*time.Millisecond), 3500*time.Millisecond, "three pauses, at least")
		rig.Is(t, len(headers), 1, "requests")
		rig.Is(t, headers[0].Get("ChatGPT-Account-ID")+" "+headers[0].Get("X-OpenAI-Fedramp"), "acct-1 true", "the account")

		r = newTestRegistry(t, RegistryConfig{BaseURL: "http://127.0.0.1:1", Tokens: &sometimes{failures: 1, err: auth.ErrExpired}})
		rig.Is(t, rig.Err(r.register(t.Context(), plainKey())), auth.ErrExpired, "Register with an expired credential")
	})
}

func TestUnauthorized(t *testing.T) {
	t.Parallel()
	gone := errors.New("sign-in is gone")
	for _, tt := range []struct {
		name      string
		tokens    *sometimes
		refusals  int
		wantAsked int32
		wantErr   error
	}{
		{"fresh token", &sometimes{fresh: []bool{true}}, 1, 2, nil},
		{"fresh token, refused again", &sometimes{fresh: []bool{true}}, 9, 2, nil},
		{"no fresh token", &sometimes{fresh: []bool{false}}, 9, 1, nil},
		{"no token any more", &sometimes{freshErr: gone}, 9, 1, gone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var bodies, tokens []string
			base, asked := answers(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				bodies, tokens = append(bodies, string(body)), append(tokens, r.Header.Get("Authorization"))
				n := len(bodies)
				mu.Unlock()
				if n <= tt.refusals {
					answer(401, "")(w, r)
					return
				}
				answer(200, registered)(w, r)
			})
			_, err := newTestRegistry(t, RegistryConfig{BaseURL: base, Tokens: tt.tokens}).register(t.Context(), plainKey())
			rig.Is(t, refusal(err), map[bool]int{true: 401}[tt.refusals > 1], "status of %v", err)
			if tt.wantErr != nil {
				rig.Is(t, err, tt.wantErr, "Register")
			}
			rig.Is(t, asked.Load(), tt.wantAsked, "requests")
			if len(bodies) == 2 && (bodies[0] != bodies[1] || tokens[0] != "Bearer token-1" || tokens[1] != "Bearer token-2") {
				t.Errorf("the repeated request is not the same with another token: %v", tokens)
			}
		})
	}
}

// silent reads a request and never answers. It reads the body too: only then does
// the server notice that its client has gone.
func silent(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// TestRegistryTimeout stops waiting after 10 s, whether for headers or for the rest
// of a body.
func TestRegistryTimeout(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"headers": silent,
		"body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"valid":`)
			_ = http.NewResponseController(w).Flush()
			silent(w, r)
		},
	} {
		subtest(t, name, func(t *testing.T) {
			r := virtual(t, RegistryConfig{}, handler)
			start := time.Now()
			says(t, rig.Err(r.register(t.Context(), plainKey())), "within 10s", "register")
			rig.Is(t, time.Since(start), 10*time.Second, "register has waited")
			says(t, rig.Err(r.validate(t.Context(), "reg-1", plainKey(), "auth-s3cret", []byte("stream"))), "within 10s", "validate")
			rig.Is(t, time.Since(start), 20*time.Second, "both have waited")
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   string // "" is valid
	}{
		{"valid", 200, `{"valid":true,"more":[]}`, ""},
		{"valid, 201", 201, `{"valid":true}`, ""},
		{"not valid", 200, `{"valid":false}`, "does not let"},
		{"null", 200, `{"valid":null}`, "does not let"},
		{"missing", 200, `{}`, "does not let"},
		{"of another kind", 200, `{"valid":"true"}`, "JSON"},
		{"no JSON", 200, `s3cret`, "JSON"},
		{"403", 403, `{"error":{"code":"s3cret","message":"s3cret"}}`, "registry answered 403"},
		{"500", 500, `s3cret`, "registry answered 500"},
		{"redirect", 302, `{"valid":true}`, "registry answered 302"},
		{"401", 401, `s3cret`, "registry answered 401"},
	} {
		base, asked := answers(t, answer(tt.status, tt.body))
		_, err := newTestRegistry(t, RegistryConfig{BaseURL: base}).validate(t.Context(), "reg-1", plainKey(), "auth-s3cret", []byte("stream"))
		says(t, err, tt.want, "%s: Validate", tt.name)
		rig.Is(t, errors.Is(err, ErrNotValid), tt.want == "does not let", "%s: %v is ErrNotValid", tt.name, err)
		rig.Is(t, asked.Load(), 1, "%s: requests", tt.name)
	}
}

// TestValidateExpired asks nobody when the credential has run out.
func TestValidateExpired(t *testing.T) {
	t.Parallel()
	base, asked := answers(t, answer(200, `{"valid":true}`))
	r := newTestRegistry(t, RegistryConfig{BaseURL: base, Tokens: &sometimes{failures: 1, err: auth.ErrExpired}})
	rig.Is(t, rig.Err(r.validate(t.Context(), "reg-1", plainKey(), "a", []byte("stream"))), auth.ErrExpired, "Validate")
	rig.Is(t, asked.Load(), 0, "requests")
	rig.Check(t, rig.Err(r.validate(t.Context(), "reg-1", plainKey(), "a", []byte("stream"))))
}

// TestValidateOnDyingConnection repeats the question when the registry closes a
// kept connection just then.
func TestValidateOnDyingConnection(t *testing.T) {
	t.Parallel()
	l := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	served := make(chan int, 1)
	go func() {
		n := 0
		defer func() { served <- n }()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n++
			in := bufio.NewReader(conn)
			for i := range 2 {
				r, err := http.ReadRequest(in)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if i == 0 {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"valid\":true}")
				}
			}
			conn.Close()
		}
	}()
	r := newTestRegistry(t, RegistryConfig{BaseURL: "http://" + l.Addr().String()})
	for range 3 {
		rig.Check(t, rig.Err(r.validate(t.Context(), "reg-1", plainKey(), "a", []byte("stream"))))
	}
	r.Close()
	l.Close()
	rig.Is(t, <-served, 3, "connections")
}

func TestConnectRepeats(t *testing.T) {
	alone(t, func(t *testing.T) {
		cut := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"environment_id":`)
		}
		steps := []http.HandlerFunc{
			answer(409, offline), answer(408, ""), answer(429, ""), answer(500, ""), answer(503, "x"), cut,
			silent,
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			answer(200, connected(nil)),
		}
		var asked atomic.Int32
		r := virtual(t, RegistryConfig{}, func(w http.ResponseWriter, req *http.Request) {
			steps[min(int(asked.Add(1)), len(steps))-1](w, req)
		})
		connection := rig.Value(askUntil(t.Context(), r))
		rig.Is(t, connection.RegistrationID, "reg-h", "the registration after %d requests", asked.Load())
		rig.Is(t, min(int(asked.Load()), len(steps)), len(steps), "requests, at least")
	})
}

// askUntil asks for a way to the executor as [Dialer.Dial] does.
func askUntil(ctx context.Context, r *Registry) (answer *connectAnswer, err error) {
	var refusals refusals
	err = api.Repeat(ctx, r.logger, "connecting is repeated", refusals.again, func() error {
		answer, err = r.connect(ctx, plainKey())
		return err
	})
	return answer, err
}

func TestConnectUntilContextEnds(t *testing.T) {
	alone(t, func(t *testing.T) {
		r := virtual(t, RegistryConfig{}, answer(409, offline))
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		start := time.Now()
		_, err := askUntil(ctx, r)
		rig.Is(t, err, context.DeadlineExceeded, "Connect")
		rig.Is(t, time.Since(start), 25*time.Second, "Connect has waited")
		refused, ok := errors.AsType[*RegistryError](err)
		rig.Is(t, ok && refused.Code == wire.CodeEnvironmentOffline, true, "Connect: error %v tells the last refusal", err)
	})
}

func TestConnectIsFinal(t *testing.T) {
	t.Parallel()
	without := func(name string) string { return connected(func(m map[string]any) { delete(m, name) }) }
	with := func(name string, value any) string { return connected(func(m map[string]any) { m[name] = value }) }
	for _, tt := range []struct {
		name    string
		status  int
		body    string
		wantErr string
	}{
		{"401", 401, "", "401"}, {"403", 403, "", "403"}, {"404", 404, "", "404"}, {"302", 302, "", "302"}, {"400", 400, "", "400"},
		{"409 with another code", 409, conflict, "409"}, {"409 without code", 409, "environment_offline", "409"},
		{"no JSON", 200, "s3cret", "JSON"}, {"nothing", 204, "", "JSON"}, {"endless", 200, strings.Repeat(" ", 1<<20+1), "longer than"},
		{"other environment", 200, with("environment_id", "env-2"), "another environment"}, {"no environment", 200, without("environment_id"), "another environment"},
		{"other profile", 200, with("security_profile", "x"), "security_profile"}, {"no profile", 200, without("security_profile"), "security_profile"},
		{"no url", 200, without("url"), "url"}, {"blank url", 200, with("url", " "), "url"},
		{"no registration", 200, without("executor_registration_id"), "executor_registration_id"}, {"blank registration", 200, with("executor_registration_id", "\t"), "executor_registration_id"},
		{"no key", 200, without("executor_public_key"), "executor_public_key"}, {"null key", 200, with("executor_public_key", nil), "executor_public_key"},
		{"short key", 200, with("executor_public_key", map[string]any{"suite": wire.KeySuite, "x25519_public_key": "AA==", "mlkem768_public_key": "AA=="}), "JSON"},
		{"no authorization", 200, without("harness_key_authorization"), "harness_key_authorization"}, {"blank authorization", 200, with("harness_key_authorization", " "), "harness_key_authorization"},
		{"long authorization", 200, with("harness_key_authorization", strings.Repeat("a", wire.MaxAuthorization+1)), "harness_key_authorization"},
	} {
		base, asked := answers(t, answer(tt.status, tt.body))
		_, err := askUntil(t.Context(), newTestRegistry(t, RegistryConfig{BaseURL: base}))
		says(t, err, tt.wantErr, "%s: Connect", tt.name)
		rig.Is(t, asked.Load(), 1, "%s: requests", tt.name)
	}
}

// TestRegistryPrintsNoSecret prints everything that a caller may hold, by every way
// there is.
func TestRegistryPrintsNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	reg := registration{URL: "wss://h/?sig=" + secret, ID: "reg-1"}
	connection := connectAnswer{URL: "wss://h/?sig=" + secret, RegistrationID: "reg-1", Authorization: secret, ExecutorKey: plainKey()}
	r := newTestRegistry(t, RegistryConfig{BaseURL: "http://127.0.0.1:1"})
	values := []any{
		reg, &reg, connection, &connection, r, RegistryConfig{Tokens: auth.Bearer(secret)},
		struct{ C *connectAnswer }{&connection}, map[string]registration{"a": reg},
	}
	var all bytes.Buffer
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d"} {
			fmt.Fprintf(&all, verb+"\n", v)
		}
		fmt.Fprintf(&all, "%x\n", v)
		slog.New(slog.NewTextHandler(&all, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&all, nil)).Info("m", "v", v)
	}
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), strings.Trim(fmt.Sprintf("%d", []byte(secret)), "[]")} {
		rig.Is(t, strings.Contains(all.String(), form), false, "shows %q:\n%s", form, &all)
	}
}

// TestPlainRendezvous: a signed URL does not leave the machine in clear text.
func TestPlainRendezvous(t *testing.T) {
	t.Parallel()
	r := new(Registry)
	for _, u := range []string{"ws://relay.example/x?sig=s3cret", "ws://192.0.2.1/x?sig=s3cret", "WS://relay.example:80/?sig=s3cret"} {
		err := rig.Err(r.dial(t.Context(), u, nil, socket.Config{}))
		rig.Is(t, err, errPlainRendezvous, "%s", u)
		says(t, err, errPlainRendezvous.Error(), "%s", u)
	}
}
