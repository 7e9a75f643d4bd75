package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// headersOf authorizes one request and returns what was set.
func headersOf(t *testing.T, s TokenSource) http.Header {
	t.Helper()
	h := http.Header{}
	rig.Must(t, s.Authorize(t.Context(), h))
	return h
}

// wantHeaders compares what a source sets.
func wantHeaders(t *testing.T, what string, s TokenSource, want http.Header) {
	t.Helper()
	rig.Same(t, fmt.Sprintf("%s: headers", what), want, headersOf(t, s))
}

func wantAuthorization(t *testing.T, what string, s TokenSource, want string) {
	t.Helper()
	rig.Is(t, headersOf(t, s).Get("Authorization"), want, "%s: Authorization", what)
}

// failed reports whether err is an error. The test fails unless the text of err has the words of says and
// no secret. If says is empty, the test fails for any error.
func failed(t *testing.T, what string, err error, says string) bool {
	t.Helper()
	if (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%s: error %v, want one with %q", what, err, says)
	}
	for _, secret := range []string{"s3cr", "sk-secret", "tok1", "tok2"} {
		rig.Is(t, strings.Contains(fmt.Sprint(err), secret), false, "%s: a secret is told by %v", what, err)
	}
	return err != nil
}

func TestBearer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		source     TokenSource
	}{
		{"API key", "Bearer sk-test", APIKey("sk-test")},
		{"API key with blanks around it", "Bearer sk-test", APIKey(" sk-test\n")},
		{"bearer", "Bearer tok", Bearer("tok")},
		{"bearer of odd characters", `Bearer t"k,x:y;`, Bearer(`t"k,x:y;`)},
	} {
		wantHeaders(t, tt.name, tt.source, http.Header{"Authorization": {tt.want}})
	}
}

func TestBearerThatFitsNoHeader(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "secret one", "secret\n", "secret\r\nX: y", "sécret", "secret\x7f", "secret\x00", strings.Repeat("s", maxToken+1)} {
		h := http.Header{}
		err := Bearer(token).Authorize(t.Context(), h)
		rig.Is(t, err != nil && !errors.Is(err, ErrTemporary), true, "Authorize with %.20q: the error %v is final", token, err)
		rig.Is(t, len(h), 0, "headers of Authorize with %.20q", token)
		rig.Is(t, strings.Contains(fmt.Sprint(err), "ecret"), false, "Authorize with %.20q shows the token: %v", token, err)
	}
}

// TestSecretsAreNotPrinted holds every type that keeps a secret to printing none,
// by any verb and any handler of slog.
func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	_, key := testKeys(t)
	c := &Credentials{environmentID: "env-1", current: &frame{token: secret, expires: time.Now().Add(time.Hour).Unix()}}
	values := map[string]any{
		"APIKey":         APIKey(secret),
		"Bearer":         Bearer(secret),
		"ChatGPT token":  &bearer{token: new(secret), httpsOnly: true},
		"signIn":         &signIn{renewal: newRenewal(&tokens{access: secret, refresh: secret, id: secret})},
		"tokens":         &tokens{access: secret, refresh: secret, id: secret},
		"authFile":       &authFile{apiKey: secret, all: strictjson.Map{secret: nil}},
		"SignInConfig":   SignInConfig{APIKey: secret},
		"*SignInConfig":  &SignInConfig{APIKey: secret},
		"IdentityConfig": IdentityConfig{Token: secret},
		"identity":       &identity{runtimeID: secret, taskID: secret, key: &key},
		"Credentials":    c,
		"frame":          &frame{token: secret},
		"in a struct":    struct{ S TokenSource }{Bearer(secret)},
		"deep":           []any{map[string]TokenSource{"a": Bearer(secret)}, struct{ s TokenSource }{Bearer(secret)}, struct{ s TokenSource }{c}},
		"workload":       &workload{renewal: newRenewal(&access{token: secret})},
		"deep workload":  struct{ s TokenSource }{&workload{renewal: newRenewal(&access{token: secret})}},
		"deep key":       struct{ s TokenSource }{&identity{key: &key}},
		"deep sign-in":   struct{ s TokenSource }{&signIn{renewal: newRenewal(&tokens{access: secret})}},
	}
	for name, v := range values {
		var printed strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
			fmt.Fprintf(&printed, verb+"\n", v)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "v", v, slog.Group("g", "v", v))
		asJSON, _ := json.Marshal(v)
		all := printed.String() + log.String() + string(asJSON)
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("%d", []byte(secret)), fmt.Sprintf("%d", key[:4])} {
			rig.Is(t, strings.Contains(all, strings.Trim(form, "[]")), false, "%s shows %q:\n%s", name, form, all)
		}
	}
}

func TestUnauthorizedOfStaticSources(t *testing.T) {
	t.Parallel()
	_, key := testKeys(t)
	for _, s := range []TokenSource{APIKey("k"), Bearer("t"), &Credentials{}, &identity{key: &key}} {
		rig.Is(t, fmt.Sprint(s.Unauthorized(context.Background())), "false <nil>", "%T: Unauthorized", s)
	}
}
