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
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

var (
	idToken  = unsignedJWT(map[string]any{claimAuth: map[string]any{"chatgpt_account_id": "acct-1", "chatgpt_account_is_fedramp": true}})
	newToken = unsignedJWT(map[string]any{"exp": time.Now().Add(time.Hour).Unix(), "new": true})
)

func accessToken(left time.Duration) string {
	return unsignedJWT(map[string]any{"exp": time.Now().Add(left).Unix()})
}

// home makes a CODEX_HOME with an auth.json of a ChatGPT sign-in; changes replace
// members, "tokens." ones inside tokens.
func home(t *testing.T, changes map[string]any) string {
	t.Helper()
	tokens := map[string]any{
		"id_token": idToken, "access_token": accessToken(time.Hour), "refresh_token": "ref", "account_id": "acct-1", "theirs": []int{1},
	}
	file := map[string]any{
		"OPENAI_API_KEY": nil, "tokens": tokens, "last_refresh": time.Now().UTC().Format(time.RFC3339Nano), "unknown": map[string]any{"<a>": 1.50},
	}
	for name, value := range changes {
		in := file
		if inner, ok := strings.CutPrefix(name, "tokens."); ok {
			in, name = tokens, inner
		}
		if in[name] = value; value == nil {
			delete(in, name)
		}
	}
	dir := t.TempDir()
	rig.Must(t, os.WriteFile(filepath.Join(dir, "auth.json"), rig.Value(json.Marshal(file)), 0o644))
	return dir
}

func readJSON(t *testing.T, path string) map[string]any {
	t.Helper()
	var m map[string]any
	rig.Must(t, json.Unmarshal(rig.Value(os.ReadFile(path)), &m))
	return m
}

// tokenService answers a refresh with new tokens.
func tokenService(t *testing.T) *recorder {
	t.Helper()
	return newRecorder(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"id_token": idToken, "access_token": newToken, "refresh_token": "ref2", "expires_in": 1})
	})
}

func open(t *testing.T, dir string, service *recorder) TokenSource {
	t.Helper()
	return rig.Value(OpenSignIn(dir, SignInConfig{RefreshURL: service.server.URL + "/oauth/token"}))
}

func TestOpenSignIn(t *testing.T) {
	t.Parallel()
	access := accessToken(time.Hour)
	account := http.Header{"Authorization": {"Bearer " + access}, "Chatgpt-Account-Id": {"acct-1"}, "X-Openai-Fedramp": {"true"}}
	for _, tt := range []struct {
		name    string
		key     string
		changes map[string]any
		want    http.Header
		wantErr string
	}{
		{name: "key of the environment wins", key: " sk-env ", changes: map[string]any{"OPENAI_API_KEY": "sk-file"}, want: http.Header{"Authorization": {"Bearer sk-env"}}},
		{name: "blank key of the environment", key: " ", changes: map[string]any{"OPENAI_API_KEY": "sk-file"}, want: http.Header{"Authorization": {"Bearer sk-file"}}},
		{name: "key in the file goes before tokens", changes: map[string]any{"OPENAI_API_KEY": "sk-file"}, want: http.Header{"Authorization": {"Bearer sk-file"}}},
		{name: "auth_mode chatgpt", changes: map[string]any{"OPENAI_API_KEY": "sk-file", "auth_mode": "chatgpt"}, want: account},
		{name: "auth_mode apikey without key", changes: map[string]any{"auth_mode": "apikey"}, wantErr: "no credential"},
		{name: "tokens", want: account},
		{name: "empty key", changes: map[string]any{"OPENAI_API_KEY": ""}, want: account},
		{name: "no account", changes: map[string]any{"tokens.account_id": nil}, want: http.Header{"Authorization": {"Bearer " + access}}},
		{name: "not FedRAMP", changes: map[string]any{"tokens.id_token": unsignedJWT(map[string]any{})},
			want: http.Header{"Authorization": {"Bearer " + access}, "Chatgpt-Account-Id": {"acct-1"}}},
		{name: "no last_refresh", changes: map[string]any{"last_refresh": nil}, want: account},
		{name: "no tokens", changes: map[string]any{"tokens": nil}, wantErr: "no credential"},
		{name: "tokens of another kind", changes: map[string]any{"tokens": "s3cret"}, wantErr: "tokens is not"},
		{name: "no access token", changes: map[string]any{"tokens.access_token": nil}, wantErr: "access_token is empty"},
		{name: "access token of another kind", changes: map[string]any{"tokens.access_token": 1}, wantErr: "access_token is not a string"},
		{name: "access token with blanks", changes: map[string]any{"tokens.access_token": "s3cret s3cret"}, wantErr: "access_token has blanks"},
		{name: "opaque id token", changes: map[string]any{"tokens.id_token": "s3cret"}, wantErr: "id_token is not a JWT"},
		{name: "account that is no header", changes: map[string]any{"tokens.account_id": "s3cret\n"}, wantErr: "account_id has blanks"},
		{name: "key of another kind", changes: map[string]any{"OPENAI_API_KEY": 1}, wantErr: "OPENAI_API_KEY is not a string"},
	} {
		changes := map[string]any{"tokens.access_token": access}
		maps.Copy(changes, tt.changes)
		s, err := OpenSignIn(home(t, changes), SignInConfig{APIKey: tt.key})
		if !failed(t, tt.name, err, tt.wantErr) {
			wantHeaders(t, tt.name, s, tt.want)
		}
	}
}

