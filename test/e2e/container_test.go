package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestContainer compares what agent doctor says in each kind of container with what agent sandbox
// then does or refuses there.
func TestContainer(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	hardened, noUserNS, unmasked, plain := containerProfiles(t)
	const all = "read-only workspace-write workspace-write-network deny view-only network-only"
	for _, tt := range []struct {
		profile  containerProfile
		missing  string // layers
		remedy   string // of the first
		enforced string // policies, for processes
	}{
		{hardened, "procfs", "unmask=ALL", all},
		{withoutLandlock(t, hardened), "procfs supervised landlock", "", "read-only workspace-write deny view-only"},
		{noUserNS, "userns mountns pidns procfs ipcns netns", "seccomp profile that allows unshare", "read-only view-only network-only"},
		{unmasked, "", "", all},
		{plain, "procfs", "systempaths=unconfined", all},
	} {
		t.Run(tt.profile.name, func(t *testing.T) {
			d := c.diagnose(t, tt.profile)
			var missing, enforced []string
			for _, l := range d.Layers {
				if !l.OK {
					missing = append(missing, l.Name)
					if !strings.Contains(l.Remedy, tt.remedy) {
						t.Errorf("remedy for %s: %q, want %q in it", l.Name, l.Remedy, tt.remedy)
					}
				}
			}
			for _, p := range d.Policies {
				if p.Processes.OK {
					enforced = append(enforced, p.Name)
				}
				if !p.Files.OK {
					t.Errorf("%s is refused for file requests: %s", p.Name, p.Files.Error)
				}
			}
			if got := strings.Join(missing, " "); got != tt.missing {
				t.Errorf("missing %q, want %q", got, tt.missing)
			}
			if got := strings.Join(enforced, " "); got != tt.enforced {
				t.Errorf("enforced %q, want %q", got, tt.enforced)
			}
			if want := tt.enforced == all; d.Enforceable != want {
				t.Errorf("enforceable: %v, want %v", d.Enforceable, want)
			}
			c.trySandbox(t, tt.profile, d)
		})
	}
}

// doctorReport is what the tests need of agent doctor --json.
type doctorReport struct {
	Enforceable bool
	Layers      []struct {
		Name, Remedy string
		OK           bool
	}
	Policies []struct {
		Name             string
		Processes, Files struct {
			OK    bool
			Error string
		}
	}
}

// enforces tells whether a policy is enforced for processes.
func (d *doctorReport) enforces(name string) bool {
	for _, p := range d.Policies {
		if p.Name == name {
			return p.Processes.OK
		}
	}
	return false
}

// has tells whether a layer works.
func (d *doctorReport) has(name string) bool {
	for _, l := range d.Layers {
		if l.Name == name {
			return l.OK
		}
	}
	return false
}

// diagnose runs agent doctor, as PID 1 of the container.
func (c *containers) diagnose(t *testing.T, profile containerProfile) *doctorReport {
	t.Helper()
	r := c.run(t, profile, "/agent", "doctor", "--json")
	d := new(doctorReport)
	if err := json.Unmarshal([]byte(r.stdout), d); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if want := map[bool]int{true: 0, false: 1}[d.Enforceable]; r.code != want {
		t.Errorf("agent doctor: exit code %d, want %d", r.code, want)
	}
	return d
}

const viewPolicy = `{"permissions":{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":[` +
	`{"path":{"type":"special","value":{"kind":"minimal"}},"access":"read"},` +
	`{"path":{"type":"path","path":"file:///repo"},"access":"read"}]}},"windowsSandboxLevel":"disabled"}`

// trySandbox runs agent sandbox under the policies that the doctor has judged.
func (c *containers) trySandbox(t *testing.T, profile containerProfile, d *doctorReport) {
	t.Helper()
	refusedKill := `kill pid 1: `
	if !d.has("landlock") {
		refusedKill = `` // process 1 is that of the command's own namespace, which ignores the signal
	}
	for _, tt := range []struct {
		policy, flags, script string
		want                  []string // patterns for the output
	}{
		{"read-only", "", `cat /repo/file; touch /tmp/x; echo y >>/repo/file; mkdir /repo/new; cat /proc/1/environ; kill -9 1; echo end`, []string{
			`(?m)^content$`, `touch: /tmp/x: `, `create /repo/file: `, `new': `, `/proc/1/environ'?: `, refusedKill, `(?m)^end$`,
		}},
		{"workspace-write", "--workspace /repo", `echo y >>/repo/file; tail -1 /repo/file; mkdir /repo/.git; touch /home/x; echo end`, []string{
			`(?m)^y$`, `\.git': File exists`, `/home/x: Read-only file system`, `(?m)^end$`,
		}},
		{"workspace-write-network", "--workspace /repo --network on", `touch /repo/net && rm /repo/net && echo end`, []string{`(?m)^end$`}},
		{"view-only", "--policy /repo/view.json", `cat /repo/file; cat /home/hidden; echo z >/repo/z; echo end`, []string{
			`(?m)^content$`, `hidden'?: `, `create /repo/z: `, `(?m)^end$`,
		}},
	} {
		write(t, filepath.Join(c.repo, "file"), "content\n")
		write(t, filepath.Join(c.repo, "view.json"), viewPolicy)
		r := c.run(t, profile, "/bin/sh", "-c", fmt.Sprintf("cd /repo; exec /agent sandbox %s -- sh -c %q 2>&1", tt.flags, tt.script))
		if !d.enforces(tt.policy) {
			if r.code != 101 || !regexp.MustCompile(`sandbox: .*(userns|landlock) is missing: .*seccomp profile`).MatchString(r.stdout) {
				t.Errorf("%s: not refused as it should be: %+v", tt.policy, r)
			}
			continue
		}
		for _, pattern := range tt.want {
			if !regexp.MustCompile(pattern).MatchString(r.stdout) {
				t.Errorf("%s: no %q in %+v", tt.policy, pattern, r)
			}
		}
		left, err := os.ReadDir(c.repo)
		if err != nil || len(left) != 2 {
			t.Errorf("%s: left in the volume: %v, %v", tt.policy, left, err)
		}
	}
}

