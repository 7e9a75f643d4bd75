package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestPlainTokens: a token that leaves the machine without TLS is a warning, at the start, and
// nothing else is.
func TestPlainTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	rig.Must(t, os.WriteFile(token, []byte("let me in\n"), 0o600))
	cert, key := selfSigned(t)
	secure := []string{"--tls-cert", cert, "--tls-key", key}
	for _, tt := range []struct {
		listen string
		flags  []string
		warns  bool
	}{
		{"ws://0.0.0.0:0", nil, true}, {"ws://127.0.0.1:0", nil, false}, {"wss://0.0.0.0:0", secure, false},
	} {
		var complaints rig.Transcript
		cmd := exec.Command(rig.Agent(t), append([]string{"--listen", tt.listen, "--ws-auth", "capability-token", "--ws-token-file", token}, tt.flags...)...)
		cmd.Stderr = &complaints
		p := rig.Start(t, cmd)
		url := p.Line(t)
		p.Terminate(t)
		log := complaints.String()
		for _, warning := range []string{"clients send their token and all their traffic unencrypted", "--tls-cert and --tls-key", "level=WARN"} {
			rig.Is(t, strings.Contains(log, warning), tt.warns, "%s: %s: says %q", url, log, warning)
		}
	}
}

// TestCommandIsNoClient: an agent without authentication lets in everybody who connects. A
// command with the network must not use that to run something unconfined by way of the agent that
// confines it; and the agent says at its start whom it lets in.
func TestCommandIsNoClient(t *testing.T) {
	for i, tt := range []struct {
		name, listen string
		flags        []string
		who          string
		refused      bool // the command is not even started
	}{
		{"loopback", "ws://127.0.0.1:0", []string{"--health-listen", "127.0.0.1:0"}, "every local user", false},
		{"loopback of IPv6", "ws://[::1]:0", nil, "every local user", false},
		{"everywhere", "ws://0.0.0.0:0", []string{"--allow-unauthenticated"}, "everybody who can reach", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if i > 0 {
				rig.Tier(t, rig.Merge)
			}
			work := rig.Value(filepath.EvalSymlinks(t.TempDir()))
			var complaints rig.Transcript
			cmd := exec.Command(rig.Agent(t), append([]string{"--listen", tt.listen, "--state-dir", t.TempDir() + "/state"}, tt.flags...)...)
			cmd.Stderr = &complaints
			agent := rig.Start(t, cmd)
			t.Cleanup(func() {
				agent.Stop(t)
				has(t, complaints.String(), "--ws-auth capability-token", tt.who)
			})
			url := strings.Replace(agent.Line(t), "0.0.0.0", "127.0.0.1", 1)
			c := dialed(t, url)
			other, err := net.Listen("tcp", "127.0.0.1:0")
			rig.Must(t, err)
			defer other.Close()

			r := &escapeRig{repo: work}
			run := func(argv ...string) string {
				t.Helper()
				left := inside(t, c, r.policy("net"), work, argv...)
				return ending(left.stdout+left.stderr, left.code)
			}
			_, port, err := net.SplitHostPort(strings.TrimPrefix(url, "ws://"))
			rig.Must(t, err)
			mark := t.TempDir() + "/ran"
			for _, host := range []string{"127.0.0.1", "127.9.9.9", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"} {
				said := run(rig.Agent(t), "exec", "--url", "ws://"+host+":"+port, "--", "touch", mark)
				rig.Is(t, rig.Err(os.Stat(mark)), os.ErrNotExist, "by way of %s it ran something", host)
				if tt.refused {
					has(t, said, "--ws-auth", "exit 101\n")
				} else {
					has(t, said, "operation not permitted", "exit 125\n")
				}
				lacks(t, said, "waited")
			}
			if tt.refused {
				return
			}
			if len(tt.flags) > 0 {
				const probes = `msg="answering probes" address=`
				rig.Until(t, "it says where it answers probes", func() bool { return strings.Contains(complaints.String(), probes) })
				_, rest, _ := strings.Cut(complaints.String(), probes)
				address, _, _ := strings.Cut(rest, "\n")
				has(t, run(rig.Agent(t), "exec", "--url", "ws://"+address, "--", "true"), "operation not permitted", "exit 125\n")
			}
			// The same program reaches other services.
			go func() {
				conn, err := other.Accept()
				if err == nil {
					_, _ = conn.Write([]byte("HTTP/1.1 418 reached\r\n\r\n"))
					_ = conn.Close()
				}
			}()
			has(t, run(rig.Agent(t), "exec", "--url", "ws://"+other.Addr().String(), "--", "true"), "418", "exit 125\n")
		})
	}
}
