package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/probe"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/resolve"
)

// exitSandbox is the code when the command was not run because of the sandbox,
// as for processes of clients (sandbox.md 9.2).
const exitSandbox = 101

// maxPolicy bounds a policy file, in bytes.
const maxPolicy = 1 << 20

// runSandbox runs a command under a policy. The result is its exit code.
func runSandbox(sys system, flags *sandboxFlags) int {
	code, err := confined(sys, flags)
	if err != nil {
		complain(sys.stderr, fmt.Errorf("sandbox: %w", err))
		return max(code, exitSandbox)
	}
	return code
}

// confined returns the exit code of the command, or why it was not run.
func confined(sys system, flags *sandboxFlags) (code int, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	profile, err := flags.profile(sys, dir)
	if err != nil {
		return 0, err
	}
	stateDir, err := flags.stateDir()
	if err == nil { // also below /dev: a grant on /dev/shm shows the host's
		profile.Private = append(profile.Private, stateDir)
	}
	noState := err
	policy, err := profile.Compile()
	if err != nil {
		return 0, err
	}
	command := confine.Command{
		Policy: policy,
		Argv:   flags.argv(),
		Env:    sys.environ,
		Dir:    dir,
		TTY:    isShownTerminal(sys.stdin),
		Argv0:  os.Args[0],
	}
	if len(command.Argv) == 0 || command.Argv[0] == "" {
		return 0, errors.New("the command is empty")
	}
	if !policy.Confined && policy.Network == sandbox.NetworkEnabled {
		return 0, become(command)
	}
	host, err := probe.Host(context.Background(), os.Args[0])
	if err != nil {
		return 0, err
	}
	if command.Backend, err = policy.Backend(host, flags.requireNamespaces()); err != nil {
		return 0, err
	}
	log := slog.New(slog.NewTextHandler(sys.stderr, nil))
	release, err := holdMissing(policy, command.Backend, stateDir, noState, log)
	if err != nil {
		return 0, err
	}
	code, err = runConfined(sys, command)
	if free := release(); free != nil {
		complain(sys.stderr, free) // the command has run all the same
	}
	return code, err
}

// argv is the command with its arguments.
func (f *sandboxFlags) argv() []string {
	if len(f.Command) > 0 && f.Command[0] == "--" {
		return f.Command[1:]
	}
	return f.Command
}

// profile is what the flags ask for, in the directory dir.
func (f *sandboxFlags) profile(sys system, dir string) (sandbox.Profile, error) {
	tmp := tmpDir(sys.environ)
	if f.Policy != "" {
		asked, err := readPolicy(f.Policy, sys.stdin)
		if err != nil {
			return sandbox.Profile{}, fmt.Errorf("reading the policy %s: %w", f.Policy, err)
		}
		return agent.Profile(asked, dir, tmp)
	}
	p := sandbox.Profile{
		Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}},
		Cwd:     dir,
		TmpDir:  tmp,
	}
	if f.Network == "on" {
		p.Network = sandbox.NetworkEnabled
	}
	for _, workspace := range f.Workspace {
		path, err := filepath.Abs(workspace)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return p, fmt.Errorf("--workspace: %w", err)
		}
		p.WorkspaceRoots = append(p.WorkspaceRoots, path)
	}
	if len(p.WorkspaceRoots) > 0 {
		p.Entries = append(p.Entries,
			sandbox.Entry{Place: sandbox.PlaceProjectRoots, Access: sandbox.Write},
			sandbox.Entry{Place: sandbox.PlaceSlashTmp, Access: sandbox.Write},
			sandbox.Entry{Place: sandbox.PlaceTmpDir, Access: sandbox.Write})
	}
	return p, nil
}

// tmpDir is TMPDIR, if it is an absolute path, else empty.
func tmpDir(environ []string) string {
	for _, entry := range environ {
		dir, ok := strings.CutPrefix(entry, "TMPDIR=")
		if ok && filepath.IsAbs(dir) {
			return filepath.Clean(dir)
		}
		if ok {
			return "" // getenv(3) takes the first
		}
	}
	return ""
}

