package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestContainer compares what agent doctor says in a container with what agent sandbox
// then does or refuses there.
func TestContainer(t *testing.T) {
	t.Parallel()
	for _, kind := range triedKinds(t) {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			c := newContainers(t)
			d := c.diagnose(t, kind)
			lack := lacking[kind.means]
			var missing []string
			for _, l := range d.Layers {
				if !l.OK {
					missing = append(missing, l.Name)
				}
				if want := lack.remedy; l.Name == lack.first && !regexp.MustCompile(want).MatchString(l.Remedy) {
					t.Errorf("remedy for %s: %q, want %q in it", l.Name, l.Remedy, want)
				}
			}
			want := lack.layers
			if strings.HasPrefix(kind.name, "docker") {
				want += " pidfd" // which nothing needs there
			}
			rig.Is(t, strings.Join(missing, " "), want, "missing")
			enforceable := true
			for _, p := range d.Policies {
				want := layers[kind.means][p.Name]
				enforceable = enforceable && want != ""
				if got := anyLandlock(strings.Join(p.Processes.Layers, " ")); got != want || p.Processes.OK != (want != "") {
					t.Errorf("%s is confined by %q, want %q", p.Name, got, want)
				}
				if !p.Files.OK {
					t.Errorf("%s is refused for file requests: %s", p.Name, p.Files.Error)
				}
			}
			rig.Is(t, d.Enforceable, enforceable, "enforceable")
			c.trySandbox(t, kind, d)
		})
	}
}

// doctorReport is what the tests need of agent doctor --json.
type doctorReport struct {
	Enforceable bool
	Layers      []struct {
		Name, Error, Remedy string
		OK                  bool
	}
	Policies []struct {
		Name      string
		Processes struct {
			OK            bool
			Layers        []string
			Error, Remedy string
		}
		Files struct {
			OK    bool
			Error string
		}
	}
}

// refusal is what agent sandbox has to say about a policy; empty if that is enforced.
func (d *doctorReport) refusal(policy string) string {
	for _, p := range d.Policies {
		if p.Name == policy && !p.Processes.OK {
			return fmt.Sprintf("sandbox: this host cannot enforce the sandbox: %s; %s\n", p.Processes.Error, p.Processes.Remedy)
		}
	}
	return ""
}

// diagnose runs agent doctor, as PID 1 of the container.
func (c *containers) diagnose(t *testing.T, kind containerKind) *doctorReport {
	t.Helper()
	r := c.run(t, kind, "/agent", "doctor", "--json")
	d := new(doctorReport)
	if err := json.Unmarshal([]byte(r.stdout), d); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	rig.Is(t, r.code, map[bool]int{true: 0, false: 1}[d.Enforceable], "agent doctor: exit code")
	return d
}

// policyFile is a policy as agent sandbox --policy takes it, for the workspace /repo.
func policyFile(network string, entries ...string) string {
	return fmt.Sprintf(`{"permissions":{"type":"managed","network":%q,"file_system":{"type":"restricted","entries":[%s]}},`+
		`"cwd":"file:///repo","workspaceRoots":["file:///repo"],"windowsSandboxLevel":"disabled"}`, network, strings.Join(entries, ","))
}

// policyIn is a policy of policyFile for another workspace.
func policyIn(dir, policy string) string { return strings.ReplaceAll(policy, "/repo", dir) }

// The entries of the policies here.
const (
	readRoot     = `{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}`
	readMinimal  = `{"path":{"type":"special","value":{"kind":"minimal"}},"access":"read"}`
	readRepo     = `{"path":{"type":"path","path":"file:///repo"},"access":"read"}`
	writeProject = `{"path":{"type":"special","value":{"kind":"project_roots"}},"access":"write"}`
	denySecret   = `{"path":{"type":"path","path":"file:///repo/secret"},"access":"deny"}`
	denyGlob     = `{"path":{"type":"glob_pattern","pattern":"/repo/**/*.env"},"access":"deny"}`
)

