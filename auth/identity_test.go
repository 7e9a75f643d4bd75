package auth

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// recorder is a service that notes what it is asked and answers what the test says.
type recorder struct {
	server *httptest.Server

	mu    sync.Mutex
	asked []asked
}

type asked struct {
	method, path string
	header       http.Header
	body         string
}

func newRecorder(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *recorder {
	t.Helper()
	rec := new(recorder)
	rec.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		rig.Check(t, err)
		rec.mu.Lock()
		n := len(rec.asked)
		rec.asked = append(rec.asked, asked{r.Method, r.URL.EscapedPath(), r.Header, string(body)})
		rec.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(rec.server.Close)
	return rec
}

func (rec *recorder) requests() []asked {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.asked
}

// identityClaims are those of the vectors, not expired; nil removes one.
func identityClaims(t *testing.T, changes map[string]any) map[string]any {
	t.Helper()
	claims := readVectors(t).Claims
	claims["exp"] = time.Now().Add(time.Hour).Unix()
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return claims
}

// identityService answers with the key set and then, n times, with what task says.
func identityService(t *testing.T, task func(n int, w http.ResponseWriter)) *recorder {
	t.Helper()
	return newRecorder(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/jwks") {
			_, _ = w.Write(keySetJSON(nil))
			return
		}
		task(n, w)
	})
}

func answerText(text string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) { _, _ = io.WriteString(w, text) }
}

func TestAgentIdentity(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	public, _ := testKeys(t)
	service := identityService(t, func(_ int, w http.ResponseWriter) {
		_ = json.NewEncoder(w).Encode(map[string]any{"encrypted_task_id": v.Encrypted.ID})
	})
	token := signedJWT(t, v.Header, identityClaims(t, map[string]any{"chatgpt_account_is_fedramp": true}))
	s := rig.Value(NewAgentIdentity(t.Context(), IdentityConfig{
		Token: " " + token + "\n", JWKSBase: service.server.URL + "/backend-api/", AuthAPIBase: service.server.URL + "/accounts//",
		HTTP: HTTPConfig{UserAgent: "codex_cli_rs/0.171.0 (Test)"},
	}))

	requests := service.requests()
	rig.Is(t, len(requests), 2, "requests")
	for i, want := range []string{"GET /backend-api/wham/agent-identities/jwks", "POST /accounts/v1/agent/agent-rt-1/task/register"} {
		r := requests[i]
		rig.Is(t, r.method+" "+r.path, want, "request %d", i)
		rig.Is(t, r.header.Get("Originator"), "codex_cli_rs", "request %d: originator", i)
		rig.Is(t, r.header.Get("User-Agent"), "codex_cli_rs/0.171.0 (Test)", "request %d: user agent", i)
		rig.Is(t, r.header.Get("Authorization"), "", "request %d: authorization", i)
	}
	var registration struct{ Timestamp, Signature string }
	rig.Must(t, json.Unmarshal([]byte(requests[1].body), &registration))
	signature := rig.Value(base64.StdEncoding.DecodeString(registration.Signature))
	signed := ed25519.Verify(public, []byte("agent-rt-1:"+registration.Timestamp), signature)
	rig.Is(t, signed, true, "task registration %s is signed", requests[1].body)

	h := headersOf(t, s)
	a := rig.Value(ParseAssertion(h.Get("Authorization")))
	rig.Check(t, a.Verify(public))
	rig.Is(t, a.TaskID, v.Encrypted.Plaintext, "task of the assertion")
	age := time.Since(a.Time)
	rig.Is(t, min(max(age, 0), time.Minute), age, "age of the assertion")
	delete(h, "Authorization")
	rig.Same(t, "headers", http.Header{"Chatgpt-Account-Id": {"acct-1"}, "X-Openai-Fedramp": {"true"}}, h)
}

func TestTaskRegistrationVector(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	_, key := testKeys(t)
	service := newRecorder(t, func(_ int, w http.ResponseWriter, _ *http.Request) { answerText(`{"taskId":"task-1"}`)(0, w) })
	at := rig.Value(time.Parse(time.RFC3339, v.Task.Timestamp))
	id := &identity{runtimeID: v.RuntimeID, key: &key}
	base := rig.Value(url.Parse(service.server.URL))
	rig.Is(t, rig.Value(id.registerTask(t.Context(), newIssuer(HTTPConfig{}), base, at)), "task-1", "registerTask")
	rig.Is(t, service.requests()[0].body, `{"timestamp":"`+v.Task.Timestamp+`","signature":"`+v.Task.Signature+`"}`, "body")
	agent, _, _ := strings.Cut(service.requests()[0].header.Get("User-Agent"), "(")
	rig.Is(t, agent, "codex_cli_rs/0.171.0 ", "user agent")
	rig.Is(t, rig.Value(openTask(key, v.Encrypted.ID)), v.Encrypted.Plaintext, "openTask")
}

