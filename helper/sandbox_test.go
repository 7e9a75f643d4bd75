package helper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestMain is also the main of what confines: it starts this binary again.
func TestMain(m *testing.M) {
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// TestDispatchLeavesTheRest: Dispatch does nothing with arguments that users
// type, even if they look much like those of a mode.
func TestDispatchLeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		nil, {"agent"}, {"agent", ""}, {"agent", "sandbox"}, {"agent", "--sandbox-init"}, {"agent", "exec", "fs-helper"}, {"agent", helper.GuardArg, "more"},
	} {
		code, ok := helper.Dispatch(args)
		rig.Is(t, fmt.Sprint(code, ok), "0 false", "%q", args)
	}
}

// readOnly lets a command read everything and write in nothing.
func readOnly() sandbox.Profile {
	return sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}}
}

// A program with a sandbox runs a command that may write in one folder.
func ExampleSandbox() {
	box := helper.NewSandbox(helper.SandboxConfig{})
	defer box.Close()
	profile := sandbox.Profile{
		Entries:        []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}, {Place: sandbox.PlaceProjectRoots, Access: sandbox.Write}},
		Cwd:            "/srv/w",
		WorkspaceRoots: []string{"/srv/w"},
	}
	program := procs.Program{Argv: []string{"make", "test"}, Dir: "/srv/w", Env: os.Environ()}
	code, err := box.Run(profile, program, [3]*os.File{os.Stdin, os.Stdout, os.Stderr}, os.Interrupt)
	if err != nil {
		panic(err)
	}
	os.Exit(code)
}

// A command whose output arrives as events, and that can be killed, is started by package procs.
func ExampleSandbox_Enter() {
	box := helper.NewSandbox(helper.SandboxConfig{})
	defer box.Close()
	confined, err := box.Enter(sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}})
	if err != nil {
		panic(err) // a *sandbox.UnenforceableError, if this host cannot
	}
	defer confined.Release()
	p, err := procs.Start(procs.Spec{
		Argv: []string{"make", "test"}, Dir: "/srv/w", Env: os.Environ(), Stage: confined.Stage,
		Sink: func(e procs.Event) { fmt.Printf("%v: %s", e.Stream, e.Data) },
	})
	if err != nil {
		panic(err)
	}
	p.Begin()
	<-p.Done()
	_ = p.Close()
}

// A program with a sandbox or an agent begins so. What its user types is not for Dispatch.
func ExampleDispatch() {
	code, ok := helper.Dispatch([]string{"program", "serve"}) // os.Args
	if ok {
		os.Exit(code)
	}
	fmt.Println("an ordinary start")
	// Output: an ordinary start
}

// run runs a shell in a sandbox and returns its exit code and its output.
func run(t *testing.T, box *helper.Sandbox, profile sandbox.Profile, script string) (int, string) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	rig.Must(t, err)
	defer output.Close()
	program := procs.Program{Argv: []string{"sh", "-c", script}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}}
	code, err := box.Run(profile, program, [3]*os.File{nil, output, output})
	if _, ok := errors.AsType[*sandbox.UnenforceableError](err); ok {
		t.Skip(err)
	}
	rig.Must(t, err)
	text := rig.Value(os.ReadFile(output.Name()))
	return code, string(text)
}

// TestSandboxRun: a command has what its profile grants and no more; private paths of the profile
// count, and a missing name that is protected cannot be made, and is gone afterwards.
func TestSandboxRun(t *testing.T) {
	t.Parallel()
	box := helper.NewSandbox(helper.SandboxConfig{StateDir: filepath.Join(t.TempDir(), "state")})
	workspace, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	rig.Must(t, os.WriteFile(secret, []byte("geheim"), 0o600))
	code, output := run(t, box, readOnly(), "cat "+secret+"; echo x > "+workspace+"/new; echo $?; exit 7")
	rig.Is(t, code, 7, "read only: code")
	rig.Is(t, strings.HasPrefix(output, "geheim") && !strings.HasSuffix(output, "\n0\n"), true, "%q: it reads and does not write", output)
	profile := readOnly()
	profile.Private = []string{secret}
	profile.Cwd, profile.WorkspaceRoots = workspace, []string{workspace}
	profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlaceProjectRoots, Access: sandbox.Write})
	code, output = run(t, box, profile, "cat "+secret+"; cd "+workspace+" && echo x > new && mkdir .git/hooks")
	rig.Is(t, code != 0 && !strings.Contains(output, "geheim"), true, "a workspace: code %d, output %q: it fails", code, output)
	rig.Check(t, rig.Err(os.Stat(filepath.Join(workspace, "new"))))
	rig.Check(t, box.Close())
	rig.Is(t, rig.Err(os.Lstat(filepath.Join(workspace, ".git"))), os.ErrNotExist, ".git is left")
}

// TestSandboxStage: package procs starts a command in a sandbox.
func TestSandboxStage(t *testing.T) {
	t.Parallel()
	box := helper.NewSandbox(helper.SandboxConfig{StateDir: filepath.Join(t.TempDir(), "state"), Limits: sandbox.Limits{CPUSeconds: 100}})
	defer box.Close()
	confined, err := box.Enter(readOnly())
	if _, ok := errors.AsType[*sandbox.UnenforceableError](err); ok {
		t.Skip(err)
	}
	rig.Must(t, err)
	defer confined.Release()
	rig.Is(t, len(confined.Layers()) > 0, true, "there are layers")
	p, err := procs.Start(procs.Spec{
		Argv: []string{"sh", "-c", "ulimit -t; echo x > /tmp/new-name || exit 3"}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Stage: confined.Stage,
	})
	rig.Must(t, err)
	defer p.Close()
	p.Begin()
	rig.Must(t, p.WaitExit(t.Context()))
	<-p.Done()
	var output strings.Builder
	for _, chunk := range p.Read(0, nil).Chunks {
		output.Write(chunk.Data)
	}
	_, code, _, _ := p.State()
	said := output.String()
	rig.Is(t, code != 0 && strings.Contains(said, "100\n"), true, "code %d, output %q: the limit, and a failure", code, said)
}

// TestSandboxUnconfined: what restricts nothing is not run as if it were confined.
func TestSandboxUnconfined(t *testing.T) {
	t.Parallel()
	box := helper.NewSandbox(helper.SandboxConfig{})
	defer box.Close()
	code, err := box.Run(sandbox.Profile{Kind: sandbox.Disabled}, procs.Program{Argv: []string{"true"}, Dir: "/"}, [3]*os.File{})
	rig.Is(t, err != nil, true, "code %d: an error", code)
}
