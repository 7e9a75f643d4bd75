package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// issued is what the service answers; a change of nil removes a member.
func issued(changes map[string]any) string {
	m := map[string]any{
		"access_token": "s3cret", "token_type": "Bearer", "expires_in": 600, "chatgpt_account_id": "acct-1",
		"issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "scope": "a", "unknown": []int{1},
	}
	maps.Copy(m, changes)
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	text, _ := json.Marshal(m)
	return string(text)
}

// exchanger is a service that answers the n-th exchange, and the file that it is asked with.
func exchanger(t *testing.T, answer func(n int, w http.ResponseWriter)) (*recorder, WorkloadConfig) {
	t.Helper()
	service := newRecorder(t, func(n int, w http.ResponseWriter, _ *http.Request) { answer(n, w) })
	path := filepath.Join(t.TempDir(), "token")
	rig.Must(t, os.WriteFile(path, []byte(" head.s3cr-0.sig\n"), 0o600))
	return service, WorkloadConfig{RuleID: "idpm_1", TokenFile: path, ExchangeURL: service.server.URL + "/oauth/token"}
}

// TestWorkloadIdentity: the exchange that the reference makes, and the headers that come of it.
func TestWorkloadIdentity(t *testing.T) {
	t.Parallel()
	token := unsignedJWT(map[string]any{claimAuth: map[string]any{"chatgpt_account_is_fedramp": true}})
	service, cfg := exchanger(t, func(_ int, w http.ResponseWriter) {
		_, _ = io.WriteString(w, issued(map[string]any{"access_token": token}))
	})
	cfg.Context = `{"instance_id": "runner-42"}`
	s := rig.Value(NewWorkloadIdentity(t.Context(), cfg))
	want := http.Header{"Authorization": {"Bearer " + token}, "Chatgpt-Account-Id": {"acct-1"}, "X-Openai-Fedramp": {"true"}}
	for range 3 {
		wantHeaders(t, "it", s, want)
	}
	rig.Is(t, len(service.requests()), 1, "exchanges")
	r := service.requests()[0]
	rig.Is(t, r.method+" "+r.path+" "+r.header.Get("Content-Type"), "POST /oauth/token application/x-www-form-urlencoded", "the request")
	rig.Is(t, r.header.Get("Authorization")+r.header.Get("User-Agent")+r.header.Get("Originator"), "", "headers that the reference does not send")
	rig.Same(t, "the form", url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {"head.s3cr-0.sig"},
		"federation_rule_id": {"idpm_1"}, "workload_identity_context": {cfg.Context},
	}, rig.Value(url.ParseQuery(r.body)))
}

// TestWorkloadRefused: hostile and useless answers, and files and settings that are none. No error
// tells a secret.
func TestWorkloadRefused(t *testing.T) {
	t.Parallel()
	for text, tt := range map[string]struct {
		want   string
		status int
		answer string
	}{
		"400":             {"answered 400", 400, `{"error":"invalid_grant","error_description":"s3cret"}`},
		"401":             {"answered 401", 401, "s3cret"},
		"429":             {"answered 429", 429, ""},
		"503":             {"answered 503", 503, "s3cret"},
		"redirect":        {"answered 307", 307, ""},
		"no JSON":         {"the content", 200, "s3cret"},
		"huge":            {"longer than", 200, strings.Repeat(" ", maxAnswer+1)},
		"no token":        {"access_token is empty", 200, issued(map[string]any{"access_token": nil})},
		"token of a list": {"access_token is not", 200, issued(map[string]any{"access_token": []string{"s3cret"}})},
		"token of a line": {"access_token has blanks", 200, issued(map[string]any{"access_token": "s3cret\r\nX: y"})},
		"other type":      {"token_type is not Bearer", 200, issued(map[string]any{"token_type": "mac"})},
		"expired":         {"expires_in", 200, issued(map[string]any{"expires_in": 0})},
		"for a day":       {"expires_in", 200, issued(map[string]any{"expires_in": 86400})},
		"for no number":   {"expires_in", 200, issued(map[string]any{"expires_in": "600"})},
		"an account":      {"chatgpt_account_id has blanks", 200, issued(map[string]any{"chatgpt_account_id": "s3cret a"})},
	} {
		_, cfg := exchanger(t, func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.answer)
		})
		_, err := NewWorkloadIdentity(t.Context(), cfg)
		failed(t, text, err, tt.want)
		rig.Is(t, errors.Is(err, ErrTemporary), tt.status == 429 || tt.status == 503, "%s: %v is temporary", text, err)
	}
	service, right := exchanger(t, func(int, http.ResponseWriter) {})
	dir := t.TempDir()
	rig.Must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for name, text := range map[string]string{"empty": "\n", "words": "s3cr et", "long": strings.Repeat("x", maxIdentityToken+1), "longer": strings.Repeat(" ", 3*maxIdentityToken)} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	file := func(name string) func(*WorkloadConfig) {
		return func(c *WorkloadConfig) { c.TokenFile = filepath.Join(dir, name) }
	}
	for name, tt := range map[string]struct {
		change func(*WorkloadConfig)
		want   string
	}{
		"no rule":           {func(c *WorkloadConfig) { c.RuleID = "" }, "OPENAI_FEDERATION_RULE_ID"},
		"no file":           {func(c *WorkloadConfig) { c.TokenFile = "" }, "OPENAI_IDENTITY_TOKEN_FILE"},
		"relative":          {func(c *WorkloadConfig) { c.TokenFile = "token" }, "must be an absolute path"},
		"spiffe":            {func(c *WorkloadConfig) { c.TokenSource = "spiffe" }, "OPENAI_IDENTITY_TOKEN_SOURCE must be file"},
		"no object":         {func(c *WorkloadConfig) { c.Context = "[]" }, "OPENAI_WORKLOAD_IDENTITY_CONTEXT is not"},
		"no instance":       {func(c *WorkloadConfig) { c.Context = "{}" }, "has no instance_id"},
		"long context":      {func(c *WorkloadConfig) { c.Context = strings.Repeat(" ", maxContext+1) }, "longer than 1024 bytes"},
		"plain http":        {func(c *WorkloadConfig) { c.ExchangeURL = "http://192.0.2.1/" }, "plain http"},
		"missing":           {file("missing"), "no such file"},
		"a folder":          {file("."), "is not a regular file"},
		"a FIFO":            {file("fifo"), "is not a regular file"},
		"an empty file":     {file("empty"), "is empty"},
		"words":             {file("words"), "has blanks"},
		"a long token":      {file("long"), "longer than 16384 bytes"},
		"a longer file":     {file("longer"), "longer than 32768 bytes"},
		"others' to change": {func(c *WorkloadConfig) { c.Check = func(string) error { return errors.New("others can change it") } }, "others can change it"},
	} {
		cfg := right
		tt.change(&cfg)
		failed(t, name, rig.Err(NewWorkloadIdentity(t.Context(), cfg)), tt.want)
	}
	rig.Is(t, len(service.requests()), 0, "exchanges")
}

