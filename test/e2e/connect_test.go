package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
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
	r, err := c.Run(rig.Context(t), client.Spec{Argv: []string{"cat"}, Dir: "/"}, []byte("through both"))
	if err != nil || string(r.Stdout) != "through both" {
		t.Errorf("got %+v, %v", r, err)
	}
	rig.Check(t, c.Close())

	// An environment without an executor.
	var stderr bytes.Buffer
	cmd = connectTo(t, s, "ci-2", "--wait", "0")
	cmd.Stderr = &stderr
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || withoutWaits(stderr.String()) != "agent: environment ci-2: no executor is connected\n" {
		t.Errorf("%v: %s", err, &stderr)
	}
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
	token, err := os.ReadFile(file)
	rig.Must(t, err)
	if c, err := client.DialURL(rig.Context(t), url); err == nil {
		_ = c.Close()
		t.Error("a client without the token comes in")
	}
	ids := map[string]bool{}
	for range 3 {
		c, err := client.DialURL(rig.Context(t), url, client.Token(strings.TrimSpace(string(token))))
		rig.Must(t, err)
		defer c.Close()
		ids[c.SessionID()] = true
		r, err := c.Run(rig.Context(t), client.Spec{Argv: []string{"echo", "here"}, Dir: "/"}, nil)
		if err != nil || string(r.Stdout) != "here\n" {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	if len(ids) != 3 {
		t.Errorf("the sessions are %v", ids)
	}
	out, err := rig.Command(t, rig.Agent(t), "exec", "--url", url, "--token-file", file, "--", "echo", "by exec").CombinedOutput()
	if err != nil || withoutWaits(string(out)) != "by exec\n" {
		t.Errorf("%v: %s", err, out)
	}
	rig.Must(t, p.Process.Signal(syscall.SIGTERM))
	rig.Is(t, p.Exit(t), 0, "exit code")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the token stays: %v", err)
	}
}
