package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/protocol"
)

// execFlags name the command to run, and say where and how.
type execFlags struct {
	target.Flags

	Interactive bool     `short:"i" name:"interactive" help:"Without -d not needed, because standard input is always passed on (see -n). With -d, give the command a standard input that attached clients write to."`
	TTY         bool     `short:"t" name:"tty" env:"AGENT_TTY" help:"Give the command a terminal that follows the size of this one."`
	NoStdin     bool     `short:"n" env:"AGENT_NO_STDIN" help:"Do not pass on standard input."`
	Env         []string `short:"e" bytes:"" sep:"none" env:"AGENT_ENV" secret:"" placeholder:"NAME[=VALUE]" help:"Set a variable for the command; NAME alone passes on this process's variable. Can be repeated."`
	EnvFile     []string `name:"env-file" type:"path" sep:"none" env:"AGENT_ENV_FILE" placeholder:"FILE" help:"Set the variables that a file lists, one NAME=VALUE or NAME on each line. -e overrides them. Can be repeated."`
	Dir         string   `short:"C" bytes:"" env:"AGENT_DIR" placeholder:"DIR" help:"Directory to run in. Default: the current directory; on another agent, that agent's working directory."`
	Workdir     string   `short:"w" name:"workdir" bytes:"" placeholder:"DIR" help:"The same as -C."`
	boundFlags
	confineFlags
	execRuleFlags
	Local bool `help:"Run the command here in an embedded agent, whatever the current context is."`
	namedFlags

	Command []string `arg:"" bytes:"" passthrough:"" name:"cmd" help:"Command with its arguments."`
}

func (*execFlags) Help() string {
	return `Passes on standard input, output and error, the signals INT, TERM, HUP and QUIT, and the size of the terminal. No output is lost, however slowly you read it. The agent's own warnings and errors go to standard error, in lines that begin with "agent:".

Where: the command runs on the agent of --url, of --registry and --environment-id, or of --context; else of AGENT_URL, AGENT_REGISTRY or AGENT_CONTEXT; else of the current context (see agent context). With --local, or if there are no contexts at all, an agent that is embedded in this process runs it.

Environment: an embedded agent passes on the variables of this process, except the agent's own keys such as OPENAI_API_KEY; pass those on with -e. On another agent the command gets the core variables of that agent (HOME, PATH, USER, LANG, SHELL, TMPDIR and the like). -e adds variables; -t adds TERM.

Sandbox: --read-only, --workspace, --readable, --deny, --view, --profile and --network, or their variables, confine the command as agent sandbox does. It can then read everything except secrets (files such as ~/.ssh, variables such as GITHUB_TOKEN), and write nothing, unless a flag allows more. Paths are those of the agent: a relative path starts at its working directory, and '~/', in quotes, at the home of its user. If --network names hosts, you are asked at the terminal about all others.

Approval: if the agent's rules, or those of --exec-policy, say that somebody must approve a command, agent exec asks at the terminal: once, always for this command, with a rule, no. Text that you typed before the question goes to the command. If standard input is not a terminal, or with -d, the agent refuses such a command. An embedded agent takes the rules of --exec-policy, and the flags that begin so, as agent sandbox does.

End: agent exec ends when all output has ended. If background processes keep the output open, it ends when the command has exited and they have printed nothing for a second and a half. If they print on, a line says so, and Ctrl-C or another signal ends agent exec. An embedded agent then kills them at once, another agent when it gives up the session.

Bounds: with --timeout the agent ends the command, and all that it has started, when the time is up: with TERM, and two seconds later with KILL. It does so without agent exec too. An agent that cannot do that is left, and ends the command as after a lost connection. --max-output keeps a flood away. --memory, --cpus, --pids and --file-size limit the command with its children; a limit that the agent's host cannot hold is an error, and nothing runs.

With --name the command belongs to a session of that name on the agent, and outlives agent exec. Type the keys of --detach-keys, or ~., to leave the command running. It also keeps running if the terminal is closed (SIGHUP) or the connection is lost. -d prints the name and returns at once.

agent ps, logs, attach, wait and kill find the command by its session's name, from any machine. The agent keeps the session until a day (--retain) after the command has ended, or until agent end ends it. You can reuse a name once the commands of its session have ended.

Examples:

    agent exec -- sh -c 'echo $HOME; exit 3'
    agent exec -t -- bash
    agent exec --url ws://127.0.0.1:7000 -C /srv/w -e CI=1 -- make test
    agent exec --url ws://127.0.0.1:7000 --workspace . --profile go -- go test ./...
    agent exec --local --exec-policy ~/rules --exec-policy-enforce tree -- make test
    agent exec --url ws://127.0.0.1:7000 -d --name nightly -- make test
    tar c . | agent exec --url ws://127.0.0.1:7000 -- tar x -C /tmp
    agent exec --url ws://127.0.0.1:7000 --timeout 10m --max-output 64k --memory 2g --pids 500 -- make test
    CODEX_API_KEY=... agent exec --registry https://registry.example.com --environment-id build-1 -- make test

Exit codes: that of the command, 128+n when signal n ended it, 127 when it was not found, 126 when it could not be executed or rules do not let it run, 124 when the time of --timeout was up, as with timeout(1), 125 when agent itself failed, 2 for a wrong command line.`
}

