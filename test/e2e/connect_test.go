package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// connectTo is agent connect to an environment of the site.
func connectTo(t *testing.T, s *rig.Site, environment string, flags ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"connect", "--registry", s.URL(), "--environment-id", environment}, flags...)
	cmd := rig.Command(t, rig.Agent(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "AGENT_REGISTRY_TOKEN=" + s.Harness, "XDG_RUNTIME_DIR=" + t.TempDir()}
	return cmd
}

// TestConnectStdio: a program that speaks only lines on standard input and output reaches an
// agent behind a registry.
func TestConnectStdio(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	cmd := connectTo(t, s, "ci-1")
	c, err := client.Connect(rig.Context(t), client.Program(transport.CommandConfig{Argv: cmd.Args, Env: cmd.Env}))
	rig.Must(t, err)
	rig.Is(t, answer(t, c, "through both", "cat"), "through both", "cat")
	rig.Check(t, c.Close())

	// An environment without an executor.
	rig.Is(t, says(t, connectTo(t, s, "ci-2", "--wait", "0")), "agent: environment ci-2: no executor is connected\nexit 1\n", "connect")
}

// TestConnectWebSocket: several programs that speak WebSocket reach an agent behind a registry,
// each by a connection of its own. They need the token that is made for them.
func TestConnectWebSocket(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	var stderr rig.Transcript
	cmd := connectTo(t, s, "ci-1", "--listen", "127.0.0.1:0")
	cmd.Stderr = &stderr
	p := rig.Start(t, cmd)
	url := p.Line(t)
	rig.Until(t, "where the token is, is told", func() bool { return strings.HasSuffix(stderr.String(), "\n") })
	_, file, ok := strings.Cut(strings.TrimSpace(stderr.String()), "agent: clients need the token in the file ")
	info, err := os.Stat(file)
	if !ok || err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token is in %q: %v, %v", stderr.String(), info, err)
	}
	token := rig.Value(os.ReadFile(file))
	if c, err := client.DialURL(rig.Context(t), url); err == nil {
		_ = c.Close()
		t.Error("a client without the token comes in")
	}
	ids := map[string]bool{}
	for range 3 {
		c := dialed(t, url, client.Token(strings.TrimSpace(string(token))))
		ids[c.SessionID()] = true
		rig.Is(t, answer(t, c, "", "echo", "here"), "here\n", "the command")
	}
	rig.Is(t, len(ids), 3, "sessions")
	rig.Is(t, says(t, rig.Command(t, rig.Agent(t), "exec", "--url", url, "--token-file", file, "--", "echo", "by exec")), "by exec\n", "exec")
	p.Terminate(t)
	rig.Is(t, rig.Err(os.Stat(file)), fs.ErrNotExist, "the token afterwards")
}