var (
	writePolicy = policyFile("restricted", readRoot, writeProject, denySecret)
	viewPolicy  = policyFile("restricted", readMinimal, readRepo)
	globPolicy  = policyFile("restricted", readRoot, writeProject, denyGlob)
	onlyPolicy  = `{"permissions":{"type":"external","network":"restricted"},"windowsSandboxLevel":"disabled"}`
)

// tries are commands under every policy that the doctor judges, with patterns for what they say.
// They leave nothing behind.
var tries = []struct {
	policy, flags, script string
	want                  []string
}{
	{"read-only", "", `cat file; touch /tmp/x; echo y >>file; mkdir new; cat /proc/1/environ; kill -9 1`, []string{
		`(?m)^content$`, `touch: /tmp/x: `, `create file: `, `new': `, `/environ'?: (Permission denied|No such file)`,
	}},
	{"workspace-write", "--workspace /repo", `echo y >>file; tail -1 file; mkdir .git; mkdir sub && mv sub sub2 && rmdir sub2 && echo moved; ln -s file link; ` +
		`cat link; rm link; touch /home/x; echo content >file`, []string{
		`(?m)^y$`, `\.git': (File exists|Read-only file system)`, `/home/x: Read-only file system`, `(?m)^moved$`, `(?m)^content$`,
	}},
	{"workspace-write-network", "--workspace /repo --network on", `touch net && rm net; nc -w 1 127.0.0.1 1; touch /home/x`, []string{
		`nc: .*Connection refused`, `/home/x: Read-only file system`,
	}},
	{"view-only", "--policy /repo/view.json", `cat file; cat /home/hidden; ls -d /home; echo z >z`, []string{
		`(?m)^content$`, `hidden'?: `, `create z: `,
	}},
	{"deny", "--policy /repo/deny.json", `cat secret; cp secret other; ls secret; echo y >new && rm new && echo made`, []string{
		`can't open 'secret': Permission denied`, `(?m)^made$`,
	}},
	{"deny", "--policy /repo/glob.json", `cat a.env; cat dir/b.env; cat dir/file; mv a.env shown; ln a.env shown; cat secret`, []string{
		`can't open 'a.env': Permission denied`, `can't open 'dir/b.env': Permission denied`, `(?m)^content$`, `(?m)^secret$`,
	}},
	{"network-only", "--policy /repo/only.json", `cat file; touch made && rm made && echo made; nc -w 1 127.0.0.1 1`, []string{
		`(?m)^content$`, `(?m)^made$`, `nc: socket.*: Operation not permitted`,
	}},
}

// trySandbox runs agent sandbox under the policies that the doctor has judged.
func (c *containers) trySandbox(t *testing.T, kind containerKind, d *doctorReport) {
	t.Helper()
	rig.Must(t, os.Mkdir(filepath.Join(c.repo, "dir"), 0o755))
	for name, content := range map[string]string{
		"file": "content\n", "secret": "secret\n", "a.env": "hidden\n", "dir/b.env": "hidden\n", "dir/file": "content\n",
		"view.json": viewPolicy, "deny.json": writePolicy, "glob.json": globPolicy, "only.json": onlyPolicy,
	} {
		write(t, filepath.Join(c.repo, name), content)
	}
	// What each leaves is said between the lines of the others.
	const left, ended = "== left ", "== ended "
	var script strings.Builder
	script.WriteString("cd /repo; ")
	for _, try := range tries {
		fmt.Fprintf(&script, "/agent sandbox %s -- sh -c %q 2>&1; echo %q$?; echo %q$(find . | sort) $(cat file dir/file secret)\n", try.flags, try.script+"; echo end", ended, left)
	}
	r := c.run(t, kind, "/bin/sh", "-c", script.String())
	const kept = ". ./a.env ./deny.json ./dir ./dir/b.env ./dir/file ./file ./glob.json ./only.json ./secret ./view.json content content secret"
	rest := r.stdout
	for _, try := range tries {
		said, after, _ := strings.Cut(rest, ended)
		code, after, _ := strings.Cut(after, "\n"+left)
		was, after, _ := strings.Cut(after, "\n")
		rest = after
		name := fmt.Sprintf("%s (%s)", try.policy, try.flags)
		rig.Is(t, was, kept, "%s: left in the volume", name)
		if refusal := d.refusal(try.policy); refusal != "" {
			if lack := lacking[kind.means]; try.policy != "network-only" && !strings.Contains(refusal, lack.first+" is missing: ") || !strings.Contains(refusal, lack.remedy) && try.policy != "network-only" {
				t.Errorf("%s: %q, want the layer %s, and %q as a remedy", name, refusal, lack.first, lack.remedy)
			}
			rig.Is(t, said+code, "agent: "+refusal+"101", "%s: it says", name)
			continue
		}
		for _, pattern := range append(try.want, `(?m)^end$`) {
			matches(t, said, pattern)
		}
		rig.Is(t, code != "0" || strings.Contains(said, "hidden\n"), false, "%s: exit code %s, %q", name, code, said)
	}
}

