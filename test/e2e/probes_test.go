package e2e

import (
	"context"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
	health := func() string { return said(t, os.Geteuid(), rig.Agent(t), "health", "--probe", address) }
	rig.Is(t, health(), "", "health")
	rig.Is(t, s.Run(t, "ci-1", "echo", "here"), "here\n", "it prints")

	next := s.Ask(t, "keys", "rotate", id, "--grace=0")
	rig.Is(t, rig.Status("http://"+address+"/readyz"), http.StatusOK, "it is not ready before anybody has come")
	has(t, says(t, s.ExecWith(t, "ci-1", []string{"--wait=0"}, "true")), "exit ")
	p.Until(t, "it is not ready", func() bool { return rig.Status("http://"+address+"/readyz") == http.StatusServiceUnavailable })
	rig.Is(t, health(), "agent: not ready: the registry refuses the credential of this executor (status 401)\nexit 1\n", "health")
	o := &observed{metrics: "http://" + address + "/metrics"}
	o.was = scrape(t, o.metrics).values()
	rig.Is(t, o.was["agent_relay_credential_refused"], 1, "credential_refused")
	rig.Is(t, o.was["agent_relay_link_up"], 1, "link_up")
	replace(t, file, []byte(next))
	o.moved(t, map[string]float64{"agent_relay_credential_refused": -1, "agent_relay_reconnects_total": 0})
	rig.Is(t, health(), "", "with the new key health says")
	rig.Is(t, s.Run(t, "ci-1", "echo", "here again"), "here again\n", "with the new key it prints")
	p.Says(t, "the API key was read again", 1)

	// One that is nobody's key any more, or that others may write, is not used.
	rig.Must(t, os.Chmod(file, 0o666))
	rig.Is(t, says(t, s.ExecWith(t, "ci-1", nil, "echo", "still")), "still\n", "it prints")
	open := s.Start(t, rig.Agent(t), nil, nil, "--remote", s.URL(), "--environment-id", "ci-2", "--api-key-file", file)
	rig.Is(t, open.Exit(t), 1, "exit code")
	has(t, open.Printed.String(), "is refused")
	lacks(t, s.Log.String(), strings.TrimSpace(next), key)
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
	asks := func(uid int) string {
		t.Helper()
		return said(t, uid, dir+"/agent", "health", "--probe", "unix://"+socket)
	}
	p := start()
	url := p.Line(t)
	rig.Is(t, asks(0), "", "it says")
	var dialer net.Dialer
	scraper := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}}}
	response, err := scraper.Get("http://agent/metrics")
	rig.Must(t, err)
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	rig.Is(t, err != nil || readPage(t, text)["agent_build_info"] == nil, false, "%v, the page is %s", err, text)
	has(t, asks(nobody), "permission denied", "exit 1\n")
	c := dialed(t, url)
	confined := inside(t, c, (&escapeRig{repo: dir}).policy("net"), dir, dir+"/agent", "health", "--probe", "unix://"+socket)
	has(t, ending(confined.stderr, confined.code), "connect: ", "exit 1\n")
	p.Terminate(t)
	rig.Is(t, rig.Err(os.Lstat(socket)), fs.ErrNotExist, "the socket afterwards")
	has(t, asks(0), "no such file", "exit 1\n")
	p = start("--allow-uid", "1")
	p.Line(t)
	rig.Is(t, asks(1), "", "a user who may is told")
	has(t, asks(nobody), "status 403", "exit 1\n")
	for _, wrong := range []string{"unix://relative", "unix:///a/../b", "7301", "unix:///" + strings.Repeat("x", 200), "http://127.0.0.1:1"} {
		for _, line := range [][]string{{"--health-listen", wrong}, {"health", "--probe", wrong}} {
			has(t, said(t, 0, append([]string{dir + "/agent"}, line...)...), "exit 2\n")
		}
	}
	has(t, said(t, 0, dir+"/agent", "health", "--probe", "127.0.0.1:1", "--url", "127.0.0.1:2"), "cannot be used with", "exit 2\n")
}