func TestTaskAnswers(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	_, key := testKeys(t)
	id := &identity{runtimeID: v.RuntimeID, key: &key}
	sealed := []byte(v.Encrypted.ID)
	sealed[60] ^= 1
	for _, tt := range []struct{ answer, want string }{
		{`{"task_id":"a"}`, "a"}, {`{"taskId":"a","x":1}`, "a"}, {`{"task_id":"","taskId":"b"}`, "b"}, {`{"task_id":null,"taskId":"b"}`, "b"},
		{`{"encrypted_task_id":"` + v.Encrypted.ID + `"}`, "task-sealed-1"}, {`{"encryptedTaskId":"` + v.Encrypted.ID + `"}`, "task-sealed-1"},
		{`{"encrypted_task_id":"` + string(sealed) + `"}`, ""}, {`{"encrypted_task_id":"AAAA"}`, ""}, {`{"encrypted_task_id":"!"}`, ""},
		{`{"encrypted_task_id":"` + v.Encrypted.ID[:4] + `\n` + v.Encrypted.ID[4:] + `"}`, ""},
		{`{}`, ""}, {`[]`, ""}, {`null`, ""}, {``, ""}, {`{"task_id":1}`, ""}, {`{"task_id":"a b"}`, ""}, {`{"Task_id":"a"}`, ""},
		{`{"task_id":"` + strings.Repeat("a", maxTaskID+1) + `"}`, ""},
		{`{"encrypted_task_id":"` + strings.Repeat("AAAA", 1000) + `"}`, ""},
	} {
		got, err := id.taskOf([]byte(tt.answer))
		rig.Is(t, got, tt.want, "taskOf(%.60s), with %v", tt.answer, err)
		rig.Is(t, err == nil, tt.want != "", "taskOf(%.60s) succeeds", tt.answer)
	}
}

func TestAgentIdentityTries(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, tt := range []struct {
		name      string
		failures  int
		status    int
		wantTries int
		wantErr   string
	}{
		{"twice 500", 2, 500, 3, ""},
		{"three times 500", 3, 500, 3, "500"},
		{"403", 1, 403, 1, "403"},
		{"redirect", 1, 302, 1, "302"},
	} {
		service := identityService(t, func(n int, w http.ResponseWriter) {
			if n <= tt.failures {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				return
			}
			answerText(`{"task_id":"task-1"}`)(n, w)
		})
		_, err := NewAgentIdentity(t.Context(), IdentityConfig{
			Token: signedJWT(t, v.Header, identityClaims(t, nil)), JWKSBase: service.server.URL, AuthAPIBase: service.server.URL,
		})
		failed(t, tt.name, err, tt.wantErr)
		requests := service.requests()
		rig.Is(t, len(requests)-1, tt.wantTries, "%s: tries", tt.name)
		for _, r := range requests[1:] {
			rig.Is(t, r.body, requests[1].body, "%s: body changed to", tt.name)
		}
		rig.Is(t, requests[0].path, "/agent-identities/jwks", "%s: key set at", tt.name)
	}
}