// Check finds flags that contradict each other, and an invalid command. The parser calls it.
func (f *execFlags) Check() error {
	switch {
	case f.Workdir != "" && f.Dir != "":
		return errors.New("-C and --workdir are the same: give one of them")
	case f.Local && (f.URL != "" || f.Registry != "" || f.Context != nil):
		return errors.New("--local cannot be used with --context, --url or --registry")
	}
	if f.Local {
		f.Context = new("")
	}
	if err := checkVariables(f.Env); err != nil {
		return err
	}
	if err := f.boundFlags.check(); err != nil {
		return err
	}
	if err := f.confineFlags.Check(); err != nil {
		return err
	}
	if err := f.execRuleFlags.check(f.Elsewhere()); err != nil {
		return err
	}
	if err := f.checkText(); err != nil {
		return err
	}
	if err := f.Flags.Check(); err != nil {
		return err
	}
	if !f.Elsewhere() && f.Context == nil && !f.named() && len(f.Contexts()) > 0 {
		return fmt.Errorf("%w; --local runs the command here", f.Nowhere())
	}
	if err := f.namedFlags.validate(f.Elsewhere()); err != nil {
		return err
	}
	if err := validCommand("exec", f.Command); !errors.Is(err, errEmpty) {
		return err
	}
	return fmt.Errorf("%w; for a shell run: agent exec -t -- bash", errEmpty)
}

// checkText refuses a command that no request can carry.
func (f *execFlags) checkText() error {
	for _, entry := range f.Env {
		if name, _, _ := strings.Cut(entry, "="); !utf8.ValidString(entry) {
			return fmt.Errorf("-e %s is not UTF-8: an agent takes only text", strings.ToValidUTF8(name, "?"))
		}
	}
	for _, word := range f.Command {
		if !utf8.ValidString(word) {
			return fmt.Errorf("%q in the command is not UTF-8: an agent takes only text, so let a shell make the bytes, as in sh -c 'rm \"$(printf \"x\\377\")\"'", word)
		}
	}
	return nil
}

// dir returns the directory that the flags name.
func (f *execFlags) dir() string { return cmp.Or(f.Workdir, f.Dir) }

// run runs a command through the protocol. The result is its exit code.
func (f *execFlags) run(sys program.System) int {
	variables, err := f.variables()
	if wrong, ok := errors.AsType[cli.UsageError](err); ok {
		program.Complain(sys.Stderr, wrong)
		return program.ExitUsage
	}
	e := &execution{sys: sys, flags: f, variables: variablesOf(sys, variables)}
	code := 0
	if err == nil {
		code, err = e.run()
	}
	if err == nil {
		return code
	}
	return failed(sys, err, max(code, exitExecFailure))
}

// execution is one run of a command.
type execution struct {
	sys       program.System
	flags     *execFlags
	variables map[string]string // of --env-file and -e
	console   *console.Console

	client *client.Client
	name   string // of the session; "": the command has no named session
	info   *protocol.EnvironmentInfo

	summary local.Summary // of the hosts that the command reached, if --network limits them
}

