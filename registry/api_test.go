package registry

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// soon is how long a test waits for what must happen, on however busy a machine.
const soon = 3 * time.Minute

// testServer is a registry on a real port.
type testServer struct {
	*Server
	url string
	log *bytes.Buffer // complete after the test's requests are answered
}

// startServer starts a registry, on a store of its own if the test names none.
func startServer(t testing.TB, cfg Config) *testServer {
	t.Helper()
	if cfg.Store == nil {
		cfg.Store, _ = storetest.Open(t)
	}
	log := new(bytes.Buffer)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s := rig.Value(New(t.Context(), cfg))
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		web.Close()
		rig.Check(t, s.Close())
	})
	return &testServer{Server: s, url: web.URL, log: log}
}

func createKey(t testing.TB, st *store.Store, r ticket.Role, environments string, limits store.Limits) (text, id string) {
	t.Helper()
	var key store.Key
	err := store.Persist(t.Context(), func() (err error) {
		text, key, err = st.CreateKey(t.Context(), store.Key{Role: string(r), Environments: environments, Limits: limits})
		return err
	})
	rig.Must(t, err)
	return text, key.ID
}

// post sends a request as executors and harnesses do and returns status, error code and body.
func (s *testServer) post(t testing.TB, authorization, path string, body any) (status int, code string, answer []byte) {
	t.Helper()
	text, ok := body.(string)
	if !ok {
		text = string(rig.Value(json.Marshal(body)))
	}
	status, _, answer = s.do(t, http.MethodPost, path, text, http.Header{"Authorization": {authorization}})
	var failure wire.Error
	if status != http.StatusOK {
		err := json.Unmarshal(answer, &failure)
		rig.Is(t, err != nil || failure.Error.Message == "", false, "answer %d is %q", status, answer)
	}
	return status, failure.Error.Code, answer
}

// refusal is the status and the error code of the answer to a principal.
func (s *testServer) refusal(t testing.TB, key, path string, body any) string {
	t.Helper()
	status, code, _ := s.post(t, "Bearer "+key, wire.PathPrefix+path, body)
	return fmt.Sprint(status, " ", code)
}

func statusOf[A, B any](status int, _ A, _ B) int { return status }

// do sends a request, to the host that the header names if it does.
func (s *testServer) do(t testing.TB, method, path, body string, header http.Header) (int, http.Header, []byte) {
	t.Helper()
	request := rig.Value(http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body)))
	if header != nil {
		request.Header, request.Host = header, header.Get("Host")
	}
	response := rig.Value((&http.Client{Timeout: 3 * soon}).Do(request))
	defer response.Body.Close()
	answer := rig.Value(io.ReadAll(response.Body))
	return response.StatusCode, response.Header, answer
}

// wantStatus sends a request without a credential and without a body.
func (s *testServer) wantStatus(t testing.TB, method, path string, want int) (answer []byte) {
	t.Helper()
	status, _, answer := s.do(t, method, path, "", nil)
	rig.Is(t, status, want, "%s %s: %s", method, path, answer)
	return answer
}

func registerBody(key *wire.PublicKey) wire.RegisterRequest {
	return wire.RegisterRequest{SecurityProfile: wire.SecurityProfile, ExecutorPublicKey: key}
}

// mustPost is post for a request that has to succeed, and decodes the answer.
func mustPost[T any](t testing.TB, s *testServer, key, path string, body any) (answer T) {
	t.Helper()
	status, _, text := s.post(t, "Bearer "+key, wire.PathPrefix+path, body)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, status, text)
	}
	rig.Must(t, json.Unmarshal(text, &answer))
	return answer
}

func (s *testServer) mustRegister(t testing.TB, key, environmentID string, public *wire.PublicKey) (id, link string) {
	t.Helper()
	answer := mustPost[wire.RegisterResponse](t, s, key, environmentID+wire.PathRegister, registerBody(public))
	rig.Is(t, *answer.EnvironmentID+" "+*answer.SecurityProfile, environmentID+" "+wire.SecurityProfile, "environment and profile")
	return *answer.ExecutorRegistrationID, *answer.URL
}

