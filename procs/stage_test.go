package procs

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// leashEnds returns our end of a leash and that of a stage.
func leashEnds(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ends := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	rig.Must(t, unix.SetNonblock(ends[0], true))
	return os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
}

// staged returns a spec whose stage is a shell that runs script, with its end
// of a leash as descriptor 3.
func staged(t *testing.T, script string, grace time.Duration) (spec Spec, stage *Stage) {
	t.Helper()
	ours, theirs := leashEnds(t)
	stage = &Stage{
		Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Files: []*os.File{theirs}, Leash: ours, Grace: grace,
	}
	return Spec{
		Argv: []string{"/no/such/program"}, Dir: "/no/such/dir",
		Stage: func(Program) (*Stage, error) { return stage, nil },
	}, stage
}

// TestStageProgram: the stage is given the command as it was checked, and not
// looked for.
func TestStageProgram(t *testing.T) {
	t.Parallel()
	arg0, calls := "zero", 0
	var got Program
	p, output := run(t, Spec{
		Argv: []string{"no-such-program", "a"}, Arg0: &arg0, Dir: "/no/such/dir", Env: []string{"A=b"},
		TTY: true, LoginShell: "/bin/login-shell",
		Stage: func(program Program) (*Stage, error) {
			calls, got = calls+1, program
			return &Stage{Path: "/bin/sh", Argv: []string{"sh", "-c", "pwd; env; tty; : < /dev/tty"}, Env: []string{"STAGE=1"}}, nil
		},
	})
	if calls != 1 || !slices.Equal(got.Argv, []string{"no-such-program", "a"}) || got.Arg0 != &arg0 ||
		!slices.Equal(got.Env, []string{"A=b", "SHELL=/bin/login-shell"}) || got.Dir != "/no/such/dir" || !got.TTY {
		t.Errorf("%d calls, the last with %+v", calls, got)
	}
	rig.Same(t, "the command is shown as", got.Argv, p.Argv())
	out := output.text(PTY)
	rig.Is(t, strings.Contains(out, "STAGE=1") && strings.Contains(out, "/dev/pts/"), true, "the stage saw its terminal: %q", out)
	rig.Is(t, strings.Contains(out, "A=b"), false, "the stage saw the environment of the command: %q", out)
	if !strings.Contains(out, "No such device") { // ENXIO
		t.Errorf("the stage has a controlling terminal: %q", out)
	}
}

func TestStageErrors(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, tt := range map[string]struct {
		spec Spec
		want error
	}{
		"by the stage": {Spec{Argv: []string{"true"}, Dir: "/", Stage: func(Program) (*Stage, error) { return nil, refused }}, refused},
		"no stage": {Spec{
			Argv: []string{"true"}, Dir: "/",
			Stage: func(Program) (*Stage, error) { return &Stage{Path: "/no/such/stage", Argv: []string{"x"}}, nil },
		}, syscall.ENOENT},
		"before the stage": {Spec{
			Argv: []string{"a\x00b"}, Dir: "/",
			Stage: func(Program) (*Stage, error) { t.Error("called for a command that is none"); return nil, refused },
		}, ErrNUL},
	} {
		if p, err := Start(tt.spec); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
			if err == nil {
				p.Close()
			}
		}
	}
	spec, stage := staged(t, "", 0)
	stage.Path = "/no/such/stage"
	rig.Is[error](t, rig.Err(Start(spec)), syscall.ENOENT, "")
	for _, f := range []*os.File{stage.Files[0], stage.Leash} {
		rig.Is(t, rig.Err(f.Stat()), os.ErrClosed, "%s is still open", f.Name())
	}
}

func TestStageFiles(t *testing.T) {
	t.Parallel()
	spec, stage := staged(t, "readlink /proc/$$/fd/3", 0)
	extra := rig.Value(os.Open("/etc/passwd"))
	stage.Argv[2] += " /proc/$$/fd/4; ls /proc/$$/fd"
	stage.Files = append(stage.Files, extra)
	_, output := run(t, spec)
	lines := strings.Split(output.text(Stdout), "\n")
	if !strings.HasPrefix(lines[0], "socket:") || !slices.Equal(lines[1:], []string{"/etc/passwd", "0", "1", "2", "3", "4", ""}) {
		t.Errorf("descriptors: %q", lines)
	}
	for _, f := range append(stage.Files, stage.Leash) {
		rig.Is(t, rig.Err(f.Stat()), os.ErrClosed, "%s is still open", f.Name())
	}
}

// TestStageFlagsRefused: if the kernel refuses the namespaces, the stage is started
// without them and is given the refusal.
func TestStageFlagsRefused(t *testing.T) {
	t.Parallel()
	spec, stage := staged(t, `echo "$# $1"`, 0)
	stage.Argv = append(stage.Argv, "sh")
	stage.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_SIGHAND // the kernel refuses CLONE_SIGHAND without CLONE_VM
	_, output := run(t, spec)
	rig.Is(t, output.text(Stdout), "1 invalid argument\n", "out")
}

// TestStageKeepsSignals: a signal waits until the stage takes it, and none is
// sent twice.
func TestStageKeepsSignals(t *testing.T) {
	t.Parallel()
	for _, ready := range []string{"printf x >&3", "exec 3>&-"} {
		gate := newGate(t)
		spec, _ := staged(t, "read go < "+gate.path+"; trap 'echo one' USR1; trap 'echo two; exit 3' USR2; "+ready+"; while :; do sleep 0.01; done", 0)
		p, output := begin(t, spec)
		for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGUSR1} {
			p.Signal(sig)
		}
		gate.open(t)
		finish(t, p)
		if out := output.text(Stdout); strings.Count(out, "one") > 1 || !strings.HasSuffix(out, "two\n") {
			t.Errorf("%s: %q", ready, out)
		}
		rig.Is(t, exitCode(p), 3, "%s: code", ready)
	}
}

// TestStageGrace: a stage with a grace gets that time to kill what it started,
// and no more. One without is killed at once.
func TestStageGrace(t *testing.T) {
	t.Parallel()
	const heeds, ignores = "printf x >&3; echo up; cat <&3; exit 5", "printf x >&3; echo up; sleep 1000"
	ends := map[string]func(*Process){
		"Terminate":  func(p *Process) { rig.Is(t, p.Terminate(), true, "it was running") },
		"Signal":     func(p *Process) { p.Signal(syscall.SIGKILL) },
		"KillGroup":  func(p *Process) { p.KillGroup() },
		"KillGroups": func(p *Process) { KillGroups(p) },
	}
	for name, end := range ends {
		for _, tt := range []struct {
			name   string
			script string
			grace  time.Duration
			want   int
		}{
			{"heeds", heeds, time.Hour, 5},
			{"ignores", ignores, 10 * time.Millisecond, 137},
			{"has no time", heeds, 0, 137},
		} {
			spec, _ := staged(t, tt.script, tt.grace)
			p, _ := begin(t, spec)
			waitFor(t, p, "up\n")
			end(p)
			finish(t, p)
			rig.Is(t, exitCode(p), tt.want, "%s, a stage that %s: code", name, tt.name)
		}
	}
	spec, _ := staged(t, heeds, time.Hour)
	p, _ := begin(t, spec)
	waitFor(t, p, "up\n")
	begun := time.Now()
	rig.Check(t, p.Close())
	rig.Is(t, max(time.Since(begun), time.Hour/2), time.Hour/2, "Close takes, at most")
}
