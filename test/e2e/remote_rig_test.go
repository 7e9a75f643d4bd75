package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// registryBinary returns the path of the registry, built with the agent.
func registryBinary(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(agentBinary(t)), "registry")
}

// A site is a registry with one key of each role, and all that its programs have printed.
type site struct {
	address      string // of the registry
	data         string
	executor     string // key
	harness      string // key
	registry     *program
	printed      *transcript
	registryArgs []string
}

// newSite starts a registry; args are further ones for it. All of it ends with the test.
func newSite(t *testing.T, args ...string) *site {
	t.Helper()
	s := &site{address: freeAddress(t), data: filepath.Join(t.TempDir(), "data"), printed: &transcript{}, registryArgs: args}
	s.executor = s.createKey(t, "executor")
	s.harness = s.createKey(t, "harness")
	s.startRegistry(t)
	return s
}

func (s *site) url() string { return "http://" + s.address }

func (s *site) createKey(t *testing.T, role string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), registryBinary(t), "keys", "create", "--data", s.data, "--role", role, "--environment", "ci-*")
	cmd.Stderr = s.printed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("creating a key: %v\n%s", err, s.printed)
	}
	return strings.TrimSpace(string(out))
}

// startRegistry starts it, or again, on the same address and data.
func (s *site) startRegistry(t *testing.T) {
	t.Helper()
	args := append([]string{"serve", "--listen", s.address, "--data", s.data}, s.registryArgs...)
	s.registry = s.start(t, registryBinary(t), nil, nil, args...)
	s.registry.until(t, "the registry is ready", func() bool { return status(s.url()+"/readyz") == http.StatusOK })
}

// A program is one that has been started.
type program struct {
	*exec.Cmd
	printed *transcript
	ended   chan struct{} // closed when it has
}

// start starts a program with these variables beside PATH and HOME.
func (s *site) start(t *testing.T, path string, environ []string, stdin *os.File, args ...string) *program {
	t.Helper()
	// Not with the test's context: what is killed says nothing of how it would have ended.
	cmd := leash(exec.Command(path, args...))
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	own := &transcript{}
	both := &tee{own, s.printed}
	cmd.Stdout, cmd.Stderr = both, both
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{Cmd: cmd, printed: own, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // the state says how
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(path), strings.Join(args, " "), own)
		}
	})
	return p
}

// until waits for something that a living program brings about.
func (p *program) until(t *testing.T, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !happened() {
		select {
		case <-tick.C:
		case <-p.ended:
			t.Fatalf("waiting until %s: %v\n%s", what, p.ProcessState, p.printed)
		case <-late:
			t.Fatalf("waiting until %s: it takes too long\n%s", what, p.printed)
		}
	}
}

// says waits for a text in what the program prints, n times.
func (p *program) says(t *testing.T, text string, n int) {
	t.Helper()
	p.until(t, fmt.Sprintf("it says %q", text), func() bool { return strings.Count(p.printed.String(), text) >= n })
}

// exit waits for its end.
func (p *program) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("it does not end\n%s", p.printed)
	}
	return p.ProcessState.ExitCode()
}

// terminate sends SIGTERM and wants an orderly end.
func (p *program) terminate(t *testing.T) {
	t.Helper()
	_ = p.Process.Signal(syscall.SIGTERM) // it may have ended, which exit tells
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// serve starts an agent as executor of the environment and waits until it is connected.
func (s *site) serve(t *testing.T, environment string, args ...string) *program {
	t.Helper()
	args = append([]string{"--remote", s.url(), "--environment-id", environment}, args...)
	p := s.start(t, agentBinary(t), []string{"CODEX_API_KEY=" + s.executor}, nil, args...)
	p.says(t, "connected to the rendezvous", 1)
	return p
}

// exec is a command of agent exec through the registry.
func (s *site) exec(t *testing.T, environment string, command ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"exec", "--registry", s.url(), "--environment-id", environment, "--"}, command...)
	cmd := exec.CommandContext(t.Context(), agentBinary(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "AGENT_REGISTRY_TOKEN=" + s.harness}
	cmd.Stderr = s.printed
	return cmd
}

// run runs a command that must succeed and returns its output.
func (s *site) run(t *testing.T, environment string, command ...string) string {
	t.Helper()
	out, err := s.exec(t, environment, command...).Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, s.printed)
	}
	return string(out)
}

// transcript collects what programs print.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// tee writes to both; unlike io.MultiWriter it is a pointer, so that exec sees one writer for both outputs.
type tee struct{ a, b *transcript }

func (t *tee) Write(p []byte) (int, error) {
	_, _ = t.a.Write(p) // no transcript fails
	return t.b.Write(p)
}

// status is that of the answer to a GET, 0 without one.
func status(url string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}