// goOnline stands for an open websocket.
func (s *testServer) goOnline(t testing.TB, environmentID, registrationID string) {
	t.Helper()
	rig.Value(s.store.SetOnline(t.Context(), store.Presence{EnvironmentID: environmentID, RegistrationID: registrationID, Node: s.node, Since: time.Now()}, store.Seen{}))
}

func (s *testServer) mustConnect(t testing.TB, key, environmentID string, public *wire.PublicKey) wire.ConnectResponse {
	t.Helper()
	return mustPost[wire.ConnectResponse](t, s, key, environmentID+wire.PathConnect, wire.ConnectRequest{HarnessPublicKey: public})
}

func (s *testServer) validate(t testing.TB, key, environmentID string, request wire.ValidateRequest) bool {
	t.Helper()
	return mustPost[wire.ValidateResponse](t, s, key, environmentID+"/validate", request).Valid
}

// TestConversation lets an executor and a harness find each other at two servers: register,
// connect and validate (remote.md 1).
func TestConversation(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	one := startServer(t, Config{Store: st})
	two := startServer(t, Config{Store: storetest.Beside(t, dir), PublicURL: "https://registry.example/base/"})
	executor, executorID := createKey(t, st, ticket.Executor, "env-*", store.Limits{})
	harness, harnessID := createKey(t, st, ticket.Harness, "*", store.Limits{})
	executorKey, harnessKey := storetest.Key(t), storetest.Key(t)

	id, link := one.mustRegister(t, executor, "env-1", executorKey)
	leads := func(link, base string) url.Values {
		t.Helper()
		at, query, _ := strings.Cut(link, "?")
		rig.Is(t, at, base+ticket.RendezvousPath, "where the URL leads")
		return rig.Value(url.ParseQuery(query))
	}
	leads(link, strings.Replace(one.url, "http", "ws", 1)) // back to where it came from
	again, link2 := two.mustRegister(t, executor, "env-1", executorKey)
	rig.Is(t, again, id, "registration %q, then", id)
	opens := func(query url.Values, role ticket.Role, principal string) (expires time.Time) {
		t.Helper()
		got, rejection := one.signer.Open(query, time.Now())
		want := ticket.Ticket{Role: role, EnvironmentID: "env-1", RegistrationID: id, Principal: store.KeyPrefix + principal, Expires: got.Expires}
		rig.Is(t, got, want, "ticket")
		rig.Is(t, rejection, "", "rejection")
		return got.Expires
	}
	opens(leads(link2, "wss://registry.example/base"), ticket.Executor, executorID)

	connect := wire.ConnectRequest{HarnessPublicKey: harnessKey}
	rig.Is(t, two.refusal(t, harness, "env-1/connect", connect), "409 environment_offline", "connect before the executor is online")
	one.goOnline(t, "env-1", id)
	conflict := two.refusal(t, executor, "env-1/register", registerBody(storetest.Key(t)))
	rig.Is(t, conflict, "503 registration_conflict", "another executor registers")
	connected := two.mustConnect(t, harness, "env-1", harnessKey)
	if connected.EnvironmentID != "env-1" || connected.ExecutorRegistrationID != id || connected.SecurityProfile != wire.SecurityProfile ||
		!connected.ExecutorPublicKey.Equal(executorKey) || connected.HarnessKeyAuthorization == "" {
		t.Errorf("connect answered %+v", connected)
	}
	query := leads(connected.URL, "wss://registry.example/base")
	life := time.Until(opens(query, ticket.Harness, harnessID))
	rig.Is(t, life <= 0 || life > harnessTicketLife, false, "the harness's ticket is good for %v", life)

	good := wire.ValidateRequest{ExecutorRegistrationID: id, HarnessPublicKey: harnessKey, HarnessKeyAuthorization: connected.HarnessKeyAuthorization}
	// What an executor is told of the harness's principal is no name and no credential.
	_, _, body := one.post(t, "Bearer "+executor, "/cloud/environment/env-1/validate", good)
	var valid wire.ValidateResponse
	rig.Must(t, json.Unmarshal(body, &valid))
	rig.Is(t, valid.Valid, true, "the first answer is valid")
	p, _ := two.signer.OpenPseudonym("env-1", valid.Principal)
	rig.Is(t, p, store.KeyPrefix+harnessID, "the principal of the answer")
	for _, secret := range []string{harness, harnessID, executorID, connected.HarnessKeyAuthorization} {
		rig.Is(t, strings.Contains(string(body), secret), false, "the answer to validate tells %q", secret)
	}
	for _, s := range []*testServer{one, two, one} { // it may be used more than once
		rig.Is(t, s.validate(t, executor, "env-1", good), true, "an honest harness is valid")
	}
	for name, change := range map[string]func(*wire.ValidateRequest){
		"another key":           func(r *wire.ValidateRequest) { r.HarnessPublicKey = storetest.Key(t) },
		"another registration":  func(r *wire.ValidateRequest) { r.ExecutorRegistrationID += "0" },
		"no registration":       func(r *wire.ValidateRequest) { r.ExecutorRegistrationID = "" },
		"no authorization":      func(r *wire.ValidateRequest) { r.HarnessKeyAuthorization = "" },
		"another authorization": func(r *wire.ValidateRequest) { r.HarnessKeyAuthorization = "auth-for-harness" },
	} {
		request := good
		change(&request)
		rig.Is(t, one.validate(t, executor, "env-1", request), false, "%s is valid", name)
	}
	// The same request in another environment.
	two.mustRegister(t, executor, "env-2", executorKey)
	rig.Is(t, one.validate(t, executor, "env-2", good), false, "the authorization is valid in another environment")
	// No credential was logged.
	for _, log := range []string{one.log.String(), two.log.String()} {
		for _, secret := range []string{executor, harness, connected.HarnessKeyAuthorization, query.Get("signature")} {
			rig.Is(t, strings.Contains(log, secret), false, "the log holds a credential:\n%s", log)
		}
	}
}

