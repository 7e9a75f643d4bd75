package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// A user runs the programs. It sees our own programs in the folder tools.
type user struct {
	id    int
	tools string
}

// tools is the folder of our own programs, which TestMain removes.
var tools struct {
	once sync.Once
	dir  string
}

// programsOfOurs returns a folder with the agent and the launcher of test/rig/nouserns, which
// everybody can read. All tests have the same.
func programsOfOurs(t *testing.T) string {
	t.Helper()
	if *inRoot != "" {
		return rootTools
	}
	tools.once.Do(func() {
		tools.dir = rig.Value(os.MkdirTemp("", "tools"))
		rig.Must(t, install(t, tools.dir))
	})
	return tools.dir
}

// install builds our programs into a folder.
func install(t rig.T, dir string) error {
	agent, err := os.ReadFile(rig.Agent(t))
	rig.Launcher(t, dir)
	return errors.Join(err, rig.WriteProgram(dir+"/agent", agent), os.Chmod(dir, 0o755)) // MkdirTemp makes it private
}

// A way is one of those in which a program is run.
type way struct {
	name    string
	command func(base string) []string // what the program's own command line is appended to
	denies  bool                       // it has denying's policy
}

// ways returns unconfined first, and then what this machine can enforce: each backend with a
// policy that lets everything be read, and with one that denies a path and a glob. The supervised
// backend has one level for each of the two.
func (u *user) ways(t *testing.T) []way {
	t.Helper()
	agent := u.tools + "/agent"
	// Unconfined, too, the programs have no capabilities, and make no namespaces.
	launcher := []string{u.tools + "/nouserns", "--"}
	unconfined := func(string) []string { return slices.Clone(launcher) }
	ways := []way{{name: "unconfined", command: unconfined}}
	if *twice {
		ways = append(ways, way{name: "unconfined again", command: unconfined})
	}
	for _, row := range []struct {
		name, policy string
		launcher     []string
		layer        string // one of those that agent doctor names
	}{
		{"namespaces", "workspace-write", nil, "mountns"},
		{"namespaces", "deny", nil, "mountns"},
		{"supervised", "workspace-write", launcher, "supervised:W"},
		{"supervised", "deny", launcher, "supervised:S"},
	} {
		if reason := u.lacks(t, row.launcher, row.policy, row.layer); reason != "" {
			t.Run(row.name+" "+row.policy, func(t *testing.T) {
				if os.Getenv("CI") != "" || *inRoot != "" {
					t.Fatal(reason)
				}
				t.Skip(reason)
			})
			continue
		}
		denies := row.policy == "deny"
		ways = append(ways, way{row.name + " " + row.policy, func(base string) []string {
			argv := append(slices.Clone(row.launcher), agent, "sandbox")
			if denies {
				return append(argv, "--policy", denying(t, base), "--")
			}
			return append(argv, "--workspace", base+"/work", "--")
		}, denies})
	}
	return ways
}

// told is what the agent's doctor has told, by its command line and the user: it is asked once.
var (
	toldMutex sync.Mutex
	told      = map[string]found{}
)

// found is what is read of it.
type found struct {
	Policies []struct {
		Name      string
		Processes struct {
			Layers []string
			Error  string
		}
	}
}

// doctor asks the agent's doctor.
func (u *user) doctor(t *testing.T, launcher []string) found {
	t.Helper()
	argv := append(slices.Clone(launcher), u.tools+"/agent", "doctor", "--json")
	toldMutex.Lock()
	defer toldMutex.Unlock()
	asked := fmt.Sprint(u.id, argv)
	if told, known := told[asked]; known {
		return told
	}
	cmd := rig.Leash(exec.CommandContext(t.Context(), argv[0], argv[1:]...))
	cmd.Dir = "/"
	u.become(cmd)
	out, err := cmd.Output() // not everything is enforced without namespaces, which ends it with 1
	var f found
	if bad := json.Unmarshal(out, &f); bad != nil {
		t.Fatalf("agent doctor: %v, %v: %s", bad, err, out)
	}
	told[asked] = f
	return f
}

// lacks returns why the agent does not confine commands under a policy by a layer, or "".
func (u *user) lacks(t *testing.T, launcher []string, policy, layer string) string {
	t.Helper()
	for _, p := range u.doctor(t, launcher).Policies {
		if p.Name == policy && !slices.Contains(p.Processes.Layers, layer) {
			return policy + ": the layers are " + strings.Join(p.Processes.Layers, " ") + ", not " + layer + " " + p.Processes.Error
		}
	}
	return ""
}

// denying returns a file with a policy that lets the workspace be written, and denies what lies
// beside it and what fits a glob.
func denying(t *testing.T, base string) string {
	t.Helper()
	path := filepath.Join(base, "policy.json")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path
	}
	rig.Must(t, os.Mkdir(base+"/vault", 0o755))
	type object = map[string]any
	special := func(access, kind string) object {
		return object{"access": access, "path": object{"type": "special", "value": object{"kind": kind}}}
	}
	workspace := "file://" + base + "/work"
	text, err := json.Marshal(object{
		"permissions": object{"type": "managed", "network": "restricted", "file_system": object{"type": "restricted", "entries": []object{
			special("read", "root"), special("write", "project_roots"), special("write", "slash_tmp"), special("write", "tmpdir"),
			{"access": "deny", "path": object{"type": "path", "path": "file://" + base + "/vault"}},
			{"access": "deny", "path": object{"type": "glob_pattern", "pattern": base + "/work/**/*.secret"}},
		}}},
		"cwd": workspace, "workspaceRoots": []string{workspace}, "windowsSandboxLevel": "disabled",
	})
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(path, text, 0o644))
	return path
}

// TestWays: every way that is to confine does, and denies what it says.
func TestWays(t *testing.T) {
	t.Parallel()
	u := &user{id: os.Getuid(), tools: programsOfOurs(t)}
	for _, w := range u.ways(t) {
		t.Run(w.name, func(t *testing.T) {
			base := u.folder(t)
			denying(t, base)
			const script = "ls -d ../vault/. || :; : >>/etc/passwd"
			r := u.run(t, base, w, "ways", script)
			unconfined := strings.HasPrefix(w.name, "unconfined")
			if strings.Contains(r.stdout.printed, "vault") == w.denies {
				t.Errorf("what is denied: %s%s", r.stdout.printed, r.stderr.printed)
			}
			if r.state.Success() != unconfined {
				t.Errorf("writing to /etc/passwd: %v, %s", r.state, r.stderr.printed)
			}
		})
	}
}