// readPolicy reads what a request has as its sandbox, and as strictly.
func readPolicy(path string, stdin io.Reader) (*protocol.Sandbox, error) {
	from := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxPolicy+1))
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxPolicy:
		return nil, fmt.Errorf("more than %d bytes", maxPolicy)
	case !json.Valid(raw):
		return nil, errors.New("not a JSON value")
	}
	// Only whole messages can be checked for what the wire refuses.
	message, err := protocol.Decode(slices.Concat([]byte(`{"method":"sandbox","params":`), raw, []byte("}")))
	if err != nil {
		return nil, err
	}
	asked := new(protocol.Sandbox)
	return asked, protocol.UnmarshalParams(message.Params, asked)
}

// become runs a command that nothing confines in the place of this process.
func become(c confine.Command) error {
	path, err := exec.LookPath(c.Argv[0])
	if err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, c.Argv, c.Env)}
}

// holdMissing keeps the names from coming into being that the policy protects,
// until release is called. noState is why there is no state directory.
func holdMissing(policy *sandbox.Policy, backend sandbox.Backend, stateDir string, noState error, log *slog.Logger) (release func() error, err error) {
	nothing := func() error { return nil }
	if !backend.Has(sandbox.MountNS) {
		return nothing, nil
	}
	resolved, err := resolve.Policy(policy)
	if err != nil {
		return nil, err
	}
	missing := resolved.Missing
	// It remembers no earlier commands, so this only warns.
	err = (&resolve.Served{Log: log}).Check(resolved)
	resolved.Close()
	if err != nil {
		return nil, err
	}
	if len(missing) == 0 {
		return nothing, nil
	}
	if noState != nil {
		return nil, fmt.Errorf("names that the policy protects cannot be held, see --state-dir: %w", noState)
	}
	placeholders, err := hold.Open(stateDir)
	if err != nil {
		return nil, err
	}
	free, err := placeholders.Hold(missing)
	if err != nil {
		return nil, errors.Join(err, placeholders.Close())
	}
	return func() error {
		free()
		return placeholders.Close()
	}, nil
}

// runConfined starts a command and sees it out.
func runConfined(sys system, command confine.Command) (code int, err error) {
	tty := controllingTerminal()
	defer tty.close()
	// Who has no terminal gets his signals from us alone, and passes them on
	// to all that he has started.
	command.NewSession = tty == nil
	ready, err := command.Prepare()
	if err != nil {
		return 0, err
	}
	defer ready.Close()

	signals := make(chan os.Signal, 8)
	catch(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)

	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   ready.Env,
		Files: append([]*os.File{sys.stdin, sys.stdout, sys.stderr}, ready.Files...),
		Sys:   &syscall.SysProcAttr{Cloneflags: ready.Cloneflags, AmbientCaps: ready.AmbientCaps},
	}
	if ready.Grace == 0 {
		attr.Sys.Pdeathsig = syscall.SIGKILL
		// The signal comes when this thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	process, err := os.StartProcess(ready.Path, ready.Argv, attr)
	if err != nil {
		return 0, fmt.Errorf("starting the sandbox: %w", err)
	}
	for _, file := range ready.Files {
		_ = file.Close() // the child has its own
	}
	passed := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(passed)
		passSignals(process, ready.Leash, signals, ended)
	}()
	state, err := process.Wait()
	close(ended)
	_ = ready.Leash.Close() // unblocks who waits for it
	<-passed
	tty.reclaim()
	if err != nil {
		return 0, fmt.Errorf("waiting for the command: %w", err)
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return exitSignal + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}

// passSignals sends a process the signals that this one gets, from when it
// takes them until it has ended.
func passSignals(process *os.Process, leash *os.File, signals <-chan os.Signal, ended <-chan struct{}) {
	// One byte says that it does; the end of the file that it has become what
	// takes them, or is gone.
	_, _ = leash.Read(make([]byte, 1))
	for {
		select {
		case sig := <-signals:
			_ = process.Signal(sig) // it may have ended
		case <-ended:
			return
		}
	}
}