// TestRefusals is a table of all answers that are not 200, except those of a store that
// fails.
func TestRefusals(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	s := startServer(t, Config{Store: st})
	executor, _ := createKey(t, st, ticket.Executor, "env-*", store.Limits{})
	harness, _ := createKey(t, st, ticket.Harness, "env-*", store.Limits{})
	expired, _, err := st.CreateKey(t.Context(), store.Key{Role: "executor", Environments: "*", Expires: time.Now().Add(-time.Second)})
	rig.Must(t, err)
	limited, _ := createKey(t, st, ticket.Executor, "env-*", store.Limits{Requests: 0.001, RequestBurst: 1})
	s.post(t, "Bearer "+limited, "/cloud/environment/env-1/register", "{}")

	key := rig.Value(json.Marshal(storetest.Key(t)))
	register := `{"security_profile":"noise_hybrid_ik_v1","executor_public_key":` + string(key) + `}`
	badKEM := storetest.Key(t)
	for i := range badKEM.MLKEM768 {
		badKEM.MLKEM768[i] = 0xff // coefficients beyond the modulus
	}
	badKEMText := rig.Value(json.Marshal(badKEM))
	const path = "/cloud/environment/env-1/"
	for _, tt := range []struct {
		name, authorization, path, body string
		wantStatus                      int
		wantCode                        string
	}{
		{"no credential", "", path + "register", register, 401, "unauthorized"},
		{"no scheme", executor, path + "register", register, 401, "unauthorized"},
		{"other scheme", "Basic " + executor, path + "register", register, 401, "unauthorized"},
		{"unknown key", "Bearer xa_" + strings.Repeat("A", 43), path + "register", register, 401, "unauthorized"},
		{"key with another end", "Bearer " + executor[:len(executor)-1] + "_", path + "register", register, 401, "unauthorized"},
		{"key of another length", "Bearer " + executor + "A", path + "register", register, 401, "unauthorized"},
		{"foreign key", "Bearer sk-test", path + "register", register, 401, "unauthorized"},
		{"two keys", "Bearer " + executor + " " + executor, path + "register", register, 401, "unauthorized"},
		{"expired key", "Bearer " + expired, path + "register", register, 401, "unauthorized"},
		{"unknown assertion", "AgentAssertion e30", path + "register", register, 401, "unauthorized"},
		{"no assertion", "AgentAssertion", path + "register", register, 401, "unauthorized"},
		{"harness registers", "Bearer " + harness, path + "register", register, 403, "forbidden"},
		{"harness validates", "Bearer " + harness, path + "validate", register, 403, "forbidden"},
		{"executor connects", "Bearer " + executor, path + "connect", register, 403, "forbidden"},
		{"other environment", "Bearer " + executor, "/cloud/environment/prod/register", register, 403, "forbidden"},
		{"bad environment", "Bearer " + executor, "/cloud/environment/env-1%20/register", register, 400, "bad_request"},
		{"dotted environment", "Bearer " + executor, "/cloud/environment/env-1.x/register", register, 400, "bad_request"},
		{"wildcard environment", "Bearer " + executor, "/cloud/environment/env-*/register", register, 400, "bad_request"},
		{"no environment", "Bearer " + executor, "/cloud/environment//register", register, 400, "bad_request"},
		{"long environment", "Bearer " + executor, "/cloud/environment/env-" + strings.Repeat("a", 256) + "/register", register, 400, "bad_request"},
		{"environment with a slash", "Bearer " + executor, "/cloud/environment/env-1/x/register", register, 404, "not_found"},
		{"direct", "Bearer " + executor, path + "direct/register", register, 403, "forbidden"},
		{"no operation", "Bearer " + executor, "/cloud/environment/env-1", register, 404, "not_found"},
		{"other path", "Bearer " + executor, "/", register, 404, "not_found"},
		{"too many", "Bearer " + limited, path + "register", register, 429, "rate_limited"},
		{"no body", "Bearer " + executor, path + "register", "", 400, "bad_request"},
		{"no JSON", "Bearer " + executor, path + "register", "register", 400, "bad_request"},
		{"null", "Bearer " + executor, path + "register", "null", 400, "bad_request"},
		{"empty", "Bearer " + executor, path + "register", "{}", 400, "bad_request"},
		{"trailing", "Bearer " + executor, path + "register", register + "{}", 400, "bad_request"},
		{"unknown member", "Bearer " + executor, path + "register", `{"transport":"x",` + register[1:], 400, "bad_request"},
		{"member of another case", "Bearer " + executor, path + "register", strings.Replace(register, "executor_public_key", "Executor_Public_Key", 1), 400, "bad_request"},
		{"member twice", "Bearer " + executor, path + "register", `{"security_profile":"noise_hybrid_ik_v1",` + register[1:], 400, "bad_request"},
		{"other profile", "Bearer " + executor, path + "register", strings.Replace(register, "ik_v1", "ik_v2", 1), 400, "bad_request"},
		{"no profile", "Bearer " + executor, path + "register", `{"executor_public_key":` + string(key) + `}`, 400, "bad_request"},
		{"no key", "Bearer " + executor, path + "register", `{"security_profile":"noise_hybrid_ik_v1"}`, 400, "bad_request"},
		{"null key", "Bearer " + executor, path + "register", `{"security_profile":"noise_hybrid_ik_v1","executor_public_key":null}`, 400, "bad_request"},
		{"impossible key", "Bearer " + executor, path + "register", strings.Replace(register, string(key), string(badKEMText), 1), 400, "bad_request"},
		{"too large", "Bearer " + executor, path + "register", strings.Repeat(" ", maxBody) + register, 413, "payload_too_large"},
		{"too large behind", "Bearer " + executor, path + "register", register + strings.Repeat(" ", maxBody), 413, "payload_too_large"},
		{"validate without key", "Bearer " + executor, path + "validate", `{"executor_registration_id":"r","harness_key_authorization":"a"}`, 400, "bad_request"},
		{"validate with too much", "Bearer " + executor, path + "validate", `{"executor_registration_id":"r","harness_public_key":` + string(key) + `,"harness_key_authorization":"` + strings.Repeat("a", 4097) + `"}`, 400, "bad_request"},
		{"connect without key", "Bearer " + harness, path + "connect", `{}`, 400, "bad_request"},
		{"connect with a key of another case", "Bearer " + harness, path + "connect", `{"Harness_Public_Key":` + string(key) + `}`, 400, "bad_request"},
		{"connect with more", "Bearer " + harness, path + "connect", `{"harness_public_key":` + string(key) + `,"x":1}`, 400, "bad_request"},
		{"connect to nobody", "Bearer " + harness, path + "connect", `{"harness_public_key":` + string(key) + `}`, 409, "environment_offline"},
	} {
		status, code, answer := s.post(t, tt.authorization, tt.path, tt.body)
		rig.Is(t, fmt.Sprint(status, " ", code), fmt.Sprint(tt.wantStatus, " ", tt.wantCode), "%s: %s", tt.name, answer)
		if status == http.StatusUnauthorized && !bytes.Contains(answer, []byte(`"message":"`+store.ErrUnauthorized.Error()+`"`)) {
			t.Errorf("%s: the answer tells why: %s", tt.name, answer)
		}
	}
	environments := storetest.Keys(t, storetest.Bucket(t, storetest.Connect(t, dir), "registrations"))
	rig.Is(t, len(environments), 0, "environments of refused requests: %v", environments)

	status, header, _ := s.do(t, http.MethodPost, path+"register", register, http.Header{"Authorization": {"Bearer " + limited}})
	after := header.Get("Retry-After")
	rig.Is(t, status != 429 || after == "" || after == "0", false, "got %d, Retry-After %q", status, after)
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS"} {
		status, header, _ := s.do(t, method, path+"register", "", nil)
		rig.Is(t, fmt.Sprint(status, " ", header.Get("Allow")), "405 POST", "%s", method)
	}
	twice := http.Header{"Authorization": {"Bearer " + executor, "Bearer " + executor}}
	rig.Is(t, statusOf(s.do(t, http.MethodPost, path+"register", register, twice)), 401, "two Authorization headers")
}

