package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// ownSocketCase is a place for the socket of an agent, and a policy.
type ownSocketCase struct {
	name    string
	folder  string   // of the socket, below the rig's
	entries []string // access and path, below the rig's unless it is absolute
	network string
	free    bool // another socket in that place can be reached, moved and replaced
	layers  map[string]string
}

// ownSocketCases are the policies under which a command could reach a socket, and those of each
// level and backend. layers says what has to be in force by namespaces, supervised, and by Landlock
// alone; "" means that the policy is refused.
var ownSocketCases = []ownSocketCase{
	{
		"in the workspace", "repo", []string{"read /", "write repo"}, protocol.NetworkEnabled, true,
		map[string]string{"namespaces": "mountns", "supervised": "supervised:S", "metadata": "supervised:R"},
	},
	{
		"in a folder of the workspace", "repo/dir", []string{"read /", "write repo", "deny repo/vault"}, protocol.NetworkEnabled, true,
		map[string]string{"namespaces": "mountns", "supervised": "supervised:S", "metadata": "supervised:R"},
	},
	{
		"in the workspace, without a network", "repo", []string{"read /", "write repo"}, protocol.NetworkRestricted, false,
		map[string]string{"namespaces": "mountns", "supervised": "supervised:S", "metadata": "supervised:R"},
	},
	{
		"outside", "out", []string{"read /", "write repo"}, protocol.NetworkEnabled, false,
		map[string]string{"namespaces": "mountns", "supervised": "supervised:W", "metadata": "supervised:W"},
	},
	{
		"where nothing can be written", "out", []string{"read /"}, protocol.NetworkRestricted, false,
		map[string]string{"namespaces": "mountns", "supervised": "supervised:W", "metadata": "supervised:W", "landlock": "landlock:"},
	},
	{
		"in a view that has it", "out", []string{"read out", "read escape"}, protocol.NetworkRestricted, false,
		map[string]string{"namespaces": "mountns", "supervised": "supervised:S", "metadata": "supervised:R", "landlock": "landlock:"},
	},
}

// TestOwnSocket: what is confined neither connects to the UNIX socket of its agent nor takes or
// moves its name, with every backend and in every level, wherever the socket lies. Beside it the
// same succeeds on another socket, where the policy lets it.
func TestOwnSocket(t *testing.T) {
	tools := rig.Value(os.MkdirTemp("", "tools"))
	t.Cleanup(func() { _ = os.RemoveAll(tools) })
	if err := os.Chmod(tools, 0o755); err != nil { // users of these tests execute it
		t.Fatal(err)
	}
	launcher := rig.Launcher(t, tools)
	users := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		users = append(users, nobody)
	}
	for i, uid := range users {
		for j, backend := range []struct {
			name    string
			through []string
			flags   []string
		}{
			{name: "namespaces"},
			{name: "supervised", through: []string{launcher, "--"}},
			{name: "metadata", through: []string{launcher, "--"}, flags: []string{metadataVisible}},
			{name: "landlock", through: []string{launcher, "-no-listener", "--"}},
		} {
			for k, c := range ownSocketCases {
				if !inTurn(2*i+j+k, 4) {
					continue
				}
				t.Run(fmt.Sprintf("uid %d/%s/%s", uid, backend.name, c.name), func(t *testing.T) {
					t.Parallel()
					base := rig.Value(os.MkdirTemp("", "escape"))
					t.Cleanup(func() { _ = os.RemoveAll(base) })
					r := &escapeRig{
						site: escapeSite{uid: uid, through: backend.through, flags: backend.flags},
						base: base, repo: base + "/repo", out: base + "/out", secret: filepath.Base(base),
					}
					r.fill(t)
					r.tryOwnSocket(t, c, c.layers[backend.name])
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
	argv := slices.Concat(r.site.through, []string{r.base + "/agent", "--listen", "unix://" + own, "--log-level", "warn"}, r.site.flags)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stderr = []string{"PATH=/usr/bin:/bin"}, "/", t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(r.site.uid), Gid: uint32(r.site.uid), NoSetGroups: os.Geteuid() != 0}}
	agent := rig.Start(t, cmd)
	if url := agent.Line(t); url != "unix://"+own {
		t.Fatalf("it listens at %s", url)
	}
	before := lstat(t, own)
	// As its own user: this one, root, does not take a server of somebody else's in /tmp.
	connect := []string{r.base + "/agent", "connect", "--url", "unix://" + own, "--listen", "stdio"}
	if id := strconv.Itoa(r.site.uid); r.site.uid != os.Geteuid() {
		connect = append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"}, connect...)
	}
	r.client = rig.Value(client.Connect(rig.Context(t), client.Command(connect...)))
	defer r.client.Close()

	tries := func(path string) (ends map[string]string) {
		id := "socket-" + filepath.Base(path)
		var started protocol.StartResult
		err := r.client.Call(rig.Context(t), protocol.MethodProcessStart, protocol.StartParams{
			ProcessID: id, Argv: []string{r.base + "/escape", "socket", path}, Cwd: protocol.NewPathURI("/"), Env: map[string]string{}, Sandbox: r.custom(c),
		}, &started)
		rig.Must(t, err)
		p, err := r.client.Attach(rig.Context(t), id)
		rig.Must(t, err)
		code, stdout, stderr := outcome(t, p)
		if layer == "" {
			if code != 101 || stdout != "" {
				t.Errorf("not refused: exit code %d, %s%s", code, stdout, stderr)
			}
			return nil
		}
		if in := strings.Join(started.SandboxLayers, " "); code != 0 || !strings.Contains(in, layer) {
			t.Fatalf("exit code %d, with %s\n%s%s", code, in, stdout, stderr)
		}
		ends = map[string]string{}
		for line := range strings.Lines(stdout) {
			var got struct {
				N, Errno string
				OK       bool
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if ends[got.N] = got.Errno; got.OK {
				ends[got.N] = "ok"
			}
		}
		if len(ends) < 15 {
			t.Errorf("only %d attempts", len(ends))
		}
		return ends
	}
	for name, end := range tries(own) {
		if end == "ok" {
			t.Errorf("%s: ok", name)
		}
	}
	if after := lstat(t, own); !os.SameFile(after, before) || after.Mode() != before.Mode() {
		t.Errorf("the socket was %v and is %v", before.Mode(), after.Mode())
	}
	rig.Is(t, rig.Err(r.client.Status(rig.Context(t))), nil, "the agent")
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

// custom is the policy of a case.
func (r *escapeRig) custom(c ownSocketCase) *protocol.Sandbox {
	sandbox := r.policy("view")
	sandbox.Permissions.Network = c.network
	sandbox.Permissions.FileSystem.Entries = nil
	for _, text := range c.entries {
		access, path, _ := strings.Cut(text, " ")
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.base, path)
		}
		uri := protocol.NewPathURI(path)
		sandbox.Permissions.FileSystem.Entries = append(sandbox.Permissions.FileSystem.Entries,
			protocol.SandboxEntry{Access: access, Path: protocol.SandboxPath{Type: "path", Path: &uri}})
	}
	return sandbox
}

func lstat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info := rig.Value(os.Lstat(path))
	return info
}