// run returns the exit code of the command. With an error, the code is exitCannotExecute or
// exitNotFound if one of them applies, else 0.
func (e *execution) run() (code int, err error) {
	e.console = console.Open(e.sys)
	defer e.console.Close()
	var timer *time.Timer
	began, limit := time.Now(), e.flags.Timeout
	if limit > 0 {
		timer = time.AfterFunc(limit, func() { e.console.End(timeoutError(limit)) })
		defer timer.Stop()
	}
	ctx := e.console.Context()
	c, disconnect, err := e.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer disconnect()
	e.client = c
	if e.info, err = c.Info(ctx); err != nil {
		return 0, err
	}
	params, err := e.params()
	if err == nil {
		params.ExecApproval, err = e.flags.ofRequest(e.flags.Elsewhere())
	}
	if err == nil {
		err = e.confine(ctx, &params)
	}
	if err == nil {
		err = e.flags.boundFlags.apply(&params, e.info.Capabilities)
	}
	if err != nil {
		e.forget()
		return 0, err
	}
	defer e.summary.Print(e.sys.Stderr)
	e.limitTime(&params, timer, began)
	if e.flags.Detach {
		return e.startDetached(ctx, params)
	}
	process, err := c.Start(ctx, params)
	if err != nil {
		return e.notStarted(ctx, params, err)
	}
	var refused *protocol.Refusals
	var ending protocol.Ending
	code, err = e.console.Join(console.Command{
		Client: c, Process: process, Capabilities: e.info.Capabilities, TTY: e.flags.TTY, Stdin: params.PipeStdin,
		Keep: e.name != "", DetachKeys: e.flags.detachKeys(), Refused: func(r *protocol.Refusals) { refused = r }, Ended: func(e protocol.Ending) { ending = e },
	})
	if ending.OutOfMemory && refused == nil {
		program.Complain(e.sys.Stderr, "the kernel has ended a process of the command, because the memory of --memory was used up")
	}
	if err == nil && ending.TimedOut {
		err = timeoutError(limit)
	}
	local.TellRefused(e.sys.Stderr, refused, err == nil && code == 0, refusals.Program, refusals.Network)
	if e.name == "" || err == nil {
		return code, err
	}
	if _, late := errors.AsType[timeoutError](err); late {
		e.forget()
	}
	return code, leftNamed(e.sys, e.name, err)
}

// answers returns an option with which the user answers questions about commands at a terminal.
func answers(con *console.Console) func(*client.Config) {
	return func(cfg *client.Config) {
		if con.CanAsk() {
			cfg.Approvals.Decide = console.AskCommands(con.Ask)
		}
	}
}

// params makes the parameters of process/start.
func (e *execution) params() (protocol.StartParams, error) {
	p := protocol.StartParams{
		Argv:      e.flags.Command,
		TTY:       e.flags.TTY,
		PipeStdin: e.hasStdin(),
		Env:       map[string]string{},
		EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritCore, Exclude: []string{}, Set: map[string]string{}, IncludeOnly: []string{}},
	}
	if e.name != "" {
		p.ProcessID = sessions.Main
	}
	if p.Argv[0] == "--" {
		p.Argv = p.Argv[1:]
	}
	if !e.flags.Elsewhere() {
		p.EnvPolicy.Inherit, p.EnvPolicy.IgnoreDefaultExcludes = protocol.InheritAll, true
	}
	dir, err := e.dir()
	if err != nil {
		return p, err
	}
	p.Cwd = protocol.NewPathURI(dir)
	if e.flags.TTY {
		if term, ok := e.sys.Lookup("TERM"); ok {
			p.Env["TERM"] = term
		}
		if rows, cols, ok := e.sys.Size(); ok && e.info.Capabilities.ProcessResize {
			p.Rows, p.Cols = &rows, &cols
		}
	}
	maps.Copy(p.Env, e.variables)
	for name, value := range p.Env {
		if !utf8.ValidString(name + value) {
			return p, fmt.Errorf("the variable %s is not UTF-8, but an agent takes only text: unset it, or give it another value with -e %[1]s=VALUE", strings.ToValidUTF8(name, "?"))
		}
	}
	return p, nil
}

// maxEnvFile bounds a file of variables, in bytes.
const maxEnvFile = 1 << 20

// variables returns the variables of --env-file and of -e, in this order. A file with a wrong name is a
// wrong command line, as -e with that name is.
func (f *execFlags) variables() ([]string, error) {
	var all []string
	for _, file := range f.EnvFile {
		text, err := program.ReadFile(file, maxEnvFile)
		if err != nil {
			return nil, err
		}
		for n, line := range strings.Split(string(text), "\n") {
			line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if name, _, _ := strings.Cut(line, "="); name == "" || strings.ContainsAny(name, " \t\x00") {
				return nil, cli.UsageError(fmt.Sprintf("%s:%d: %q is not the name of a variable", file, n+1, name))
			}
			all = append(all, line)
		}
	}
	return append(all, f.Env...), nil
}