// TestRevocation: a revocation counts at another server than the one it was made at, from
// one request to the next.
func TestRevocation(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	other := storetest.Beside(t, dir)
	s := startServer(t, Config{Store: other})
	executor, _ := createKey(t, st, ticket.Executor, "*", store.Limits{})
	harness, harnessID := createKey(t, st, ticket.Harness, "*", store.Limits{})
	id, _ := s.mustRegister(t, executor, "env", storetest.Key(t))
	s.goOnline(t, "env", id)
	harnessKey := storetest.Key(t)
	connected := s.mustConnect(t, harness, "env", harnessKey)
	request := wire.ValidateRequest{ExecutorRegistrationID: id, HarnessPublicKey: harnessKey, HarnessKeyAuthorization: connected.HarnessKeyAuthorization}
	rig.Is(t, s.validate(t, executor, "env", request), true, "an honest harness is valid")

	rig.Value(st.RevokeKey(t.Context(), harnessID))
	refusal := s.refusal(t, harness, "env/connect", wire.ConnectRequest{HarnessPublicKey: harnessKey})
	rig.Is(t, refusal, "401 unauthorized", "a revoked key connects")
	rig.Is(t, s.validate(t, executor, "env", request), false, "the authorization outlives its key")
}

// TestStoreGone: while the store is gone, an executor that registers gets the answer that
// makes it try again, and harnesses get a 503. The metrics say so, too.
func TestStoreGone(t *testing.T) {
	t.Parallel()
	ns := storetest.NATS(t, t.TempDir(), nil)
	st := storetest.At(t, ns.ClientURL())
	s := startServer(t, Config{Store: storetest.At(t, ns.ClientURL())})
	executor, _ := createKey(t, st, ticket.Executor, "*", store.Limits{})
	harness, _ := createKey(t, st, ticket.Harness, "*", store.Limits{})
	s.wantStatus(t, "GET", "/readyz", 200)
	storetest.Stop(ns)
	rig.Is(t, s.refusal(t, executor, "env/register", "{}"), fmt.Sprint(502, " ", wire.CodeAuthUnavailable), "register")
	rig.Is(t, s.refusal(t, executor, "env/validate", "{}"), fmt.Sprint(503, " ", codeUnavailable), "validate")
	rig.Is(t, s.refusal(t, harness, "env/connect", "{}"), fmt.Sprint(503, " ", codeUnavailable), "connect")
	// The answer from before holds for a moment.
	rig.Until(t, "readyz tells", func() bool { return statusOf(s.do(t, "GET", "/readyz", "", nil)) == 503 })
	families, _ := metricsPage(t, s)
	rig.Is(t, value(t, families, "registry_store_up"), 0, "registry_store_up")
	s.wantStatus(t, "GET", "/healthz", 200)
}

