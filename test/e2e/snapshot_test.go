package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestSnapshots: the startup files that are run for a shell snapshot can do no more than the
// command, by files, by the network and by rules, in each kind of sandbox; and they are run once.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	need(t, skip, "/bin/bash", "/usr/bin/curl")
	rules := rules(t, `prefix_rule(pattern = ["head"], decision = "forbidden")`)
	destination := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	t.Cleanup(destination.Close)
	place := strings.TrimPrefix(destination.URL, "http://")
	_, port, err := net.SplitHostPort(place)
	rig.Must(t, err)
	eachMeans(t, func(t *testing.T, launch []string) {
		for n, network := range []string{"managed", "restricted", "restricted, rules"} {
			t.Run(network, func(t *testing.T) {
				if n > 0 {
					rig.Tier(t, rig.Merge)
				}
				t.Parallel()
				argv := slices.Concat(launch, []string{rig.Agent(t), "--listen", "ws://127.0.0.1:0"})
				headCode := 0
				if strings.HasSuffix(network, "rules") {
					headCode = 126
					argv = append(argv, "--exec-policy", rules, "--exec-policy-enforce", "tree")
				}
				url := rig.Start(t, exec.Command(argv[0], argv[1:]...)).Line(t)
				c := dialed(t, url)
				home := rig.Value(filepath.EvalSymlinks(t.TempDir()))
				outside, doze := home+".outside", fmt.Sprintf("%d.%d", 100_000+10*len(launch)+n, os.Getpid()) // as nobody else sleeps
				profile := fmt.Sprintf(`echo run >> ~/runs
kill -9 $PPID 2>/dev/null
(exec 3<>/dev/tcp/127.0.0.1/%[1]s) 2>/dev/null && echo connected >> ~/leaks
echo x 2>/dev/null >%[3]s && echo written >> ~/leaks
cat ~/secret/f 2>/dev/null >> ~/leaks
export ALLOWED=$(curl -s http://%[2]s/) DENIED=$(curl -s -o /dev/null -w '%%{http_code}' http://denied.invalid/)
h=head; $h -n 1 /etc/passwd >/dev/null 2>&1; export HEAD=$?
f() { echo "f $ALLOWED $DENIED $HEAD"; }
sleep %[4]s & setsid sleep %[4]s & (setsid setsid sleep %[4]s &)
`, port, place, outside, doze)
				rig.Must(t, os.WriteFile(home+"/.bash_profile", []byte(profile), 0o600), os.Mkdir(home+"/secret", 0o700),
					os.WriteFile(home+"/secret/f", []byte("secret\n"), 0o600))
				want, access := fmt.Sprintf("f  000 %d\n1\n", headCode), "restricted"
				if network == "managed" {
					want, access = "f here 403 0\n1\n", "enabled"
				}
				params := map[string]any{
					"argv": []string{"/bin/bash", "-lc", "f; wc -l < ~/runs"}, "cwd": "file://" + home, "tty": false,
					"env":           map[string]string{"HOME": home, "PATH": "/usr/bin:/bin"},
					"shellSnapshot": map[string]any{"scopeId": "s", "shell": map[string]string{"name": "bash", "path": "/bin/bash"}},
					"sandbox":       json.RawMessage(policyIn(home, policyFile(access, readRoot, writeProject, denySecret))),
				}
				if network == "managed" {
					params["enforceManagedNetwork"] = true
					params["networkProxy"] = map[string]any{"proxy": map[string]any{
						"enabled": true, "enableSocks5": false, "enableSocks5Udp": false, "allowUpstreamProxy": false, "allowLocalBinding": false,
						"dangerouslyAllowAllUnixSockets": false, "mode": "full", "domains": map[string]string{"127.0.0.1": "allow"},
					}}
				}
				for _, id := range []string{"a", "b"} {
					params["processId"] = id
					var started protocol.StartResult
					rig.Must(t, c.Call(rig.Context(t), protocol.MethodProcessStart, params, &started))
					rig.Is(t, outputOf(t, c, id), want, "%v: printed", started.SandboxLayers)
				}
				leaks, _ := os.ReadFile(home + "/leaks") // there are none
				rig.Is(t, string(leaks), "", "what the startup file could do")
				rig.Is(t, rig.Err(os.Stat(outside)), fs.ErrNotExist, "what the startup file has written outside")
				rig.Until(t, "the daemons of the startup file have ended", func() bool { return len(withArgument(doze)) == 0 })
			})
		}
	})
}

// outputOf returns what a process prints until its end.
func outputOf(t *testing.T, c *client.Client, id string) string {
	t.Helper()
	var text strings.Builder
	for after := uint64(0); ; {
		var r protocol.ReadResult
		rig.Must(t, c.Call(rig.Context(t), protocol.MethodProcessRead, map[string]any{"processId": id, "afterSeq": after, "waitMs": 60_000}, &r))
		for _, chunk := range r.Chunks {
			text.Write(chunk.Chunk)
		}
		if after = r.NextSeq - 1; r.Closed {
			return text.String()
		}
	}
}