// TestContainerFiles: in a container that forbids user namespaces, file requests keep every
// policy. Processes keep it too, or are refused.
func TestContainerFiles(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	hardened, noUserNS, _, _ := containerProfiles(t)
	for _, tt := range []struct {
		profile containerProfile
		process string // what a process under workspace-write says
	}{
		{hardened, "new"},
		{noUserNS, "seccomp profile that allows unshare"},
	} {
		t.Run(tt.profile.name, func(t *testing.T) {
			if err := os.MkdirAll(filepath.Join(c.repo, ".git"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(c.repo, "file"), "content")
			write(t, filepath.Join(c.repo, "secret"), "secret")
			write(t, filepath.Join(c.repo, ".git", "config"), "content")
			a := c.serve(t, tt.profile)
			for i, ask := range []struct {
				method, path, members, want string
			}{
				{"fs/readFile", "/repo/file", "", base64.StdEncoding.EncodeToString([]byte("content"))},
				{"fs/writeFile", "/repo/new", `,"dataBase64":"bmV3"`, `"result":{}`},
				{"fs/writeFile", "/repo/.git/config", `,"dataBase64":"bmV3"`, "Read-only file system"},
				{"fs/createDirectory", "/repo/.codex", `,"recursive":false`, "Read-only file system"},
				{"fs/writeFile", "/home/x", `,"dataBase64":"bmV3"`, "Read-only file system"},
				{"fs/readFile", "/repo/secret", "", "Permission denied"},
				{"fs/readFile", "/proc/self/environ", "", "Permission denied"},
			} {
				request := fmt.Sprintf(`{"id":%d,"method":%q,"params":{"path":"file://%s"%s,"sandbox":%s}}`, i+2, ask.method, ask.path, ask.members, writePolicy)
				if answer := a.ask(t, request); !strings.Contains(answer, ask.want) {
					t.Errorf("%s %s: %s, want %q", ask.method, ask.path, answer, ask.want)
				}
			}
			if got := a.sandboxed(t, "cat new; echo x >.git/config"); !strings.Contains(got, tt.process) {
				t.Errorf("a process says %q, want %q", got, tt.process)
			}
			if raw, err := os.ReadFile(filepath.Join(c.repo, ".git", "config")); err != nil || string(raw) != "content" {
				t.Errorf(".git/config holds %q, %v", raw, err)
			}
			a.stdin.Close()
			if got := a.ended(t); got != "exit status 0" {
				t.Errorf("the agent ends with %s", got)
			}
		})
	}
}

const writePolicy = `{"permissions":{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":[` +
	`{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},` +
	`{"path":{"type":"special","value":{"kind":"project_roots"}},"access":"write"},` +
	`{"path":{"type":"path","path":"file:///repo/secret"},"access":"deny"}]}},` +
	`"cwd":"file:///repo","workspaceRoots":["file:///repo"],"windowsSandboxLevel":"disabled"}`

// serve runs the agent on stdio in a new container and initializes it.
func (c *containers) serve(t *testing.T, profile containerProfile) *running {
	t.Helper()
	a := connect(t, c.command(t, profile, nil, "/agent", "--listen", "stdio"))
	if answer := a.ask(t, `{"id":1,"method":"initialize","params":{"clientName":"e2e"}}`); !strings.Contains(answer, "sessionId") {
		t.Fatal(answer)
	}
	if _, err := io.WriteString(a.stdin, `{"method":"initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	return a
}

// sandboxed runs a script under writePolicy and returns all that it wrote.
func (a *running) sandboxed(t *testing.T, script string) string {
	t.Helper()
	answer := a.ask(t, fmt.Sprintf(`{"id":90,"method":"process/start","params":{"processId":"p","argv":["/bin/sh","-c",%q],"cwd":"file:///repo",`+
		`"env":{"PATH":"/bin"},"tty":false,"pipeStdin":false,"arg0":null,"sandbox":%s}}`, script, writePolicy))
	if !strings.Contains(answer, "linuxSeccomp") {
		t.Fatal(answer)
	}
	var said strings.Builder
	for {
		var note struct {
			Method string
			Params struct{ Chunk string }
		}
		if err := json.Unmarshal([]byte(a.line(t)), &note); err != nil {
			t.Fatal(err)
		}
		switch note.Method {
		case "process/output":
			chunk, err := base64.StdEncoding.DecodeString(note.Params.Chunk)
			if err != nil {
				t.Fatal(err)
			}
			said.Write(chunk)
		case "process/closed":
			return said.String()
		}
	}
}