func TestOpenSignInFiles(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]byte{
		"no JSON": []byte("s3cret"), "array": []byte("[]"), "null": []byte("null"), "empty": nil,
		"too long": bytes.Repeat([]byte(" "), maxAuthFile+1),
	} {
		dir := t.TempDir()
		rig.Must(t, os.WriteFile(filepath.Join(dir, "auth.json"), content, 0o600))
		if _, err := OpenSignIn(dir, SignInConfig{}); err == nil || errors.Is(err, ErrNoCredential) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v, want one that names the file", name, err)
		}
	}
	dir := t.TempDir()
	for _, home := range []string{"", dir, filepath.Join(dir, "missing")} {
		rig.Is(t, rig.Err(OpenSignIn(home, SignInConfig{})), ErrNoCredential, "OpenSignIn(%q): error", home)
	}
	rig.Must(t, os.Mkdir(filepath.Join(dir, "auth.json"), 0o700))
	failed(t, "auth.json is a folder", rig.Err(OpenSignIn(dir, SignInConfig{})), "regular file")
	failed(t, "another host", rig.Err(OpenSignIn(home(t, nil), SignInConfig{RefreshURL: "http://example.com/s3cret"})), "plain http")
}

func TestDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		name   string
		tokens tokens
		want   string
	}{
		{"expires in an hour", tokens{expiry: now.Add(time.Hour), lastRefresh: now}, ""},
		{"expires in an hour, old", tokens{expiry: now.Add(time.Hour), lastRefresh: now.AddDate(0, 0, -49)}, ""},
		{"expires in six minutes", tokens{expiry: now.Add(6 * time.Minute), lastRefresh: now}, ""},
		{"expires in four minutes", tokens{expiry: now.Add(4 * time.Minute), lastRefresh: now}, "proactive_expiry"},
		{"expired", tokens{expiry: now.Add(-time.Hour), lastRefresh: now}, "proactive_expiry"},
		{"opaque, new", tokens{lastRefresh: now.Add(-8*24*time.Hour + time.Minute)}, ""},
		{"opaque, old", tokens{lastRefresh: now.Add(-8*24*time.Hour - time.Minute)}, "scheduled"},
		{"opaque, unknown age", tokens{}, "scheduled"},
	} {
		rig.Is(t, tt.tokens.due(now), tt.want, "%s: due", tt.name)
	}
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		changes map[string]any
		forced  bool
		reason  string
	}{
		{name: "expired", changes: map[string]any{"tokens.access_token": accessToken(-time.Hour)}, reason: "proactive_expiry"},
		{name: "opaque and old", changes: map[string]any{"tokens.access_token": "opaque", "last_refresh": "2026-01-02T03:04:05Z"}, reason: "scheduled"},
		{name: "forced", forced: true, reason: "forced"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			service := tokenService(t)
			dir := home(t, tt.changes)
			// Some users keep the file elsewhere, behind a link.
			path := filepath.Join(dir, "auth.json")
			rig.Must(t, os.Rename(path, filepath.Join(dir, "real.json")))
			rig.Must(t, os.Symlink("real.json", path))
			before := readJSON(t, path)
			original := rig.Value(os.Stat(path))
			s := open(t, dir, service)
			if tt.forced {
				rig.Is(t, fmt.Sprint(s.Unauthorized(t.Context())), "true <nil>", "Unauthorized")
			}
			want := http.Header{"Authorization": {"Bearer " + newToken}, "Chatgpt-Account-Id": {"acct-1"}, "X-Openai-Fedramp": {"true"}}
			for range 2 {
				wantHeaders(t, tt.name, s, want)
			}

			requests := service.requests()
			rig.Is(t, len(requests), 1, "refreshes")
			r := requests[0]
			wantBody := `{"client_id":"app_EMoamEEZ73f0CkXaXp7hrann","grant_type":"refresh_token","refresh_reason":"` + tt.reason + `","refresh_token":"ref"}`
			if r.method+r.path != "POST/oauth/token" || r.body != wantBody || r.header.Get("Content-Type") != "application/json" ||
				r.header.Get("Originator") != "codex_cli_rs" || r.header.Get("Authorization") != "" {
				t.Errorf("refresh request %+v, want body %s", r, wantBody)
			}

			after := readJSON(t, path)
			last := rig.Value(time.Parse(time.RFC3339Nano, after["last_refresh"].(string)))
			rig.Is(t, time.Since(last) > time.Minute, false, "last_refresh = %v", last)
			wantFile := before
			wantFile["last_refresh"] = after["last_refresh"]
			maps.Copy(wantFile["tokens"].(map[string]any), map[string]any{"access_token": newToken, "refresh_token": "ref2"})
			rig.Same(t, "auth.json", wantFile, after)
			info := rig.Value(os.Stat(path))
			rig.Is(t, info.Mode().Perm(), 0o600, "the mode of auth.json")
			// A sandbox would not hide a new file in the place of the old one.
			rig.Is(t, os.SameFile(original, info), true, "auth.json is the same file")
			rig.Is(t, len(rig.Value(os.ReadDir(dir))), 2, "files in the folder")
			rig.Is(t, fmt.Sprint(os.Readlink(path)), fmt.Sprint("real.json", nil), "the link auth.json")
		})
	}
}

