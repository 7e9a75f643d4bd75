package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// ownSocketCase is a place for the socket of an agent, and a policy under which a command could reach
// it. What has to be in force is a view by namespaces, and by a supervisor a level.
type ownSocketCase struct {
	name    string
	folder  string // of the socket, below the rig's
	entries string // of the policy, with $B for the rig's folder
	network string
	free    bool   // another socket in that place can be reached, moved and replaced
	level   string // R takes the place of S where metadata are visible
	alone   string // what is in force by Landlock alone; "": the policy is refused
}

var ownSocketCases = []ownSocketCase{
	{"in the workspace", "repo", "read /, write $B/repo", protocol.NetworkEnabled, true, "S", ""},
	{"in a folder of the workspace", "repo/dir", "read /, write $B/repo, deny $B/repo/vault", protocol.NetworkEnabled, true, "S", ""},
	{"in the workspace, without a network", "repo", "read /, write $B/repo", protocol.NetworkRestricted, false, "S", ""},
	{"outside", "out", "read /, write $B/repo", protocol.NetworkEnabled, false, "W", ""},
	{"where nothing can be written", "out", "read /", protocol.NetworkRestricted, false, "W", "landlock:"},
	{"outside, and named", "out", "read /, write $B/repo, unix_socket $B/out/agent.sock", protocol.NetworkRestricted, false, "W", ""},
	{"in a view that has it", "out", "read $B/out, read $B/escape", protocol.NetworkRestricted, false, "S", "landlock:"},
}

// TestOwnSocket: what is confined neither connects to the UNIX socket of its agent nor takes or
// moves its name, with every backend and in every level, wherever the socket lies. Beside it the
// same succeeds on another socket, where the policy lets it.
func TestOwnSocket(t *testing.T) {
	launcher := rig.Launcher(t, rig.Public(t))
	users := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		users = append(users, nobody)
	}
	for i, uid := range users {
		for j, backend := range []string{"namespaces", "supervised", "metadata", "landlock"} {
			for k, c := range ownSocketCases {
				if !inTurn(2*i+j+k, 4) {
					continue
				}
				t.Run(fmt.Sprintf("uid %d/%s/%s", uid, backend, c.name), func(t *testing.T) {
					t.Parallel()
					base := rig.Public(t)
					r := &escapeRig{site: escapeSite{uid: uid}, base: base, repo: base + "/repo", out: base + "/out", secret: filepath.Base(base)}
					layer := "mountns"
					switch backend {
					case "supervised":
						r.site.through, layer = []string{launcher, "--"}, "supervised:"+c.level
					case "metadata":
						r.site.through, r.site.flags = []string{launcher, "--"}, []string{metadataVisible}
						layer = "supervised:" + strings.Replace(c.level, "S", "R", 1)
					case "landlock":
						r.site.through, layer = []string{launcher, "-no-listener", "--"}, c.alone
					}
					r.fill(t)
					r.tryOwnSocket(t, c, layer)
				})
			}
		}
	}
}

func (r *escapeRig) tryOwnSocket(t *testing.T, c ownSocketCase, layer string) {
	own, another := filepath.Join(r.base, c.folder, "agent.sock"), filepath.Join(r.base, c.folder, "another.sock")
	l := rig.Value(net.Listen("unix", another))
	defer l.Close()
	rig.Must(t, os.Lchown(another, r.site.uid, r.site.uid))
	cmd := r.site.agent(t, r, "unix://"+own)
	cmd.Stderr = t.Output()
	agent := rig.Start(t, cmd)
	rig.Is(t, agent.Line(t), "unix://"+own, "it listens at")
	before := rig.Value(os.Lstat(own))
	// As its own user: this one, root, does not take a server of somebody else's in /tmp.
	connect := []string{r.base + "/agent", "connect", "--url", "unix://" + own, "--listen", "stdio"}
	if id := strconv.Itoa(r.site.uid); r.site.uid != os.Geteuid() {
		connect = append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"}, connect...)
	}
	r.client = rig.Value(client.Connect(rig.Context(t), client.Command(connect...)))
	defer r.client.Close()

	tries := func(path string) (ends map[string]string) {
		id := "socket-" + filepath.Base(path)
		box := sandboxOf(r.repo, c.network, strings.Split(strings.ReplaceAll(c.entries, "$B", r.base), ", ")...)
		var started protocol.StartResult
		err := r.client.Call(rig.Context(t), protocol.MethodProcessStart, protocol.StartParams{
			ProcessID: id, Argv: []string{r.base + "/escape", "socket", path}, Cwd: protocol.NewPathURI("/"), Env: map[string]string{}, Sandbox: box,
		}, &started)
		rig.Must(t, err)
		p, err := r.client.Attach(rig.Context(t), id)
		rig.Must(t, err)
		left := outcome(t, p)
		if layer == "" {
			rig.Is(t, ending(left.stdout, left.code), "exit 101\n", "%s: what is refused", left.stderr)
			return nil
		}
		if in := strings.Join(started.SandboxLayers, " "); left.code != 0 || !strings.Contains(in, layer) {
			t.Fatalf("%+v, with %s", left, in)
		}
		ends = attempts(t, left.stdout)
		rig.Is(t, len(ends) < 15, false, "only %d attempts", len(ends))
		return ends
	}
	for name, end := range tries(own) {
		rig.Is(t, end == "ok", false, "%s: ok", name)
	}
	if after := rig.Value(os.Lstat(own)); !os.SameFile(after, before) || after.Mode() != before.Mode() {
		t.Errorf("the socket was %v and is %v", before.Mode(), after.Mode())
	}
	rig.Must(t, rig.Err(r.client.Status(rig.Context(t))))
	if !c.free {
		return
	}
	for name, end := range tries(another) {
		// A path through procfs is refused, and in namespaces a mount point cannot be moved
		// with what is above it.
		if end != "ok" && !strings.Contains(name, "procfs") && !strings.Contains(name, "descriptor") && !strings.Contains(name, "directory-was-moved") {
			t.Errorf("on another socket, %s: %s", name, end)
		}
	}
}