func TestAgentIdentityRefused(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	rsaDER := rig.Value(x509.MarshalPKCS8PrivateKey(rsaKey()))
	_, foreign, err := ed25519.GenerateKey(rand.Reader)
	rig.Must(t, err)
	service := identityService(t, answerText(`{"task_id":"task-1"}`))
	base := service.server.URL
	token := func(changes map[string]any) string { return signedJWT(t, v.Header, identityClaims(t, changes)) }
	for _, tt := range []struct {
		name    string
		cfg     IdentityConfig
		wantErr string
	}{
		{"no token", IdentityConfig{JWKSBase: base, AuthAPIBase: base}, "needs a token"},
		{"opaque token", IdentityConfig{Token: "s3cret", JWKSBase: base, AuthAPIBase: base}, "not a JWT"},
		{"plain http for keys", IdentityConfig{Token: token(nil), JWKSBase: "http://example.com", AuthAPIBase: base}, "plain http"},
		{"plain http for tasks", IdentityConfig{Token: token(nil), JWKSBase: base, AuthAPIBase: "http://example.com"}, "plain http"},
		{"unsigned", IdentityConfig{Token: unsignedJWT(identityClaims(t, nil)), JWKSBase: base, AuthAPIBase: base}, "names no key"},
		{"issuer", IdentityConfig{Token: token(map[string]any{"iss": "https://example.com"}), JWKSBase: base, AuthAPIBase: base}, "another issuer"},
		{"no issuer", IdentityConfig{Token: token(map[string]any{"iss": nil}), JWKSBase: base, AuthAPIBase: base}, "another issuer"},
		{"audience", IdentityConfig{Token: token(map[string]any{"aud": "x"}), JWKSBase: base, AuthAPIBase: base}, "somebody else"},
		{"expired", IdentityConfig{Token: token(map[string]any{"exp": time.Now().Unix() - 1}), JWKSBase: base, AuthAPIBase: base}, "expired"},
		{"no expiry", IdentityConfig{Token: token(map[string]any{"exp": nil}), JWKSBase: base, AuthAPIBase: base}, "expired"},
		{"no runtime", IdentityConfig{Token: token(map[string]any{"agent_runtime_id": nil}), JWKSBase: base, AuthAPIBase: base}, "agent_runtime_id"},
		{"runtime with path", IdentityConfig{Token: token(map[string]any{"agent_runtime_id": "../x"}), JWKSBase: base, AuthAPIBase: base}, "agent_runtime_id"},
		{"no account", IdentityConfig{Token: token(map[string]any{"account_id": nil}), JWKSBase: base, AuthAPIBase: base}, "account_id"},
		{"no key", IdentityConfig{Token: token(map[string]any{"agent_private_key": nil}), JWKSBase: base, AuthAPIBase: base}, "Ed25519"},
		{"key no base64", IdentityConfig{Token: token(map[string]any{"agent_private_key": "!"}), JWKSBase: base, AuthAPIBase: base}, "agent_private_key"},
		{"key with a line break", IdentityConfig{Token: token(map[string]any{"agent_private_key": "AAAA\nAAAA"}), JWKSBase: base, AuthAPIBase: base}, "no valid agent_private_key"},
		{"bare key", IdentityConfig{Token: token(map[string]any{"agent_private_key": base64.StdEncoding.EncodeToString(foreign)}), JWKSBase: base, AuthAPIBase: base}, "Ed25519"},
		{"RSA key", IdentityConfig{Token: token(map[string]any{"agent_private_key": base64.StdEncoding.EncodeToString(rsaDER)}), JWKSBase: base, AuthAPIBase: base}, "Ed25519"},
		{"keys unreachable", IdentityConfig{Token: token(nil), JWKSBase: "http://127.0.0.1:1", AuthAPIBase: base}, "fetching"},
		{"tasks unreachable", IdentityConfig{Token: token(nil), JWKSBase: base, AuthAPIBase: "http://127.0.0.1:1"}, "registering"},
	} {
		_, err := NewAgentIdentity(t.Context(), tt.cfg)
		failed(t, tt.name, err, tt.wantErr)
		rig.Is(t, errors.Is(err, ErrTemporary), strings.Contains(tt.name, "unreachable"), "%s: %v is temporary", tt.name, err)
	}
}

// TestIssuerBounds cuts off answers without end and services without answers.
func TestIssuerBounds(t *testing.T) {
	t.Parallel()
	service := newRecorder(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			<-r.Context().Done()
			return
		}
		chunk := make([]byte, 64<<10)
		for range maxAnswer/len(chunk) + 1 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	call := func(ctx context.Context, path string, patience time.Duration) error {
		_, _, err := newIssuer(HTTPConfig{}).call(ctx, http.MethodGet, service.server.URL+path, nil, patience)
		return err
	}
	failed(t, "endless answer", call(t.Context(), "/long", time.Minute), "longer than")
	late := call(t.Context(), "/silent?sig=s3cret", time.Millisecond)
	rig.Is(t, late, ErrTemporary, "no answer")
	failed(t, "no answer", late, "within 1ms")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rig.Is(t, call(ctx, "/silent", time.Minute), context.Canceled, "cancelled")
}
