package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestOperatorsWord: with the requirements.toml of docs/operator.md no request gets more than they say,
// whatever its client asks for and whatever the flags of the agent say.
func TestOperatorsWord(t *testing.T) {
	t.Parallel()
	h := newConfigured(t)
	work, outside := rig.Value(os.MkdirTemp("/var/tmp", "operator")), rig.Value(os.MkdirTemp("/var/tmp", "operator"))
	t.Cleanup(func() { _, _ = os.RemoveAll(work), os.RemoveAll(outside) })
	for _, b := range fenced(t, "../../docs/operator.md") {
		if strings.HasPrefix(b.text, "# requirements.toml\n") {
			h.write(t, map[string]string{"etc/requirements.toml": strings.ReplaceAll(b.text, "/srv/w", work)})
		}
	}
	cmd := h.command(t, nil, rig.Agent(t), "--listen", "stdio", "--sandbox-ceiling", "workspace:/,network", "--log-level", "error")
	c := rig.Value(client.Connect(rig.Context(t), client.Program(transport.CommandConfig{Argv: cmd.Args, Env: cmd.Env})))
	defer c.Close()
	disabled := &protocol.Sandbox{Permissions: protocol.Permissions{Type: protocol.PermissionsDisabled}, WindowsSandboxLevel: protocol.WindowsSandboxDisabled}
	everything := &protocol.Sandbox{
		Permissions: protocol.Permissions{Type: protocol.PermissionsManaged, Network: protocol.NetworkEnabled, FileSystem: &protocol.FileSystemRules{
			Type: protocol.FileSystemRestricted, Entries: []protocol.SandboxEntry{
				{Access: "write", Path: protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: "root"}}},
			},
		}},
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}
	const script = `echo yes >"$0/x"; echo no >"$1/x"; exec 3<>/dev/tcp/127.0.0.1/9`
	for name, asked := range map[string]*protocol.Sandbox{"none": nil, "disabled": disabled, "everything": everything} {
		r := inside(t, c, asked, "/", "bash", "-c", script, work, outside)
		has(t, r.stderr, outside+"/x: Read-only file system")
		has(t, r.stderr, "Operation not permitted")
		rig.Is(t, string(rig.Value(os.ReadFile(work+"/x"))), "yes\n", "%s: within", name)
		rig.Must(t, os.Remove(work+"/x"), c.FS(asked).WriteFile(rig.Context(t), work+"/x", []byte("yes")))
		has(t, fmt.Sprint(c.FS(asked).WriteFile(rig.Context(t), outside+"/x", nil)), "Read-only file system")
		rig.Is(t, len(rig.Value(os.ReadDir(outside))), 0, "%s: what was written outside", name)
	}
}
