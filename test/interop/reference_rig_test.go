package interop_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/test/rig"
)

// patience is how long a test waits for what must come, before it fails.
const patience = rig.Patience

// reference is the Codex CLI, whose exec-server may be any number of executors at our registry.
type reference struct {
	*rig.Site
	codex string // the program
	home  string // CODEX_HOME of all executors
}

// newReference starts a registry that ends with the test.
func newReference(t *testing.T, codex string) *reference {
	t.Helper()
	r := &reference{codex: codex, home: codexHome(t)}
	r.Site = &rig.Site{Pattern: "*", Args: []string{"--direct", "direct"}}
	r.Open(t)
	return r
}

// codexCLI returns the program of the reference.
func codexCLI(t *testing.T) string {
	t.Helper()
	codex := os.Getenv("CODEX_BIN")
	if codex == "" {
		t.Skip("CODEX_BIN does not name the Codex CLI (make interop)")
	}
	return codex
}

// codexHome returns a folder for the reference.
func codexHome(t *testing.T) string {
	t.Helper()
	// The reference puts helpers of its own into CODEX_HOME, but refuses to where that is in the
	// folder for temporary files.
	cache, err := os.UserCacheDir()
	rig.Must(t, err)
	rig.Must(t, os.MkdirAll(cache, 0o700))
	home, err := os.MkdirTemp(cache, "execagent-interop-")
	rig.Must(t, err)
	t.Cleanup(func() {
		rig.Check(t, os.RemoveAll(home))
	})
	return home
}

// environments returns the registry's list of who is online.
func (r *reference) environments(t *testing.T) string {
	t.Helper()
	return r.Ask(t, "environments")
}

// serve starts the reference as executor of an environment, by way of address.
func (r *reference) serve(t *testing.T, environment, address string) *rig.Program {
	t.Helper()
	cmd := exec.Command(r.codex, "exec-server", "--remote", "http://"+address, "--environment-id", environment)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.home, "CODEX_HOME=" + r.home, "CODEX_API_KEY=" + r.Executor}
	return rig.Start(t, cmd)
}

// harness returns how to connect to the environment, by way of address.
func (r *reference) harness(t *testing.T, environment, address string) client.Config {
	t.Helper()
	cfg, err := remote.Registry("http://"+address, environment, r.Harness)
	rig.Must(t, err)
	t.Cleanup(cfg.Release)
	return cfg
}

// connect opens a session, or with an id comes back to one. The executor may still be on its way:
// the dialer asks until the registry knows it.
func connect(t *testing.T, d client.Config, sessionID string) (*client.Client, error) {
	t.Helper()
	c, err := client.Connect(t.Context(), client.Config{Dial: d.Dial, Single: true, ResumeSessionID: sessionID, ConnectTimeout: patience})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() }) // the connection may have been cut
	}
	return c, err
}

// mustConnect is connect for a new session.
func (r *reference) mustConnect(t *testing.T, environment, address string) *client.Client {
	t.Helper()
	c, err := connect(t, r.harness(t, environment, address), "")
	rig.Must(t, err)
	return c
}
