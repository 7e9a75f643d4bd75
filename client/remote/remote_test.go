package remote_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An executor that has registered with a registry as ci-1.
func ExampleDial() {
	err := rig.Outside(context.Background(), func(t rig.T) {
		site := rig.NewSite(t)
		site.Serve(t, "ci-1") // agent --remote URL --environment-id ci-1

		c, err := remote.Dial(t.Context(), site.URL(), "ci-1", site.Harness)
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer c.Close()
		r, err := c.Run(t.Context(), client.Spec{Argv: []string{"echo", "through the relay"}}, nil)
		if err != nil {
			t.Fatalf("%v", err)
		}
		fmt.Printf("%s", r.Stdout)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: through the relay
}

func TestErrors(t *testing.T) {
	t.Parallel()
	site := rig.NewSite(t)
	for _, tt := range []struct {
		name, url, environment, key string
		final                       bool
		want                        string
	}{
		{"a wrong key", site.URL(), "ci-1", "wrong", true, "401"},
		{"an environment of others", site.URL(), "other-1", site.Harness, true, "403"},
		{"an unknown environment", site.URL(), "ci-2", site.Harness, false, ""},
		{"no registry", "http://127.0.0.1:1", "ci-1", site.Harness, false, "calling the registry: "}, // refused, or too late on a busy machine
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var cfg client.Config
			if !tt.final {
				cfg.ConnectTimeout = time.Second // until then the dialer repeats it
			}
			_, err := remote.Dial(t.Context(), tt.url, tt.environment, tt.key,
				remote.Settings(cfg), remote.Logger(slog.New(slog.DiscardHandler)))
			connect, ok := errors.AsType[*client.ConnectError](err)
			if !ok || !strings.Contains(err.Error(), tt.want) || connect.Final != tt.final {
				t.Errorf("got %+v, want %q", err, tt.want)
			}
		})
	}
	for _, url := range []string{"http://registry.example", "not a url", ""} {
		rig.Is(t, rig.Err(remote.Registry(url, "ci-1", site.Harness)) != nil, true, "%q is no registry", url)
	}
	rig.Is(t, rig.Err(remote.Registry(site.URL(), "no such/id", site.Harness)) != nil, true, "an id with a slash is none")
}
