// Package exectree has the tests of rules that are asked about every program which a command
// executes: each way to execute something, and races for what is executed, with commands that are
// not confined, confined by namespaces, and supervised (execpolicy.md 8.6).
package exectree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestMain is also the main of what confines and watches commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case confine.Arg:
			os.Exit(confine.Main())
		case probe.Arg:
			os.Exit(probe.Main())
		}
	}
	syscall.Umask(0o022) // other users execute what tests write
	code := m.Run()
	inC.Remove()
	os.Exit(code)
}

// enough is how long a test waits for something that has to happen.
const enough = 5 * time.Minute

// missing ends a test for which the machine lacks something. In CI it fails.
func missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// inC is a program that executes others in all ways.
var inC = rig.CProgram{Source: "../../internal/sandbox/supervise/execcheck/testdata/programs.c"}

var (
	smallOnce sync.Once
	smallErr  error
)

// programs returns the path of inC.
func programs(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "the program of this test is in C, and there is no gcc")
	}
	return inC.Path(t)
}

// way is a way to run a command: with which layers, if any.
type way struct {
	name    string
	without []sandbox.Layer // which layers of this host are not used
	// denies has the policy deny something, so that a supervisor has to judge reading too.
	denies, bare bool
	tells        bool // the command's standard error says what is refused
}

// ways are the ways that this host has.
func ways() []way {
	return []way{
		{name: "unconfined", bare: true},
		{name: "namespaces", without: []sandbox.Layer{sandbox.Supervised}},
		{name: "supervised", without: sandbox.Namespaces()},
		{name: "supervised reading", without: sandbox.Namespaces(), denies: true},
	}
}

// eachWay runs a test in each way, in a folder of its own.
func eachWay(t *testing.T, test func(t *testing.T, w way, dir string)) {
	t.Helper()
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w, rig.Public(t))
		})
	}
}

var host = sync.OnceValues(func() (sandbox.Host, error) { return probe.Host(context.Background(), os.Args[0]) })

// enter returns a sandbox in which dir can be written and everything else be read.
func (w way) enter(t testing.TB, dir string, j *confine.Judged) *confine.Held {
	t.Helper()
	if w.bare {
		return confine.WatchOnly(j)
	}
	door := confine.Door{
		Served: &resolve.Served{},
		Host: func() (sandbox.Host, error) {
			h, err := host()
			h.Layers = h.Layers.Without(w.without...)
			return h, err
		},
		Placeholders: func() (*placeholder.Placeholders, error) {
			state := t.TempDir()
			if err := os.Chmod(state, 0o700); err != nil {
				return nil, err
			}
			made, err := placeholder.Open(state)
			if err == nil {
				t.Cleanup(func() { made.Close() })
			}
			return made, err
		},
	}
	profile := sandbox.Profile{Entries: []sandbox.Entry{
		{Place: sandbox.PlaceRoot, Access: sandbox.Read},
		{Place: sandbox.PlacePath, Path: dir, Access: sandbox.Write},
	}}
	if w.denies {
		profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: "/etc/shadow", Access: sandbox.Denied})
	}
	held, err := door.Enter(profile)
	if err != nil {
		missing(t, err.Error())
	}
	t.Cleanup(held.Release)
	held.Judge(j)
	return held
}

// rules returns a policy of rules, with what holds without one.
func rules(t testing.TB, unmatched rule.Decision, text string) *execpolicy.Policy {
	t.Helper()
	set, err := execpolicy.ParseClient([]execpolicy.ClientFile{{Name: "test", Text: text}})
	rig.Must(t, err)
	return &execpolicy.Policy{Rules: set, Unmatched: unmatched, Opaque: unmatched}
}

// result is what has become of a command.
type result struct {
	out  string
	code int
	// asked are the commands that were asked about, and told those that were refused by a rule.
	asked, told []string
}

// end is what a command has printed, and its exit code.
func (r result) end() string { return fmt.Sprintf("%scode %d\n", r.out, r.code) }

// run runs a command in dir. Answer answers the questions; nil says no.
func (w way) run(t testing.TB, dir string, policy *execpolicy.Policy, answer func(judge.Question) bool, argv ...string) result {
	t.Helper()
	j, err := confine.NewJudged(policy)
	rig.Must(t, err)
	j.Tells = w.tells
	held := w.enter(t, dir, j)
	var r result
	var mu sync.Mutex // guards out and code
	var out strings.Builder
	spec := procs.Spec{
		Argv: argv, Dir: dir, Env: []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + dir, "LANG=C"},
		Sink: func(e procs.Event) {
			mu.Lock()
			defer mu.Unlock()
			out.Write(e.Data)
			if e.Kind == procs.Exited {
				r.code = e.ExitCode
			}
		},
	}
	spec.Stage = func(p procs.Program) (*procs.Stage, error) {
		stage, err := held.Stage(p)
		if err == nil { // else the race detector makes an init wait for a second at its end
			stage.Env = append(stage.Env, "GORACE=atexit_sleep_ms=0")
		}
		return stage, err
	}
	p, err := procs.Start(spec)
	rig.Must(t, err)
	defer p.Close()
	var serving sync.WaitGroup
	serving.Go(func() {
		j.Questions().Serve(func(e judge.Event) {
			words := strings.Join(e.Argv, " ")
			if e.Kind == judge.Refused {
				r.told = append(r.told, words)
				return
			}
			r.asked = append(r.asked, words)
			j.Questions().Answer(e.ID, answer != nil && answer(e.Question))
		})
	})
	p.Begin()
	select {
	case <-p.Done():
	case <-time.After(enough):
		t.Errorf("%q does not end", argv)
	}
	j.Questions().Hang()
	serving.Wait()
	j.Close()
	mu.Lock()
	defer mu.Unlock()
	r.out = out.String()
	return r
}

// place copies a program. If this process wrote the copy, a child that is forked meanwhile would
// have it open, and nobody could execute it.
func place(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// write writes a file that may be executed.
func write(t testing.TB, path string, content []byte) {
	t.Helper()
	rig.Must(t, rig.WriteProgram(path, content))
}

// smallPrograms returns the folder of the programs that races execute: right and wrong.
func smallPrograms(t testing.TB) string {
	t.Helper()
	dir := filepath.Dir(programs(t))
	if runtime.GOARCH != "amd64" {
		t.Skip("the smallest programs are written for amd64")
	}
	smallOnce.Do(func() {
		for name, defines := range map[string][]string{"right": {"-DCODE=10"}, "wrong": {"-DCODE=11", "-DMARK=87"}} { // W
			if smallErr == nil {
				_, smallErr = exec.Command("gcc", append(defines, "-nostdlib", "-static", "-s", "-Wl,-n", "-o", filepath.Join(dir, name), "testdata/smallest.S")...).Output()
			}
		}
	})
	rig.Must(t, smallErr)
	return dir
}
