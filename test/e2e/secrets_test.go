package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// keysLeave looks for an agent's own keys in its memory, which a client may read. What stays has to be
// there, or the search is broken.
func keysLeave(t *testing.T, pid int) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		for text, want := range map[string]bool{"kept-0": true, "hidden-1": false, "hidden-2": false} {
			rig.Is(t, inMemory(t, pid, text), want, "%s is in the memory of the agent", text)
		}
	})
}

// inMemory looks for a text in everything that a process may write to.
func inMemory(t *testing.T, pid int, text string) bool {
	t.Helper()
	maps := rig.Value(os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)))
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Skipf("the memory of another process cannot be read here: %v", err)
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var start, end uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &start, &end, &mode); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if mode[:2] != "rw" || end-start > 1<<30 {
			continue
		}
		region := make([]byte, end-start)
		if _, err := memory.ReadAt(region, int64(start)); err != nil {
			continue // not there yet, or any more
		}
		if bytes.Contains(region, []byte(text)) {
			return true
		}
	}
	return false
}

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
					Argv: []string{"sh", "-c", script, "sh", dir}, Cwd: protocol.NewPathURI(work), Env: map[string]string{"PATH": os.Getenv("PATH")},
					Sandbox: sandboxOf(work, protocol.NetworkRestricted, "read :root", "write :project_roots"),
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