// TestReadyIsCheap: however many requests ask at once whether the registry is ready, it
// writes to the store at most once a second, and to the log, too.
func TestReadyIsCheap(t *testing.T) {
	t.Parallel()
	ns := storetest.NATS(t, t.TempDir(), nil)
	const fresh = time.Second // how long the store repeats an answer
	log := new(strings.Builder)
	st := rig.Value(store.Open(t.Context(), store.Config{URL: ns.ClientURL(), Timeout: soon, Logger: slog.New(slog.NewTextHandler(log, nil))}))
	defer st.Close()
	s := startServer(t, Config{Store: st})
	nc := storetest.Connect(t, ns.ClientURL())
	writes := storetest.Subscribe(t, nc, "$KV.execagent_health.>")
	flood := func(want int) (most int) {
		began := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 10 {
					s.wantStatus(t, "GET", "/readyz", want)
				}
			})
		}
		wg.Wait()
		return 1 + int(time.Since(began)/fresh)
	}
	most := flood(200)
	rig.Must(t, nc.Flush())
	n, _, err := writes.Pending()
	rig.Must(t, err)
	rig.Is(t, min(max(n, 1), most), n, "writes")
	storetest.Stop(ns)
	time.Sleep(fresh) // until the answer from before does not count any more
	most = flood(503)
	n = strings.Count(log.String(), "not ready")
	rig.Is(t, min(max(n, 1), most), n, "lines in the log")
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	s.wantStatus(t, "POST", "/healthz", 405)
	rig.Must(t, s.Drain(t.Context()))
	rig.Is(t, string(s.wantStatus(t, "GET", "/readyz", 503)), "draining\n", "readyz while draining")
	s.wantStatus(t, "GET", "/healthz", 200)
}

