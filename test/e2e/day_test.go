package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestDay: what an agent with TLS, certificates of clients and a token says in a day with refused
// and killed clients, sessions, a watch, an HTTP request and a renewal: each line of all that it
// prints is JSON, and none of its secrets is in it, nor one of its clients'.
func TestDay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certify(t, dir, "ca", "ca")
	for name, by := range map[string]string{"agent": "ca", "ci": "ca", "other": "other"} {
		certify(t, dir, name, by)
	}
	const token, inEnv, inArgv, inURL, wrong = "opensesame-token", "hunter2-env", "swordfish-argv", "xyzzy-url", "plugh-wrong"
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	tokenFile, wrongFile := file("token", token), file("wrong", wrong)
	cmd := exec.Command(rig.Agent(t), "--listen", "127.0.0.1:0", "--tls-cert", in("agent.crt"), "--tls-key", in("agent.key"), "--tls-client-ca", in("ca.crt"),
		"--ws-auth", "capability-token", "--ws-token-file", tokenFile, "--log-format", "json", "--log-level", "debug", "--session-ttl", "100ms",
		"--state-dir", in("state"))
	cmd.Env = append(os.Environ(), "OPENAI_API_KEY=hidden-1", "aws_Secret_Access_Key=hidden-2", "STAYS=kept-0", "SECRET_OF_AGENT="+inEnv)
	var out rig.Transcript
	cmd.Stdout, cmd.Stderr = &out, &out
	agent := rig.Start(t, cmd)
	// find waits for a line with a message, and the others as fields, and returns it.
	find := func(message string, fields ...string) map[string]any {
		t.Helper()
		var found map[string]any
		agent.Until(t, message, func() bool {
			for line := range strings.Lines(out.String()) {
				var values map[string]any
				if json.Unmarshal([]byte(line), &values) != nil || values["msg"] != message {
					continue
				}
				missing := false
				for _, field := range fields {
					missing = missing || !strings.Contains(line, field)
				}
				if !missing {
					found = values
					return true
				}
			}
			return false
		})
		return found
	}
	url := find("listening")["url"].(string)
	find("serving", `"version":"`)
	run := func(flags ...string) string {
		t.Helper()
		return said(t, os.Geteuid(), append([]string{rig.Agent(t)}, flags...)...)
	}
	with := func(token, certificate string, more ...string) []string {
		flags := []string{"exec", "--url", url, "--tls-ca", in("ca.crt"), "--token-file", token}
		if certificate != "" {
			flags = append(flags, "--tls-cert", in(certificate+".crt"), "--tls-key", in(certificate+".key"))
		}
		return append(flags, more...)
	}
	for _, tt := range []struct {
		line []string
		want string
		code int
	}{
		{with(tokenFile, "ci", "-e", "A="+inEnv, "--", "sh", "-c", "echo $A; exit 3", inArgv), inEnv + "\n", 3},
		{with(wrongFile, "ci", "--", "true"), "401", 125},
		{with(tokenFile, "other", "--", "true"), "tls: ", 125},
		{with(tokenFile, "", "--", "true"), "certificate required (see --tls-cert)", 125},
		{[]string{"exec", "--url", url, "--token-file", tokenFile, "--", "true"}, "(see --tls-ca)", 125},
		{[]string{"exec", "--url", strings.Replace(url, "wss", "ws", 1), "--token-file", tokenFile, "--", "true"}, `"this listener speaks TLS, use wss://"`, 125},
	} {
		got := run(tt.line...)
		has(t, got, tt.want, fmt.Sprintf("exit %d\n", tt.code))
	}
	rig.Is(t, run("health", "--url", url, "--tls-ca", in("ca.crt"), "--token-file", tokenFile, "--tls-cert", in("ci.crt"), "--tls-key", in("ci.key")), "", "health")
	find("client refused", `"remote":"127.0.0.1:`, `"reason":"invalid websocket bearer token","status":401`)
	find("client refused", "signed by unknown authority")
	find("client refused", "client didn't provide a certificate")
	find("client refused", "speaks no TLS")
	find("session attached", `"level":"INFO"`, `"client":"execagent-exec"`, `"principal":"cert:CN=ci"`, `"remote":"127.0.0.1:`)
	find("process started", `"program":"sh"`, `"level":"DEBUG"`)
	find("process ended", `"program":"sh"`, `"exit_code":3`)
	find("session ended", `"reason":"expired"`)

	// A client of the library: a watch, a request, a confined command that looks for the keys.
	c, err := client.DialURL(rig.Context(t), url, client.Token(token), client.TLS(&tls.Config{
		RootCAs: authority(t, dir, "ca"), Certificates: []tls.Certificate{certificate(t, dir, "ci")},
	}))
	rig.Must(t, err)
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer service.Close()
	rig.Check(t, rig.Err(c.HTTP(rig.Context(t), protocol.HTTPRequestParams{Method: "GET", URL: service.URL + "/?" + inURL})))
	rig.Must(t, rig.Err(c.FS(nil).Watch(rig.Context(t), dir, false)))
	for _, name := range []string{"agent.key", "ca.crt", "token"} {
		if r := inside(t, c, (&escapeRig{repo: dir}).policy("work"), dir, "cat", in(name)); r.code == 0 || r.stdout != "" {
			t.Errorf("a confined command reads %s: %+v", name, r)
		}
	}
	find("process started", `"program":"cat"`, `"sandbox":["`)
	id := c.SessionID()
	certify(t, dir, "agent", "ca")
	rig.Is(t, run(with(tokenFile, "ci", "--", "echo", "renewed")...), "renewed\n", "after a renewal")
	find("the certificate was read again")
	long := exec.Command(rig.Agent(t), with(tokenFile, "ci", "--", "sleep", "1000")...)
	killed := rig.Start(t, long)
	find("process started", `"program":"sleep"`)
	killed.Kill(t)
	find("session detached", `"running":1`)
	find("process ended", `"program":"sleep"`)
	_ = c.Close()
	keysLeave(t, agent.Process.Pid)
	agent.Terminate(t)

	text := out.String()
	allJSON(t, text)
	private := rig.Value(os.ReadFile(in("agent.key")))
	lacks(t, text, token, inEnv, inArgv, inURL, wrong, id, "hidden-", strings.Split(string(private), "\n")[1])
	t.Logf("%d lines", strings.Count(text, "\n"))
}
