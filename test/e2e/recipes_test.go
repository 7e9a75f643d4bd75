package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRecipes runs the blocks of docs/recipes.md that are marked as "sh by=recipes", one after the
// other in one folder: over a WebSocket and through the relay, while every connection is cut
// after some bytes. needs= in the mark names the programs without which a block is left out.
func TestRecipes(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Run("websocket", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		cmd := exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0")
		cmd.Env = append(os.Environ(), "HOME="+dir)
		proxy := rig.NewProxy(t, strings.TrimPrefix(connect(t, cmd).line(t), "ws://"))
		runRecipes(t, proxy, dir, "AGENT_URL=ws://"+proxy.Address())
	})
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		s := rig.NewSite(t)
		environ := append(os.Environ(), "HOME="+dir, "CODEX_API_KEY="+s.Executor)
		s.Start(t, rig.Agent(t), environ, nil, "--remote", s.URL(), "--environment-id", "ci-1").
			Says(t, "connected to the rendezvous", 1)
		proxy := rig.NewProxy(t, s.Address)
		runRecipes(t, proxy, dir, "AGENT_REGISTRY="+s.At(proxy.Address()).URL(),
			"AGENT_ENVIRONMENT_ID=ci-1", "AGENT_REGISTRY_TOKEN="+s.Harness)
	})
}

func runRecipes(t *testing.T, proxy *rig.Proxy, dir string, environ ...string) {
	ports := strings.NewReplacer("2222", port(t), "2223", port(t))
	defer proxy.CutEach(1_000_000)()
	ran, remote := 0, false
	for _, b := range fenced(t, "../../docs/recipes.md") {
		mark, needs, _ := strings.Cut(b.info, " needs=")
		if mark != "sh by=recipes" {
			continue
		}
		if lacks := rig.Lacking(strings.FieldsFunc(needs, func(r rune) bool { return r == ',' })...); lacks != nil {
			t.Logf("line %d is left out: %v", b.line, lacks)
			continue
		}
		ran++
		remote = remote || strings.Contains(b.text, "agent port-forward")
		all := append(os.Environ(), "HOME="+dir, "PATH="+filepath.Dir(rig.Agent(t))+":"+os.Getenv("PATH"))
		r := shell(t, dir, append(all, environ...), ports.Replace(b.text))
		if r.code != 0 {
			t.Fatalf("line %d: %+v\n%s", b.line, r, b.text)
		}
		t.Logf("line %d says\n%s%s", b.line, r.stdout, r.stderr)
	}
	cuts, _ := proxy.Seen()
	t.Logf("%d blocks, %d connections", ran, cuts)
	if remote && cuts == 0 { // others have an agent of their own, or none
		t.Error("no block has come through the proxy")
	}
}

func port(t *testing.T) string {
	_, port, _ := strings.Cut(rig.FreeAddress(t), ":")
	return port
}
