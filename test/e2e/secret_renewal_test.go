package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestSecretRenewal: a confined command that runs while a secret is renewed, by a link or by a
// rename, sees neither the new file nor the former one, and goes on. No more does one that is
// started later.
func TestSecretRenewal(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	put := func(t *testing.T, path string) {
		t.Helper()
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(token+"\n"), 0o600)))
	}
	for name, renewal := range map[string]struct {
		path  string
		renew func(t *testing.T, dir string)
	}{
		"link": {"cur/k", func(t *testing.T, dir string) {
			put(t, dir+"/g2/k")
			rig.Check(t, errors.Join(os.Symlink("g2", dir+"/new"), os.Rename(dir+"/new", dir+"/cur")))
		}},
		"rename": {"key", func(t *testing.T, dir string) {
			for range 20 {
				put(t, dir+"/key.new")
				rig.Check(t, os.Rename(dir+"/key.new", dir+"/key"))
				time.Sleep(5 * time.Millisecond)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, work := filepath.Join(t.TempDir(), "secrets"), t.TempDir()
			put(t, dir+"/key")
			put(t, dir+"/g1/k")
			rig.Must(t, os.Symlink("g1", dir+"/cur"))
			agent := rig.Start(t, exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token",
				"--ws-token-file", filepath.Join(dir, renewal.path)))
			c := dialed(t, agent.Line(t), client.Token(token))
			start := func(script string) *client.Process {
				p, err := c.Start(rig.Context(t), protocol.StartParams{
					Argv: []string{"sh", "-c", script, "sh", dir}, Cwd: protocol.NewPathURI(work), Sandbox: sandboxOf(work, protocol.NetworkRestricted, "read :root", "write :project_roots"),
					Env: map[string]string{"PATH": os.Getenv("PATH")},
				})
				rig.Must(t, err)
				return p
			}
			const read = `for f in cur/k g1/k g2/k key key.new; do { read -r x <"$1/$f" && echo "$f: $x"; } 2>/dev/null; done`
			p := start("until test -e stop; do " + read + "; : >running; done; echo done")
			rig.Until(t, "the command begins", func() bool { return rig.Err(os.Stat(work+"/running")) == nil })
			renewal.renew(t, dir)
			time.Sleep(100 * time.Millisecond) // it reads on
			put(t, work+"/stop")
			for _, p := range []*client.Process{p, start(read + "; echo done")} {
				rig.Is(t, outcome(t, p), result{"done\n", "", 0}, "the command")
			}
			agent.Terminate(t)
		})
	}
}