// TestContainerFiles: in containers, file requests keep every policy. Commands
// without a sandbox run; those with one keep the policy too, or are refused.
func TestContainerFiles(t *testing.T) {
	t.Parallel()
	for _, kind := range triedKinds(t) {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			c := newContainers(t)
			rig.Must(t, os.MkdirAll(filepath.Join(c.repo, ".git"), 0o755))
			write(t, filepath.Join(c.repo, "file"), "content")
			write(t, filepath.Join(c.repo, "secret"), "secret")
			write(t, filepath.Join(c.repo, ".git", "config"), "content")
			a := c.serve(t, kind)
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
				has(t, a.ask(t, request), ask.want)
			}
			rig.Is(t, a.runs(t, "", "cat new; cat secret; id -u"), fmt.Sprintf("newsecret%d\n", kind.uid), "a command without a sandbox says")
			want := "new"
			if layers[kind.means]["deny"] == "" {
				want = lacking[kind.means].remedy
			}
			got := a.runs(t, writePolicy, "cat new; echo x >.git/config; cat secret")
			has(t, got, want)
			lacks(t, got, "secret\n")
			rig.Is(t, textOf(os.ReadFile(filepath.Join(c.repo, ".git", "config"))), "content", ".git/config")
			a.stdin.Close()
			rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
		})
	}
}

// serve runs the agent on stdio in a new container and initializes it.
func (c *containers) serve(t *testing.T, kind containerKind) *running {
	t.Helper()
	a := connect(t, c.command(t, kind, nil, "/agent", "--listen", "stdio"))
	a.initialize(t)
	return a
}

// runs has the agent run a script, under a policy if there is one, and returns all that it wrote.
func (a *running) runs(t *testing.T, policy, script string) string {
	t.Helper()
	return a.output(t, a.startScript(t, policy, script))
}

// startScript has the agent start a script, and returns the id of the process.
func (a *running) startScript(t *testing.T, policy, script string) (id string) {
	t.Helper()
	id = rand.Text()
	sandbox := ""
	if policy != "" {
		sandbox = `,"sandbox":` + policy
	}
	answer := a.ask(t, fmt.Sprintf(`{"id":90,"method":"process/start","params":{"processId":%q,"argv":["/bin/sh","-c",%q],"cwd":"file:///repo",`+
		`"env":{"PATH":"/bin"},"tty":false,"pipeStdin":false,"arg0":null%s}}`, id, script, sandbox))
	for !strings.Contains(answer, `"id":90`) { // another process has something to say
		answer = a.line(t)
	}
	if strings.Contains(answer, "linuxSeccomp") != (policy != "") {
		t.Fatal(answer)
	}
	return id
}

// output returns all that a process writes until its end.
func (a *running) output(t *testing.T, id string) string {
	t.Helper()
	var said strings.Builder
	for {
		var note struct {
			Method string
			Params struct{ ProcessID, Chunk string }
		}
		rig.Must(t, json.Unmarshal([]byte(a.line(t)), &note))
		switch {
		case note.Params.ProcessID != id:
		case note.Method == "process/output":
			chunk, err := base64.StdEncoding.DecodeString(note.Params.Chunk)
			rig.Must(t, err)
			said.Write(chunk)
		case note.Method == "process/closed":
			return said.String()
		}
	}
}
