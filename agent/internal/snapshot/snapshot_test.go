package snapshot_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/agent/internal/snapshot"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a process as it is.
func start(spec procs.Spec) (*procs.Process, []string, func(), error) {
	p, err := procs.Start(spec)
	return p, spec.Env, func() {}, err
}

// home makes a home with startup files.
func home(t *testing.T, files map[string]string) (spec procs.Spec) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return procs.Spec{Dir: dir, Env: []string{"HOME=" + dir, "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}}
}

// shell finds a shell, or skips the test.
func shell(t *testing.T, name string) snapshot.Shell {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s: %v", name, err)
	}
	return snapshot.Shell{Name: name, Path: path}
}

// restored runs a command in a shell that restores a state, and returns what it prints.
func restored(t *testing.T, state *snapshot.State, sh snapshot.Shell, spec procs.Spec, command string, policy *procs.EnvPolicy, overlay map[string]string) string {
	t.Helper()
	argv, env, ok := state.Apply([]string{sh.Path, "-lc", command, "zero", "one"}, policy, overlay)
	if !ok {
		t.Fatal("too large")
	}
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = spec.Dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// profile is what a shell of POSIX can have in a startup file.
const profile = `echo noise; echo noise >&2
export A='it'\''s "x" $y \\'
export M='a
b' LAST=é
UNEXPORTED=1
alias greet='echo hello
echo again'
set -C
cd /; umask 077
trap 'echo bye' EXIT
( sleep 300 & ) # stays in the group of the capture
`

func TestStates(t *testing.T) {
	t.Parallel()
	const functions = `f() { echo "fn:$1" | tr : -; }
unset() { echo unset is overridden; }
printf() { echo printf is overridden; }
`
	const common = `/usr/bin/printf '%s\n' "$A|$M|$LAST|${UNEXPORTED-lost}|$(umask)|$0 $1|${AGENT_SHELL_SNAPSHOT_0-none}"
env | grep -c AGENT_SHELL
case $- in *C*) echo noclobber;; esac
`
	for _, tt := range []struct {
		name, more, command, want string
		files                     []string
	}{
		{"sh", "", "greet", "hello\nagain\n", []string{".profile"}},
		{
			"bash", functions + "g() { echo exported; }; declare -fx g\nshopt -s nullglob expand_aliases extglob\nset -u\nh() { case x in @(x|y)) echo ext;; esac; }\n",
			"f 1; greet; h; bash -c g; shopt -p nullglob; case $- in *u*) echo nounset;; esac; case $- in *p*) echo privileged;; esac; /bin/true",
			"fn-1\nhello\nagain\next\nexported\nshopt -s nullglob\nnounset\n", []string{".bash_profile"},
		},
		{
			"zsh", functions + "alias -g G='| cat'\nsetopt extendedglob\n", "f 1 G; greet; [[ -o extendedglob ]] && echo ext", "fn-1\nhello\nagain\next\n",
			[]string{".zprofile"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sh := shell(t, tt.name)
			files := map[string]string{}
			for _, name := range tt.files {
				files[name] = profile + tt.more
			}
			spec := home(t, files)
			state, err := snapshot.Capture(t.Context(), sh, spec, start)
			rig.Must(t, err)
			umask := rig.Value(exec.CommandContext(t.Context(), sh.Path, "-c", "umask").Output())
			want := "it's \"x\" $y \\\\|a\nb|é|lost|" + strings.TrimSpace(string(umask)) + "|zero one|none\n0\nnoclobber\n" + tt.want
			rig.Is(t, restored(t, state, sh, spec, common+tt.command, nil, nil), want, "the command prints")
		})
	}
}

// TestEnvironment: the captured variables pass the policy of the request, which also keeps
// back what must reach no child; the variables of the request come last.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	sh := shell(t, "bash")
	spec := home(t, map[string]string{".bash_profile": "export A=1 B=2 MY_TOKEN=3 OPENAI_API_KEY=4 X=5\n"})
	spec.Env = append(spec.Env, "not.a.variable=6")
	state, err := snapshot.Capture(t.Context(), sh, spec, start)
	rig.Must(t, err)
	command := "echo ${A-no} ${B-no} ${MY_TOKEN-no} ${OPENAI_API_KEY-no} ${X-no} $(env | grep -c not.a)"
	for _, tt := range []struct {
		policy *procs.EnvPolicy
		want   string
	}{
		{nil, "mine 2 3 no 5 1\n"},
		{&procs.EnvPolicy{Inherit: procs.InheritNone, Exclude: []string{"X*"}}, "mine 2 no no no 1\n"},
		{&procs.EnvPolicy{IncludeOnly: []string{"B", "PATH"}, Set: map[string]string{"B": "set"}}, "mine set no no no 0\n"},
	} {
		rig.Is(t, restored(t, state, sh, spec, command, tt.policy, map[string]string{"A": "mine"}), tt.want, "%+v", tt.policy)
	}
}

// TestGiven: variables that only the process of the capture was given are not kept, unless a
// startup file has changed them.
func TestGiven(t *testing.T) {
	t.Parallel()
	sh := shell(t, "bash")
	spec := home(t, map[string]string{".bash_profile": "export CHANGED=$CHANGED:more\n"})
	spec.Env = append(spec.Env, "SECRET=real", "SAME=1")
	state, err := snapshot.Capture(t.Context(), sh, spec, func(spec procs.Spec) (*procs.Process, []string, func(), error) {
		for i, record := range spec.Env {
			if record == "SECRET=real" {
				spec.Env[i] = "SECRET=placeholder"
			}
		}
		spec.Env = append(spec.Env, "PROXY=http://127.0.0.1:1", "CHANGED=given")
		return start(spec)
	})
	rig.Must(t, err)
	policy := &procs.EnvPolicy{IgnoreDefaultExcludes: true}
	rig.Is(t, restored(t, state, sh, spec, "echo ${SECRET-no} ${SAME-no} ${PROXY-no} ${CHANGED-no}", policy, nil), "real 1 no given:more\n", "the result")
}

// TestOnce: who asks while a state is captured shares it.
func TestOnce(t *testing.T) {
	t.Parallel()
	set := snapshot.Set{Budget: snapshot.NewBudget()}
	defer set.Close()
	sh := shell(t, "sh")
	spec := home(t, map[string]string{".profile": "export A=1\n"})
	var captures atomic.Int32
	waiting := make(chan struct{}, 2)
	capture := func(ctx context.Context) (*snapshot.State, error) {
		captures.Add(1)
		<-waiting
		<-waiting
		return snapshot.Capture(ctx, sh, spec, start)
	}
	states := make(chan *snapshot.State, 2)
	for range 2 {
		go func() {
			state, err := set.Get(t.Context(), "key", func() error { waiting <- struct{}{}; return nil }, capture)
			rig.Check(t, err)
			states <- state
		}()
	}
	a, b := <-states, <-states
	rig.Is(t, a != nil && a == b && captures.Load() == 1, true, "%p and %p by %d captures", a, b, captures.Load())
}
