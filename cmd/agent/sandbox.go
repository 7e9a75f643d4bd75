package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/internal/profile"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// exitSandbox is the exit code when the sandbox kept the command from running. A client sees the
// same code for its process (sandbox.md 9.2).
const exitSandbox = 101

// maxPolicy bounds a policy file, in bytes.
const maxPolicy = 1 << 20

// sandboxFlags name the command to run, and say what it may do.
type sandboxFlags struct {
	confineFlags
	Policy  string `env:"AGENT_SANDBOX_POLICY" type:"path" placeholder:"FILE" help:"Confine the command as the policy in a JSON file says; - is standard input."`
	Explain bool   `help:"Print what the command could do, and run nothing. Each line ends with the flag, profile or default that it comes from."`
	Learn   bool   `help:"Find out what the command needs: also let it write in your home, except secrets, in its directory and in temporary folders, and reach all public hosts. What another flag says of a folder or host still holds. At the end, standard error has a profile of what it did and the other flags do not allow. Only for commands that you trust."`
	hostFlags
	policyfile.RuleFlags
	PIDs     uint64       `env:"AGENT_SANDBOX_PIDS" name:"pids" placeholder:"N" help:"Limit of processes and threads of the command. In a user namespace of the sandbox only its own count, and else all of the user. Root cannot be limited."`
	FileSize program.Size `env:"AGENT_SANDBOX_FILE_SIZE" placeholder:"BYTES" help:"Limit of the size of each file that the command writes."`

	TTY bool     `short:"t" name:"tty" env:"AGENT_SANDBOX_TTY" help:"Give the command a terminal of its own that follows the size of this one."`
	Env []string `short:"e" bytes:"" sep:"none" env:"AGENT_SANDBOX_ENV" secret:"" placeholder:"NAME[=VALUE]" help:"Set a variable for the command; NAME alone passes on this process's variable. Can be repeated."`
	Dir string   `short:"C" bytes:"" env:"AGENT_SANDBOX_DIR" placeholder:"DIR" help:"Directory to run in. Default: the current directory."`

	Command []string `arg:"" optional:"" bytes:"" passthrough:"" name:"cmd" help:"Command with its arguments."`
}

func (*sandboxFlags) Help() string {
	return `The command runs as it would without agent sandbox: it has the same terminal, standard input, output and error, directory and environment. If agent sandbox may have to ask you something, the command gets a terminal of its own in place of yours, so that it cannot type the answer. Only secrets are hidden, unless a flag names them: variables that look like secrets, and files such as ~/.ssh and ~/.netrc. Lines on standard error list them. The agent's own keys such as OPENAI_API_KEY are left out, too, without such a line; pass those on with -e. With -t the command has a terminal of its own, as with agent exec -t.

What the policy forbids fails with errors such as "Read-only file system", "Permission denied" or "Operation not permitted". Names like .git at the top of a workspace stay read-only, even if they do not exist. If this host cannot enforce a policy exactly, nothing runs; agent doctor shows why.

With --network allow=HOST and the like, a proxy is the command's only network. Every program reaches allowed hosts by TCP, whether or not it knows of the proxy, which the usual variables such as HTTPS_PROXY name; a refused connection fails with "Permission denied". *.HOST stands for every name below HOST, **.HOST for HOST too, and HOST:PORT for one port. METHOD HOST/PATH stands for single requests: GET api.example.net/v1/**. At the end, standard error lists what was reached and what was refused. The policy judges names, not what is behind them: an allowed host that stores files for anybody is a way out.

With --exec-policy a command that the rules forbid is not started. If the rules require approval, agent sandbox asks at the terminal: once, always for this command, with a rule, no. Without a terminal such a command is refused. If the kernel supports it, the rules also apply to every program that the command executes; --exec-policy-enforce tree requires that.

A policy file has the same members as the member sandbox of a request: permissions, cwd, workspaceRoots and the rest. If cwd is missing, it is the directory that the command runs in.

Examples:

    agent sandbox -- git log
    agent sandbox --workspace . -- make test
    agent sandbox --workspace . --workspace ~/.cache --network on -- make deps
    agent sandbox --workspace . --workspace ~/.npm --network allow=packages.example.net -- npm install
    agent sandbox --workspace . --profile node -- npm ci
    agent sandbox --workspace . --profile go --explain
    agent sandbox --workspace . --learn -- make deps
    agent sandbox --view --workspace . -- make test
    agent sandbox --workspace . --deny '**/*.env' -e GITHUB_TOKEN -- make release
    agent sandbox --network ask -- sh
    agent sandbox -t -C /srv/w -e CI=1 --workspace /srv/w -- bash
    agent sandbox --policy policy.json -- sh
    agent sandbox --workspace . --exec-policy ~/rules --exec-policy-enforce tree -- make test

Exit codes: that of the command, 128+n when signal n ended it, 127 when it was not found, 126 when it could not be executed or rules do not let it run, 101 when something else kept it from running in the sandbox, 2 for a wrong command line.`
}

