package confine

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/enforce"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/resolve"
)

// enforcements are the ways in which the network of a command is managed: what the host
// has for them, and what of it is told.
var enforcements = []struct {
	layer string
	host  sandbox.Host
}{
	{"proxy:netns", sandbox.Host{Layers: full().Layers.With(sandbox.UserNotify), Landlock: enforce.LandlockABI()}},
	{"proxy:supervised", sandbox.Host{Layers: sandbox.LayersOf(sandbox.Supervised, sandbox.Seccomp), Landlock: enforce.LandlockABI()}},
}

// eachEnforcement runs a test in each of them.
func eachEnforcement(t *testing.T, test func(t *testing.T, layer string, door *Door)) {
	t.Parallel()
	for _, e := range enforcements {
		t.Run(e.layer, func(t *testing.T) {
			t.Parallel()
			held := placeholders(t)
			test(t, e.layer, &Door{
				Host:         func() (sandbox.Host, error) { return e.host, nil },
				Served:       new(resolve.Served),
				Placeholders: func() (*hold.Placeholders, error) { return held, nil },
			})
		})
	}
}

// managedProfile lets everything be read and root be written.
func managedProfile(root string) sandbox.Profile {
	return sandbox.Profile{Entries: []sandbox.Entry{
		{Place: sandbox.PlaceRoot, Access: sandbox.Read},
		{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
	}}
}

// enterManaged enters a managed network, whose HTTP listener greets with "http" and whose
// other one with "socks".
func enterManaged(t *testing.T, door *Door, profile sandbox.Profile, m Managed) *Held {
	t.Helper()
	held, err := door.EnterManaged(profile, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(held.Release)
	greet := func(l net.Listener, text string) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
	go greet(held.Gate().HTTP(), "http")
	if m.SOCKS5 {
		go greet(held.Gate().SOCKS5(), "socks")
	}
	return held
}

// startHeld starts a program in a sandbox that was entered.
func startHeld(t *testing.T, held *Held, spec procs.Spec) *run {
	t.Helper()
	r := &run{t: t}
	spec.Sink, spec.Stage = r.sink, func(p procs.Program) (*procs.Stage, error) {
		stage, err := held.Stage(p)
		stage.Env = append(stage.Env, "GORACE=atexit_sleep_ms=0")
		return stage, err
	}
	p, err := procs.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	r.Process = p
	p.Begin()
	return r
}

// puppetIn starts a puppet there.
func puppetIn(t *testing.T, held *Held, root string) *puppet {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := &puppet{run: startHeld(t, held, procs.Spec{
		Argv: []string{self, connectChild}, Env: []string{"GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}, Dir: root, Stdin: true,
	})}
	a.until("ready\n")
	return a
}

// port is that of a listener.
func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// TestManaged: a command reaches the listeners of its gate, and nothing else.
func TestManaged(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		root := t.TempDir()
		held := enterManaged(t, door, managedProfile(root), Managed{SOCKS5: true})
		if !slices.Contains(held.Layers, layer) {
			t.Fatalf("layers %q", held.Layers)
		}
		other := greeter(t, "tcp4", "127.0.0.1:0")
		a := puppetIn(t, held, root)
		http, socks := port(held.Gate().HTTP()), port(held.Gate().SOCKS5())
		for _, tt := range []struct {
			what []any
			want string
		}{
			{[]any{"tcp", http}, "ok http"},
			{[]any{"tcp", socks}, "ok socks"},
			{[]any{"tcp", http}, "ok http"},
			{[]any{"tcp", port(other)}, "ECONNREFUSED"},
		} {
			if got := a.ask(tt.what...); got != tt.want {
				t.Errorf("%v: %s, want %s", tt.what, got, tt.want)
			}
		}
		if got := a.ask("nonblocking", http); !strings.HasSuffix(got, "http") {
			t.Errorf("without blocking: %s", got)
		}
	})
}

var _ = bufio.NewReader
var _ = fmt.Sprint
var _ = unix.AF_INET