// TestRefreshOnce lets many requests find the same tokens wanting.
func TestRefreshOnce(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(TokenSource) error{
		"due": func(s TokenSource) error { return s.Authorize(t.Context(), http.Header{}) },
		"401": func(s TokenSource) error {
			retry, err := s.Unauthorized(t.Context())
			if err == nil && !retry {
				err = errors.New("not to be repeated")
			}
			return err
		},
	} {
		service := tokenService(t)
		s := open(t, home(t, map[string]any{"tokens.access_token": accessToken(-time.Hour)}), service)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { rig.Is(t, f(s), nil, "%s", name) })
		}
		wg.Wait()
		rig.Is(t, len(service.requests()), 1, "%s: refreshes", name)
	}
}

// TestRefreshByAnother takes over what another program has written meanwhile.
func TestRefreshByAnother(t *testing.T) {
	t.Parallel()
	service := tokenService(t)
	dir := home(t, nil)
	s := open(t, dir, service)
	theirs := accessToken(2 * time.Hour)
	other := home(t, map[string]any{"tokens.access_token": theirs})
	rig.Must(t, os.Rename(filepath.Join(other, "auth.json"), filepath.Join(dir, "auth.json")))
	rig.Is(t, fmt.Sprint(s.Unauthorized(t.Context())), "true <nil>", "Unauthorized")
	wantAuthorization(t, "of the other program", s, "Bearer "+theirs)
	rig.Is(t, len(service.requests()), 0, "refreshes")
	stranger := home(t, map[string]any{"tokens.account_id": "acct-2"})
	rig.Must(t, os.Rename(filepath.Join(stranger, "auth.json"), filepath.Join(dir, "auth.json")))
	fresh := open(t, home(t, nil), service).(*signIn)
	fresh.path = filepath.Join(dir, "auth.json")
	failed(t, "another account", rig.Err(fresh.Unauthorized(t.Context())), "another sign-in")
}

func TestRefreshFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		status    int
		answer    string
		wantErr   string
		temporary bool
	}{
		{"500", 500, `{"error":"s3cret"}`, "500", true},
		{"429", 429, "", "429", true},
		{"401", 401, `s3cret`, "401", false},
		{"400", 400, "", "400", false},
		{"redirect", 302, "", "302", false},
		{"no JSON", 200, "s3cret", "JSON", false},
		{"no access token", 200, `{"refresh_token":"s3cret"}`, "access_token is missing", false},
		{"access token of another kind", 200, `{"access_token":1}`, "access_token is not a string", false},
		{"access token with blanks", 200, `{"access_token":"s3cret s3cret"}`, "access_token has blanks", false},
		{"id token no JWT", 200, `{"access_token":"a","id_token":"s3cret"}`, "id_token is not a JWT", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			service := newRecorder(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
			})
			stale := accessToken(-time.Hour)
			dir := home(t, map[string]any{"tokens.access_token": stale})
			before := readJSON(t, filepath.Join(dir, "auth.json"))
			var log bytes.Buffer
			s := rig.Value(OpenSignIn(dir, SignInConfig{RefreshURL: service.server.URL, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
			// The registry gets the old tokens; the token service is left alone for a
			// while.
			for range 3 {
				wantAuthorization(t, "the old token", s, "Bearer "+stale)
			}
			rig.Is(t, len(service.requests()), 1, "refreshes")
			rig.Is(t, strings.Contains(log.String(), "cannot be refreshed"), true, "the log says so: %s", &log)
			rig.Is(t, strings.Contains(log.String(), "s3cret"), false, "a secret is in the log")
			retry, err := s.Unauthorized(t.Context())
			rig.Is(t, retry, false, "to be repeated")
			failed(t, "Unauthorized", err, tt.wantErr)
			rig.Is(t, errors.Is(err, ErrTemporary), tt.temporary, "%v is temporary", err)
			rig.Is(t, len(service.requests()), 2, "refreshes after a 401")
			rig.Same(t, "auth.json changed", before, readJSON(t, filepath.Join(dir, "auth.json")))
		})
	}
}

// TestRefreshUnsaved goes on with tokens that cannot be written.
func TestRefreshUnsaved(t *testing.T) {
	t.Parallel()
	dir := home(t, map[string]any{"tokens.access_token": accessToken(-time.Hour)})
	service := newRecorder(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		rig.Check(t, os.RemoveAll(dir))
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": newToken})
	})
	var log bytes.Buffer
	s := rig.Value(OpenSignIn(dir, SignInConfig{RefreshURL: service.server.URL, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	wantAuthorization(t, "the new token", s, "Bearer "+newToken)
	rig.Is(t, strings.Contains(log.String(), "cannot be saved"), true, "the log says why: %s", log.String())
}

func TestRefreshWithoutRefreshToken(t *testing.T) {
	t.Parallel()
	s := open(t, home(t, map[string]any{"tokens.refresh_token": nil}), tokenService(t))
	failed(t, "Unauthorized", rig.Err(s.Unauthorized(t.Context())), "sign in again")
}

func FuzzParseAuthFile(f *testing.F) {
	f.Add([]byte(`{"OPENAI_API_KEY":"sk"}`))
	f.Add([]byte(`{"OPENAI_API_KEY":null,"tokens":{"id_token":"` + idToken + `","access_token":"a","refresh_token":"r","account_id":"x","y":1},"last_refresh":"2026-11-20T12:25:53.013661716Z","z":[1.50]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parseAuthFile(data)
		if err != nil || file.signIn == nil {
			return
		}
		fresh := &tokens{id: idToken, access: "new", refresh: "ref2", lastRefresh: time.Unix(1795177927, 0)}
		encoded := rig.Value(file.encode(fresh))
		again := rig.Value(parseAuthFile(encoded))
		got := again.signIn.access + " " + again.signIn.refresh + " " + again.signIn.accountID
		rig.Is(t, got, "new ref2 "+file.signIn.accountID, "%q became %q", data, encoded)
		members := fmt.Sprint(len(again.all), len(again.tokens))
		rig.Is(t, members, fmt.Sprint(len(file.all), len(file.tokens)), "members of %q, once %q", encoded, data)
	})
}

// TestWriteAuthFile writes texts that are longer and shorter than what is there.
func TestWriteAuthFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "auth.json")
	rig.Must(t, os.WriteFile(path, []byte("before"), 0o640))
	for _, text := range []string{"much longer than before", "short", ""} {
		rig.Must(t, writeAuthFile(path, []byte(text)))
		rig.Is(t, string(rig.Value(os.ReadFile(path))), text, "the file")
	}
	rig.Is(t, rig.Value(os.Stat(path)).Mode().Perm(), 0o600, "the mode")
	rig.Is(t, writeAuthFile(path+".missing", nil) == nil, false, "a file was made where there is none")
}