// Check finds flags that contradict each other, and parses the flag for the network. The parser
// calls it.
func (f *sandboxFlags) Check() error {
	switch {
	case f.Policy != "" && f.FileFlag() != "":
		return errors.New("--policy cannot be used with " + f.FileFlag() + ", because the policy says what can be read and written")
	case f.Explain && f.Policy != "":
		return errors.New("--explain cannot be used with --policy, because the file already says everything")
	case f.FileSize < 0:
		return fmt.Errorf("--file-size %d is negative", f.FileSize)
	case f.PIDs > 0 && os.Geteuid() == 0:
		return errors.New("--pids cannot limit root: run agent sandbox as another user, or use agent exec --pids with a control group")
	case f.Learn && (f.Policy != "" || f.Explain || f.View):
		return errors.New("--learn cannot be used with --policy, --explain or --view")
	}
	if err := f.confineFlags.Check(); err != nil {
		return err
	}
	switch {
	case f.Learn && f.network.On:
		return errors.New("--learn cannot be used with --network on, because nobody sees which hosts the command reaches")
	case f.Learn && f.network.LimitsRequests():
		return errors.New("--learn cannot be used with allow=METHOD HOST/PATH or ask=METHOD HOST/PATH of --network, because it learns hosts and no requests")
	}
	if f.Policy != "" && len(f.Network) > 0 && !f.network.Managed {
		return errors.New("--policy cannot be used with --network on or off, because the policy says whether there is a network")
	}
	if err := f.CheckPolicy(); err != nil {
		return err
	}
	if err := checkVariables(f.Env); err != nil {
		return err
	}
	if f.Explain && len(f.Command) == 0 {
		return nil
	}
	return validCommand("sandbox", f.Command)
}

// run runs a command under a policy. The result is its exit code.
func (f *sandboxFlags) run(sys program.System) int {
	code, err := f.confined(sys)
	if err != nil {
		program.Complain(sys.Stderr, fmt.Errorf("sandbox: %w", err))
		return max(code, exitSandbox)
	}
	return code
}

// confined runs the command and returns its exit code. If the command did not run, err says why,
// and code is the exit code of a shell for this error, or 0.
func (f *sandboxFlags) confined(sys program.System) (code int, err error) {
	if asking := f.network.Managed || f.ExecPolicy != ""; !sys.Job && !f.Explain && (asking || f.TTY) {
		if code, ran, err := local.AtConsole(sys, f.TTY, asking); ran {
			return code, err
		}
	}
	given := variablesOf(sys, f.Env)
	kept, hidden := f.Environ(sys.Environ, given)
	upstream := sys.Environ // URLs of its proxies may have passwords that the command does not get
	sys.Environ = withVariables(kept, given)
	c := local.Command{Sys: sys, Argv: f.argv(), Network: f.network, Upstream: upstream, Operator: f.operator(), StateDir: f.stateDir, Ask: refusals.Flags}
	if f.NoRefusals {
		c.Ask = nil
	} else if f.Policy != "" {
		c.Ask = refusals.Words // the file says it, and no flag
	}
	if c.Dir, err = program.Abs(f.Dir); err != nil {
		return 0, err
	}
	plan, err := f.plan(sys, c.Dir)
	if err != nil {
		return 0, err
	}
	if f.Explain {
		return 0, f.explain(sys.Stdout, plan, hidden, given)
	}
	tellHidden(sys, plan, hidden)
	for _, dir := range plan.Make {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return 0, fmt.Errorf("making a folder of a profile: %w", err)
		}
	}
	c.Profile = plan.Profile
	c.Limits = confine.Limits{Processes: f.PIDs, FileSize: uint64(f.FileSize)}
	tell := func() {}
	if f.Learn {
		if tell, err = f.learn(&c, plan); err != nil {
			return 0, err
		}
	}
	if c.Rules, err = f.ReadHere(program.Logger(sys.Stderr, "warn", "text")); err != nil {
		return 0, err
	}
	if err := f.enterDir(c.Dir); err != nil {
		return 0, err
	}
	code, err = c.Run()
	_, lacks := errors.AsType[*sandbox.UnenforceableError](err)
	switch {
	case err == nil:
		tell()
	case lacks && f.Learn:
		err = fmt.Errorf("--learn: only what supervises a command sees what it does: %w", err)
	case lacks && len(plan.Hidden) > 0:
		err = fmt.Errorf("%w (with --show-secrets no files are hidden, and this host may be able to enforce that)", err)
	}
	return code, err
}

// enterDir makes the directory of -C the working directory of this program, too. All other paths in
// flags are relative to the directory before that.
func (f *sandboxFlags) enterDir(dir string) error {
	if f.Dir == "" {
		return nil
	}
	err := os.Chdir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: the directory for the command does not exist", dir)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s: not a directory", dir)
	}
	return err
}

// argv returns the command with its arguments, without the -- before them.
func (f *sandboxFlags) argv() []string {
	if len(f.Command) > 0 && f.Command[0] == "--" {
		return f.Command[1:]
	}
	return f.Command
}

// plan returns what the flags let a command do. The command runs in dir.
func (f *sandboxFlags) plan(sys program.System, dir string) (*policy.Plan, error) {
	host := policy.Here(sys.Lookup, sys.Environ)
	host.Cwd = dir
	if f.Policy != "" {
		asked, err := readPolicy(f.Policy, sys.Stdin)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w (for the policies that agent doctor names, use --read-only and --workspace)", err)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the policy %s: %w", f.Policy, err)
		}
		p, err := profile.Of(asked, dir, host.TmpDir)
		return &policy.Plan{Profile: p}, err
	}
	return f.planOn(host)
}

// readPolicy reads a policy from a file, or from stdin if the path is -. The file has the same
// content as the member sandbox of a request, and is checked as strictly.
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
	}
	raw = bytes.TrimPrefix(raw, []byte(paths.Mark))
	if !json.Valid(raw) {
		return nil, errors.New("not a JSON value")
	}
	// protocol.Decode refuses everything that it refuses on the wire, such as an object with the
	// same name twice, but it accepts only whole messages.
	message, err := protocol.Decode(slices.Concat([]byte(`{"method":"sandbox","params":`), raw, []byte("}")))
	if err != nil {
		return nil, err
	}
	asked := new(protocol.Sandbox)
	return asked, protocol.UnmarshalParams(message.Params, asked)
}