func TestBase(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, public, host string
		trust              bool
		header             http.Header
		want               string // "": refused
	}{
		{"host of the request", "", "h:1", false, nil, "ws://h:1"},
		{"proxy not trusted", "", "h:1", false, http.Header{"X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"x"}}, "ws://h:1"},
		{"proxy trusted", "", "h:1", true, http.Header{"X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"x"}}, "wss://x"},
		{"proxy says nothing", "", "h:1", true, nil, "ws://h:1"},
		{"public", "https://r.example/a/", "h:1", true, http.Header{"X-Forwarded-Proto": {"http"}}, "wss://r.example/a"},
		{"public plain", "http://127.0.0.1:8", "h:1", false, nil, "ws://127.0.0.1:8"},
		{"no host", "", "", false, nil, ""},
		{"host with a path", "", "h/x", false, nil, ""},
		{"host with a user", "", "u@h", false, nil, ""},
		{"host with a query", "", "h?x", false, nil, ""},
		{"host with a blank", "", "h x", false, nil, ""},
		{"forwarded host with a path", "", "h", true, http.Header{"X-Forwarded-Host": {"h/x"}}, ""},
	} {
		s := &Server{trustProxy: tt.trust}
		if tt.public != "" {
			s.publicURL = rig.Value(parsePublicURL(tt.public))
		}
		got, err := s.base(&http.Request{Host: tt.host, Header: tt.header})
		if rig.Is(t, err == nil, tt.want != "", "%s: %v", tt.name, err); err == nil {
			rig.Is(t, got.String(), tt.want, "%s: base", tt.name)
		}
	}
	for _, public := range []string{"r.example", "ftp://r.example", "https://", "https://u:p@r.example", "https://r.example/?q", "https://r.example/#f", "https://r.example:p%zz/"} {
		if _, err := parsePublicURL(public); err == nil {
			t.Errorf("%s is accepted", public)
		} else if strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s is in %v", public, err)
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	s, _, harness, _, _ := benchServer(b)
	request := wire.ConnectRequest{HarnessPublicKey: storetest.Key(b)}
	b.ReportAllocs()
	for b.Loop() {
		rig.Is(b, s.refusal(b, harness, "env/connect", request), "200 ", "connect")
	}
}

func BenchmarkValidate(b *testing.B) {
	s, executor, _, id, harnessID := benchServer(b)
	key := storetest.Key(b)
	request := wire.ValidateRequest{
		ExecutorRegistrationID: id, HarnessPublicKey: key,
		HarnessKeyAuthorization: s.signer.Authorization("env", id, key, store.KeyPrefix+harnessID, time.Now().Add(time.Hour)),
	}
	b.ReportAllocs()
	for b.Loop() {
		rig.Is(b, s.validate(b, executor, "env", request), true, "an honest harness is valid")
	}
}

func benchServer(b *testing.B) (s *testServer, executor, harness, registrationID, harnessID string) {
	b.Helper()
	s = startServer(b, Config{Limits: store.Limits{Requests: -1}, Logger: slog.New(slog.DiscardHandler)})
	executor, _ = createKey(b, s.store, ticket.Executor, "*", store.Limits{})
	harness, harnessID = createKey(b, s.store, ticket.Harness, "*", store.Limits{})
	id, _ := s.mustRegister(b, executor, "env", storetest.Key(b))
	s.goOnline(b, "env", id)
	return s, executor, harness, id, harnessID
}

// assertionHeader returns the Authorization header that an agent identity sends (remote.md
// 12.6).
func assertionHeader(t testing.TB, private ed25519.PrivateKey, runtimeID, taskID string, at time.Time) string {
	t.Helper()
	timestamp := at.UTC().Format("2006-01-02T15:04:05Z")
	signature := ed25519.Sign(private, []byte(runtimeID+":"+taskID+":"+timestamp))
	text := rig.Value(json.Marshal(map[string]string{
		"agent_runtime_id": runtimeID, "task_id": taskID, "timestamp": timestamp,
		"signature": base64.StdEncoding.EncodeToString(signature),
	}))
	return "AgentAssertion " + base64.RawURLEncoding.EncodeToString(text)
}

// TestStrangersDoNotFillTheLog: requests without a credential write no line to the log.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	log := new(bytes.Buffer)
	s := startServer(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	for _, path := range []string{ticket.RendezvousPath, ticket.RendezvousPath + "?role=environment", "/cloud/environment/env/connect", "/"} {
		rig.Is(t, statusOf(s.do(t, http.MethodGet, path, "", nil)) < 400, false, "%s succeeds", path)
	}
	rig.Is(t, log.Len(), 0, "bytes of the log, %q", log)
}

// TestExecutorURL: the URL of an executor's websocket is that of the key that has asked for
// it. It cannot be made another key's, ends with its key, and leaves the URL of a key that
// has followed as it is. After its time it is refused.
func TestExecutorURL(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st})
	old, oldID := createKey(t, st, ticket.Executor, "*", store.Limits{})
	next, nextID := createKey(t, st, ticket.Executor, "*", store.Limits{})
	public := storetest.Key(t)
	id, oldLink := s.mustRegister(t, old, "env", public)
	again, nextLink := s.mustRegister(t, next, "env", public)
	rig.Is(t, again, id, "registration of another key")
	opens := func(what, link string, want socket.RefusedError) {
		t.Helper()
		ws, err := socket.Dial(t.Context(), link, nil, socket.Config{})
		var got socket.RefusedError
		if refused, ok := errors.AsType[*socket.RefusedError](err); ok {
			got = *refused
		} else {
			rig.Must(t, err)
			ws.Close()
		}
		rig.Is(t, got, want, "the URL of %s", what)
	}
	opens("a key", oldLink, socket.RefusedError{})
	opens("another key", strings.Replace(oldLink, oldID, nextID, 1), socket.RefusedError{Status: 401, Reason: ticket.RejectInvalidSignature})
	rig.Value(st.RevokeKey(t.Context(), oldID))
	opens("a revoked key", oldLink, socket.RefusedError{Status: 403, Reason: ticket.RejectInvalidRole})
	opens("the key that has followed", nextLink, socket.RefusedError{})

	brief := startServer(t, Config{Store: st, ExecutorURLs: time.Second})
	_, link := brief.mustRegister(t, next, "brief", storetest.Key(t))
	_, rejection := brief.signer.Open(rig.Value(url.Parse(link)).Query(), time.Now().Add(time.Second))
	rig.Is(t, rejection, ticket.RejectExpired, "after its time")
}