// TestWorkloadRenewed: the file is read again when its token is needed, by one of many callers; while
// that fails, the former access token counts until it expires.
func TestWorkloadRenewed(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(200)
	service, cfg := exchanger(t, func(n int, w http.ResponseWriter) {
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, issued(map[string]any{"access_token": fmt.Sprint("s3cret-", n), "chatgpt_account_id": fmt.Sprint("acct-", n/4)}))
	})
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	source := rig.Value(NewWorkloadIdentity(t.Context(), cfg))
	w := source.(*workload)
	age := func(by time.Duration) { // as if that time had passed
		w.mu.Lock()
		defer w.mu.Unlock()
		old := *w.value
		w.value, w.renewed, w.failed = &access{token: old.token, account: old.account, due: old.due.Add(-by), expiry: old.expiry.Add(-by)}, time.Time{}, time.Time{}
	}
	sends := func(want string) { t.Helper(); wantAuthorization(t, "it", source, "Bearer s3cret-"+want) }

	age(470 * time.Second)
	sends("0")
	age(20 * time.Second) // the last fifth
	rig.Must(t, os.WriteFile(cfg.TokenFile, []byte("head.s3cr-1.sig"), 0o600))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { rig.Check(t, source.Authorize(t.Context(), http.Header{})) })
	}
	wg.Wait()
	sends("1")
	rig.Is(t, len(service.requests()), 2, "exchanges")
	rig.Is(t, strings.Contains(service.requests()[1].body, "s3cr-1"), true, "the new token is sent")
	rig.Is(t, fmt.Sprint(source.Unauthorized(t.Context())), "true <nil>", "the answer to a request with the former token")
	age(0)
	rig.Is(t, fmt.Sprint(source.Unauthorized(t.Context())), "true <nil>", "after a 401")
	sends("2")

	rig.Must(t, os.Rename(cfg.TokenFile, cfg.TokenFile+".away"))
	age(490 * time.Second)
	sends("2")
	sends("2") // the file is left alone for a while
	age(200 * time.Second)
	err := source.Authorize(t.Context(), http.Header{})
	rig.Is(t, err, ErrTemporary, "without the file")
	failed(t, "without the file", err, "no such file")
	rig.Must(t, os.Rename(cfg.TokenFile+".away", cfg.TokenFile))
	age(0)
	status.Store(403)
	failed(t, "refused", source.Authorize(t.Context(), http.Header{}), "answered 403")
	status.Store(200)
	age(0)
	failed(t, "for another account", source.Authorize(t.Context(), http.Header{}), "for another account")
	rig.Is(t, strings.Count(log.String(), "the former one is still used"), 1, "warnings in %s", &log)
	rig.Is(t, strings.Contains(log.String(), "s3cr"), false, "a secret is in the log")
}
