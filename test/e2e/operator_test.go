package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
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
	getsNoMore(t, cmd, work, outside, "bash", "exec 3<>/dev/tcp/127.0.0.1/9", work, outside)
}

// TestOperatorsImage: the image of docs/operator.md does what the page says. Whoever the agent is in it,
// and however it confines commands, no request gets more.
func TestOperatorsImage(t *testing.T) {
	t.Parallel()
	runContainerPage(t, "operator.md")
	for _, kind := range kindsNamed(t, "hardened", "docker hardened", "docker root without capabilities") {
		work, outside := &containers{t.TempDir()}, &containers{t.TempDir()}
		work.own(t, kind)
		outside.own(t, kind)
		cmd := podman(slices.Concat([]string{"run", "--volume=" + work.repo + ":/srv/w", "--volume=" + outside.repo + ":/outside"}, runFlags, kind.flags,
			[]string{fmt.Sprintf("--user=%d:%[1]d", kind.uid), "--env=AGENT_REQUIRE_SANDBOX=false", "localhost/bounded"},
			[]string{"--listen=stdio", "--sandbox-ceiling=workspace:/srv/w,workspace:/outside,network", "--log-level=error"})...)
		getsNoMore(t, cmd, "/srv/w", "/outside", "sh", "nc -w 1 127.0.0.1 9; : >>/etc/execagent/requirements.toml && echo changed", work.repo, outside.repo)
	}
}

// getsNoMore has a client ask an agent for everything. Its commands and its file requests write in two
// folders, of which the ceiling allows work. Its commands also run more of a script, which connects.
// here are the paths of the two folders on this machine.
func getsNoMore(t *testing.T, agent *exec.Cmd, work, outside, shell, more string, here ...string) {
	t.Helper()
	c := rig.Value(client.Connect(rig.Context(t), client.Program(transport.CommandConfig{Argv: agent.Args, Env: agent.Env})))
	defer c.Close()
	for name, asked := range map[string]string{
		"none": "null", "disabled": `{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled"}`,
		"everything": policyFile("enabled", strings.Replace(readRoot, `"read"`, `"write"`, 1)),
	} {
		var sandbox *protocol.Sandbox
		rig.Must(t, json.Unmarshal([]byte(asked), &sandbox))
		r := inside(t, c, sandbox, "/", shell, "-c", `echo yes >"$0/x"; echo no >"$1/x"; `+more, work, outside)
		has(t, r.stderr, outside+"/x: Read-only file system")
		has(t, r.stderr, "Operation not permitted")
		rig.Is(t, r.stdout+textOf(os.ReadFile(here[0]+"/x")), "yes\n", "%s, %+v: within", name, r)
		rig.Must(t, os.Remove(here[0]+"/x"), c.FS(sandbox).WriteFile(rig.Context(t), work+"/x", []byte("yes")))
		has(t, fmt.Sprint(c.FS(sandbox).WriteFile(rig.Context(t), outside+"/x", nil)), "Read-only file system")
		rig.Is(t, len(rig.Value(os.ReadDir(here[1]))), 0, "%s: what was written outside", name)
	}
}
