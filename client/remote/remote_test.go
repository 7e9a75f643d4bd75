package remote_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

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

// writing is a writer that calls a function and forgets the bytes.
type writing func()

func (f writing) Write(b []byte) (int, error) {
	f()
	return len(b), nil
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
		{"no registry", "http://127.0.0.1:1", "ci-1", site.Harness, false, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			repeated := slog.New(slog.NewTextHandler(writing(cancel), nil)) // a failure that is not final is logged
			_, err := remote.Dial(ctx, tt.url, tt.environment, tt.key, remote.Logger(repeated))
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
