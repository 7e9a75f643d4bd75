package confine

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// rulesOf returns a policy of rules.
func rulesOf(t testing.TB, text string) *execpolicy.Policy {
	t.Helper()
	rules := rig.Value(execpolicy.ParseClient([]execpolicy.ClientFile{{Name: "test", Text: text}}))
	return &execpolicy.Policy{Rules: rules}
}

// judgedKinds are the ways to confine a command whose programs are judged; a nil policy is none.
func judgedKinds(t *testing.T) map[string]confined {
	kinds := map[string]confined{
		"watched":    {},
		"namespaces": {policy: readOnly(t), backend: full()},
		"online":     {policy: policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}, Network: sandbox.NetworkEnabled}), backend: full()},
		"no pid ns":  {policy: readOnly(t), backend: withoutPIDNS()},
		"landlock":   {policy: readOnly(t), backend: landlockOnly()},
		"net only":   {policy: &sandbox.Policy{}, backend: landlockOnly()},
	}
	for _, level := range []sandbox.Level{sandbox.LevelWrites, sandbox.LevelReads, sandbox.LevelMetadata} {
		kinds[fmt.Sprintf("supervised %v", level)] = confined{policy: readOnly(t), backend: sandbox.Backend{
			Layers: sandbox.LayersOf(sandbox.Supervised, sandbox.Seccomp), Landlock: enforce.LandlockABI(), Level: level,
		}}
	}
	for name, c := range maps.Clone(kinds) {
		if c.policy != nil {
			c.limits = Limits{Processes: 1 << 20, AddressSpace: 1 << 40, CPUSeconds: 3600}
			kinds[name+", limited"] = c
		}
	}
	return kinds
}

// judged starts a command whose programs are judged; answer answers the questions, of which it
// gets the commands.
func (c confined) judged(t testing.TB, rules *execpolicy.Policy, answer func(judge.Question) bool) *run {
	t.Helper()
	j := rig.Value(NewJudged(rules))
	var held *Held
	if c.policy == nil {
		held = WatchOnly(j)
	} else {
		holdMissing(t, c.policy)
		held = &Held{Layers: []string{}, command: Command{Policy: c.policy, Backend: c.backend, Limits: c.limits, Argv0: os.Args[0]}}
		held.Judge(j)
	}
	c.Dir, c.Env = "/", []string{"PATH=/usr/bin:/bin"}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		j.Questions().Hang()
		serving.Wait()
		j.Close()
	})
	serving.Go(func() {
		j.Questions().Serve(func(e judge.Event) {
			if e.Kind != judge.Refused {
				j.Questions().Answer(e.ID, answer != nil && answer(e.Question))
			}
		})
	})
	return startHeld(t, held, c.Spec)
}

// TestJudged: rules hold for whatever is executed below a command, in every sandbox and without
// one, and whoever is asked about the rest is asked about each.
func TestJudged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	rig.Must(t, rig.WriteProgram(script, []byte("#!/bin/cat\n")), os.Symlink("/bin/cat", filepath.Join(dir, "innocent")))
	rig.Must(t, os.Chmod(dir, 0o755))
	rules := `prefix_rule(pattern=["cat"], decision="forbidden")
prefix_rule(pattern=["id"], decision="prompt")
prefix_rule(pattern=["uname"], decision="prompt")
`
	for name, c := range judgedKinds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := `true && echo one
cat /dev/null; echo cat=$?
/bin/cat /dev/null; echo path=$?
` + dir + `/innocent /dev/null; echo link=$?
` + script + `; echo script=$?
env cat /dev/null; echo env=$?
(exec cat /dev/null); echo exec=$?
id >/dev/null; echo id=$?
uname >/dev/null; echo uname=$?
echo cpu=$(ulimit -t)
sh -c 'exit 3'; echo sh=$?
no-such-program; echo none=$?
exit 7`
			c.Argv = []string{"sh", "-c", command}
			var mu sync.Mutex
			var asked []string
			out, code := c.judged(t, rulesOf(t, rules), func(q judge.Question) bool {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, strings.Join(q.Argv, " "))
				return len(asked) == 1
			}).end()
			cpu := "cpu=unlimited"
			if c.limits != (Limits{}) {
				cpu = "cpu=3600"
			}
			for _, want := range []string{cpu, "one", "cat=126", "path=126", "link=126", "script=126", "env=126", "exec=126", "id=0", "uname=126", "sh=3", "none=127"} {
				rig.Is(t, strings.Contains(out, want+"\n"), true, "%s is there", want)
			}
			mu.Lock()
			defer mu.Unlock()
			rig.Is(t, fmt.Sprint(code, asked), "7 [id uname]", "the code, and who was asked about")
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// rightAndWrong returns a folder with two programs, of which tests forbid the wrong one.
func rightAndWrong(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	rig.Must(t, os.Chmod(dir, 0o755))
	for name, from := range map[string]string{"right": "/bin/true", "wrong": "/bin/echo"} {
		program := rig.Value(os.ReadFile(from))
		rig.Must(t, rig.WriteProgram(filepath.Join(dir, name), program))
	}
	return dir
}

