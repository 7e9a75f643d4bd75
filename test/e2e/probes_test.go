package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestKeyFile: an executor signs in with the key of a file, and goes on when the registry has
// another one. While the registry refuses the key that it has, it is not ready though it is
// connected, and says why to who probes it; once the new one is written it is, without a client.
func TestKeyFile(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	s := rig.NewSite(t)
	key, id := s.CreateKey(t, "executor")
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	rig.Must(t, os.WriteFile(file, []byte(key+"\n"), 0o600))
	address := rig.FreeAddress(t)
	p := s.Start(t, rig.Agent(t), nil, nil, "--remote", s.URL(), "--environment-id", "ci-1", "--api-key-file", file, "--health-listen", address)
	p.Says(t, "connected to the rendezvous", 1)
	health := func() (string, int) {
		return said(t, os.Geteuid(), rig.Agent(t), "health", "--probe", address)
	}
	if out, code := health(); out != "" || code != 0 {
		t.Errorf("health says %q, exit code %d", out, code)
	}
	rig.Is(t, s.Run(t, "ci-1", "echo", "here"), "here\n", "it prints")

	next := s.Ask(t, "keys", "rotate", id, "--grace=0")
	rig.Is(t, rig.Status("http://"+address+"/readyz"), http.StatusOK, "it is not ready before anybody has come")
	if out, err := s.ExecWith(t, "ci-1", []string{"--wait=0"}, "true").Output(); err == nil {
		t.Errorf("a client is let in: %s", out)
	}
	p.Until(t, "it is not ready", func() bool { return rig.Status("http://"+address+"/readyz") == http.StatusServiceUnavailable })
	if out, code := health(); out != "agent: not ready: the registry refuses the credential of this executor (status 401)\n" || code != 1 {
		t.Errorf("health says %q, exit code %d", out, code)
	}
	o := &observed{metrics: "http://" + address + "/metrics"}
	o.was = scrape(t, o.metrics).values()
	if o.was["agent_relay_credential_refused"] != 1 || o.was["agent_relay_link_up"] != 1 {
		t.Errorf("the page has credential_refused %v and link_up %v", o.was["agent_relay_credential_refused"], o.was["agent_relay_link_up"])
	}
	replace(t, file, []byte(next))
	o.moved(t, map[string]float64{"agent_relay_credential_refused": -1, "agent_relay_reconnects_total": 0})
	if out, code := health(); out != "" || code != 0 {
		t.Errorf("with the new key health says %q, exit code %d", out, code)
	}
	rig.Is(t, s.Run(t, "ci-1", "echo", "here again"), "here again\n", "with the new key it prints")
	p.Says(t, "the API key was read again", 1)

	// One that is nobody's key any more, or that others may write, is not used.
	rig.Must(t, os.Chmod(file, 0o666))
	if out, err := s.ExecWith(t, "ci-1", nil, "echo", "still").Output(); err != nil || string(out) != "still\n" {
		t.Errorf("%q, %v", out, err)
	}
	open := s.Start(t, rig.Agent(t), nil, nil, "--remote", s.URL(), "--environment-id", "ci-2", "--api-key-file", file)
	if code := open.Exit(t); code != 1 || !strings.Contains(open.Printed.String(), "is refused") {
		t.Errorf("exit code %d, %s", code, open.Printed)
	}
	if log := s.Log.String(); strings.Contains(log, strings.TrimSpace(next)) || strings.Contains(log, key) {
		t.Error("a key is in the log")
	}
}

// TestHealthSocket: probes and scrapes are answered at a UNIX socket for its user, for root and for
// whom --allow-uid names; it is gone with the agent, and no confined command reaches it.
func TestHealthSocket(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs another user")
	}
	dir := socketFolder(t)
	socket := dir + "/health"
	start := func(args ...string) *rig.Program {
		t.Helper()
		cmd := exec.Command(dir+"/agent", append([]string{"--listen", "127.0.0.1:0", "--health-listen", "unix://" + socket, "--state-dir", t.TempDir() + "/state"}, args...)...)
		return rig.Start(t, cmd)
	}
	asks := func(uid int, socket string) (string, int) {
		t.Helper()
		return said(t, uid, dir+"/agent", "health", "--probe", "unix://"+socket)
	}
	p := start()
	url := p.Line(t)
	if out, code := asks(0, socket); out != "" || code != 0 {
		t.Errorf("it says %q, exit code %d", out, code)
	}
	var dialer net.Dialer
	scraper := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}}}
	response, err := scraper.Get("http://agent/metrics")
	rig.Must(t, err)
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || readPage(t, text)["agent_build_info"] == nil {
		t.Errorf("%v, the page is %s", err, text)
	}
	if out, code := asks(nobody, socket); code != 1 || !strings.Contains(out, "permission denied") {
		t.Errorf("another user gets %q, exit code %d", out, code)
	}
	c, err := client.DialURL(rig.Context(t), url)
	rig.Must(t, err)
	defer c.Close()
	command, err := c.Start(rig.Context(t), protocol.StartParams{
		Argv: []string{dir + "/agent", "health", "--probe", "unix://" + socket}, Cwd: protocol.NewPathURI(dir),
		Sandbox: (&escapeRig{repo: dir}).policy("net"), Env: map[string]string{"PATH": os.Getenv("PATH")},
	})
	rig.Must(t, err)
	if code, _, complaint := outcome(t, command); code != 1 || !strings.Contains(complaint, "connect: ") {
		t.Errorf("a confined command gets %q, exit code %d", complaint, code)
	}
	p.Terminate(t)
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	if out, code := asks(0, socket); code != 1 || !strings.Contains(out, "no such file") {
		t.Errorf("when it has ended: %q, exit code %d", out, code)
	}
	p = start("--allow-uid", "1")
	p.Line(t)
	if out, code := asks(1, socket); out != "" || code != 0 {
		t.Errorf("a user who may gets %q, exit code %d", out, code)
	}
	if out, code := asks(nobody, socket); code != 1 || !strings.Contains(out, "status 403") {
		t.Errorf("a user who may not gets %q, exit code %d", out, code)
	}
	for _, wrong := range []string{"unix://relative", "unix:///a/../b", "7301", "unix:///" + strings.Repeat("x", 200), "http://127.0.0.1:1"} {
		for _, line := range [][]string{{"--health-listen", wrong}, {"health", "--probe", wrong}} {
			if out, code := said(t, 0, append([]string{dir + "/agent"}, line...)...); code != 2 {
				t.Errorf("%q: exit code %d, %s", line, code, out)
			}
		}
	}
	if out, code := said(t, 0, dir+"/agent", "health", "--probe", "127.0.0.1:1", "--url", "127.0.0.1:2"); code != 2 || !strings.Contains(out, "cannot be used with") {
		t.Errorf("two ways: exit code %d, %s", code, fmt.Sprint(out))
	}
}