// dir returns the absolute path of the directory in which the command runs. A relative -C starts at
// the working directory of the agent. The working directory of an embedded agent is that of this
// process. For another agent that does not report its working directory, it is the home of the
// user.
func (e *execution) dir() (string, error) {
	if !e.flags.Elsewhere() {
		return program.Abs(e.flags.dir())
	}
	return policy.Below(e.info, e.flags.dir())
}

// hasStdin reports whether there is standard input to pass on. /dev/null counts as no input.
// Without a pipe, the command reads the end of input at once, but a pipe would stay open at a
// server that cannot close it.
func (e *execution) hasStdin() bool {
	if e.flags.Detach {
		return e.flags.Interactive // for a client that attaches later
	}
	return !e.flags.NoStdin && hasStdin(e.sys)
}

// hasStdin reports whether this program has standard input.
func hasStdin(sys program.System) bool {
	in, err := sys.Stdin.Stat()
	if err != nil {
		return false // closed
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(in, null)
}

// meant returns a hint for a command that was not found, because users of ssh and docker exec write
// the host first, and users of ssh write a line of shell.
func (e *execution) meant(argv []string) string {
	switch {
	case slices.Contains(e.flags.Contexts(), argv[0]):
		return fmt.Sprintf("; %[1]s is a context: agent exec --context %[1]s -- %[2]s", argv[0], cmp.Or(strings.Join(argv[1:], " "), "COMMAND"))
	case len(argv) == 1 && strings.ContainsAny(argv[0], " \t"):
		return "; run a line of shell with sh -c"
	}
	return ""
}

// startFailed finds the exit code and the error for a command that was not started. Where the server
// does not tell a missing program from a missing directory, startFailed requests the metadata of the
// directory.
func (e *execution) startFailed(ctx context.Context, params protocol.StartParams, err error) (int, error) {
	refused, ok := errors.AsType[*client.ServerError](err)
	if !ok {
		return 0, err
	}
	if refused.Err.Reason() == protocol.ReasonExecPolicy {
		return exitCannotExecute, errors.New(refused.Err.Message)
	}
	cause := refused.Err.Cause()
	if cause == nil || cause.What != protocol.WhatProgram {
		if err := e.directoryFailed(ctx, params); err != nil {
			return 0, err
		}
	}
	if cause != nil && cause.What == protocol.WhatCwd && e.flags.User != "" {
		dir, _ := params.Cwd.Native() // params made it from a native path
		return 0, fmt.Errorf("%s: the user of --user cannot run a command there: %s: name another directory with -C", dir, refused.Err.Message)
	}
	if info, err := e.client.Info(ctx); err == nil && info.Capabilities.ErrorData && (cause == nil || cause.What != protocol.WhatProgram) {
		return 0, refused
	}
	text := refused.Err.Message
	switch {
	case cause == nil && !strings.Contains(text, "No viable candidates found in PATH"):
		return 0, err
	case cause == nil, cause.Name == "ENOENT", cause.Name == "ENOTDIR":
		return exitNotFound, fmt.Errorf("%s: command not found%s", params.Argv[0], e.meant(params.Argv))
	case slices.Contains([]string{"EACCES", "ENOEXEC", "EISDIR", "ELOOP"}, cause.Name):
		return exitCannotExecute, fmt.Errorf("%s: cannot execute: %s", params.Argv[0], text)
	}
	return 0, err
}

// directoryFailed returns the reason why a command cannot run in its directory, or nil.
func (e *execution) directoryFailed(ctx context.Context, params protocol.StartParams) error {
	dir, _ := params.Cwd.Native() // params made it from a native path
	info, err := e.client.FS(nil).Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.flags.dir() == "":
		return fmt.Errorf("%s: the agent's working directory no longer exists: name another with -C", dir)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: the directory for the command does not exist", dir)
	case err != nil:
		return transfer.Explain(dir, err)
	case !info.IsDirectory:
		return fmt.Errorf("%s: not a directory", dir)
	}
	return nil
}
