package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// answers is a registry or an agent that gives one answer after the other, and the last one
// for ever.
func answers(t *testing.T, texts ...string) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text := texts[min(int(asked.Add(1)), len(texts))-1]
		status, body, _ := strings.Cut(text, " ")
		code := map[string]int{"401": 401, "403": 403, "404": 404, "409": 409, "429": 429, "503": 503}[status]
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

const offline = `409 {"error":{"code":"environment_offline","message":"offline"}}`

// TestConnectFails: what passes by itself is waited for, and what does not is told at once,
// unless --wait is given.
func TestConnectFails(t *testing.T) {
	t.Parallel()
	never := func() *time.Duration { return new(time.Duration) }
	hour := time.Hour
	for _, tt := range []struct {
		name    string
		agent   bool // what answers is an agent, not a registry
		answers []string
		wait    *time.Duration
		asked   int32
		want    string
	}{
		{"a wrong key", false, []string{"401 no"}, nil, 1, "environment ci-1: asking the registry for the executor: registry answered 401: no"},
		{"not allowed", false, []string{"403"}, nil, 1, "environment ci-1: asking the registry for the executor: registry answered 403"},
		{"a wrong key, with --wait", false, []string{"401 no"}, &hour, 1, "environment ci-1: asking the registry for the executor: registry answered 401: no"},
		{"offline, and then forbidden, with --wait", false, []string{offline, "403"}, &hour, 2, "environment ci-1: asking the registry for the executor: registry answered 403"},
		{"a wrong token, with --wait", true, []string{"503", "401 no"}, &hour, 2, `: upgrade answered with status 401, "no" (see --token-file)`},
		{"another user, with --wait", true, []string{"403 no"}, &hour, 1, `: upgrade answered with status 403, "no"`},
		{"unknown", false, []string{"404"}, nil, 1, "environment ci-1: asking the registry for the executor: registry answered 404"},
		{"offline, and then forbidden", false, []string{offline, offline, "403"}, nil, 3, "environment ci-1: asking the registry for the executor: registry answered 403"},
		{"busy, and then forbidden", false, []string{"429", "503", "403"}, nil, 3, "environment ci-1: asking the registry for the executor: registry answered 403"},
		{"offline, not waited for", false, []string{offline}, never(), 1, "environment ci-1: no executor is connected"},
		{"a wrong token", true, []string{"401 no"}, nil, 1, `: upgrade answered with status 401, "no" (see --token-file)`},
		{"no agent", true, []string{"404"}, nil, 1, `: no agent, but something else answers there (a registry is named by --registry)`},
		{"a busy agent, and then none", true, []string{"503", "429", "404"}, nil, 3, `: no agent, but something else answers there (a registry is named by --registry)`},
		{"a busy agent, not waited for", true, []string{"503"}, never(), 1, `: upgrade answered with status 503, ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, asked := answers(t, tt.answers...)
			f, want := registryFlags(url), tt.want
			if tt.agent {
				f = &Flags{URL: "ws" + strings.TrimPrefix(url, "http")}
				want = f.URL + tt.want
			}
			f.Wait = tt.wait
			c, err := f.Connect(t.Context(), system(t))
			if err == nil {
				_ = c.Close()
			}
			rig.Is(t, fmt.Sprint(err), want, "Connect gives")
			rig.Is(t, asked.Load(), tt.asked, "times asked")
		})
	}
}

// TestConnectTells: while it waits, the reason is on standard error, once for each, and in the
// end it is the error.
func TestConnectTells(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"by default": offline, "for everything with --wait": "404"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := answers(t, first)
			f, sys := registryFlags(url), system(t)
			wait := 2 * time.Second
			f.Wait = &wait
			_, err := f.Connect(t.Context(), sys)
			reason := "no executor is connected"
			if first != offline {
				reason = "asking the registry for the executor: registry answered 404"
			}
			rig.Is(t, fmt.Sprint(err), "environment ci-1: "+reason+" (waited 2s, see --wait)", "Connect gives")
			told := string(rig.Value(os.ReadFile(sys.Stderr.Name())))
			rig.Is(t, told, "agent: waiting for environment ci-1: "+reason+"\n", "told")
		})
	}
}

// TestConnectSilence: a registry that takes a connection and says nothing.
func TestConnectSilence(t *testing.T) {
	t.Parallel()
	l := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	f := registryFlags("http://" + l.Addr().String())
	wait := 50 * time.Millisecond
	f.Wait = &wait
	rig.Is(t, fmt.Sprint(rig.Err(f.Connect(t.Context(), system(t)))), "environment ci-1: no answer (waited 50ms, see --wait)", "Connect gives")
}

// TestConnectEnded: what ends the caller's context is the error.
func TestConnectEnded(t *testing.T) {
	t.Parallel()
	url, asked := answers(t, offline)
	reason := errors.New("a signal")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for asked.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(reason)
	}()
	rig.Is(t, rig.Err(registryFlags(url).Connect(ctx, system(t))), reason, "Connect")
}

func registryFlags(url string) *Flags {
	id := "ci-1"
	return &Flags{Registry: url, EnvironmentID: &id}
}

// system has a token, and a file as its standard error.
func system(t *testing.T) program.System {
	t.Helper()
	f := rig.Value(os.Create(filepath.Join(t.TempDir(), "stderr")))
	t.Cleanup(func() { _ = f.Close() })
	return program.System{Environ: []string{RegistryTokenName + "=key"}, Stderr: f}
}