// TestJudgedRace: a name that leads to one program or to another never has the one run that is
// forbidden.
func TestJudgedRace(t *testing.T) {
	t.Parallel()
	dir := rightAndWrong(t)
	link := filepath.Join(dir, "link")
	done := make(chan struct{})
	var flipping sync.WaitGroup
	t.Cleanup(flipping.Wait)
	t.Cleanup(func() { close(done) })
	turn := func(name string) {
		rig.Check(t, os.Symlink(name, link+".new"), os.Rename(link+".new", link))
	}
	turn("right")
	flipping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				turn([]string{"wrong", "right"}[i%2])
			}
		}
	})
	c := confined{}
	c.Argv = []string{"sh", "-c", `n=0 fine=; while [ $n -lt 300 ] || [ -z "$fine" ]; do ` + link + ` ran-wrong 2>/dev/null && fine=fine; n=$((n+1)); done; echo $fine`}
	out, _ := c.judged(t, rulesOf(t, `prefix_rule(pattern=["wrong"], decision="forbidden")`), nil).end()
	if strings.Contains(out, "ran-wrong") || !strings.Contains(out, "fine") {
		t.Errorf("output %q", out)
	}
}

// BenchmarkJudged runs a shell that executes a program that many times: without an init, and with
// its programs judged by rules.
func BenchmarkJudged(b *testing.B) {
	loop := []string{"sh", "-c", `n=0; while [ $n -lt $1 ]; do /bin/true; n=$((n+1)); done`, "sh", strconv.Itoa(b.N)}
	b.Run("bare", func(b *testing.B) {
		loop[4] = strconv.Itoa(b.N)
		rig.Must(b, exec.Command(loop[0], loop[1:]...).Run())
	})
	for name, c := range map[string]confined{"watched": {}, "namespaces": {policy: readOnly(b), backend: full()}} {
		b.Run(name, func(b *testing.B) {
			loop[4] = strconv.Itoa(b.N)
			c.Argv = loop
			wantEnd(b, "the loop", c.judged(b, rulesOf(b, `prefix_rule(pattern=["cat"], decision="forbidden")`), nil), "", 0)
		})
	}
}

// TestJudgedMounts: a program is judged by a path of this process, not by one that the command has
// given it in a mount namespace of its own.
func TestJudgedMounts(t *testing.T) {
	t.Parallel()
	dir := rightAndWrong(t)
	c := confined{}
	c.Argv = []string{"unshare", "-rm", "sh", "-c", "cd " + dir + "; mount --bind wrong right && echo bound; ./right ran-wrong; true"}
	out, _ := c.judged(t, rulesOf(t, `prefix_rule(pattern=["wrong"], decision="forbidden")`), nil).end()
	if !strings.Contains(out, "bound") {
		t.Skipf("no mount namespaces: %s", out)
	}
	rig.Is(t, strings.Contains(out, "ran-wrong"), false, "output %q", out)
}
