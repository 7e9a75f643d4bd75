package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/agent/internal/settings"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// command is a command with the flags of a command line. Package cli calls two more methods if the
// command has them: Help, for the help below the line of the grammar, and Check, which finds flags
// that contradict each other.
type command interface {
	// run executes the command and returns the exit code.
	run(program.System) int
}

// commandLine is the grammar of the command line, and lists all commands. The name of a field is
// the name of its command: Cp is agent cp. Its type is a [command], or a struct of commands.
type commandLine struct {
	ExecServer   serverFlags       `cmd:"" default:"withargs" help:"Serve clients over WebSocket or stdio. This is the default command."`
	Forward      forwardFlags      `cmd:"" help:"Register a WebSocket exec-server as a remote environment."`
	Connect      connectFlags      `cmd:"" help:"Let programs on this machine connect to an agent behind a registry."`
	Mcp          mcpFlags          `cmd:"" help:"Offer commands and files to coding assistants as tools (MCP)."`
	Exec         execFlags         `cmd:"" help:"Run a command on an agent, as if it ran here."`
	Cp           cpFlags           `cmd:"" help:"Copy files and directories to or from an agent."`
	Ls           lsFlags           `cmd:"" help:"List files on an agent."`
	Cat          catFlags          `cmd:"" help:"Print files from an agent."`
	Find         findFlags         `cmd:"" help:"Find files by their names, here or on an agent."`
	Grep         grepFlags         `cmd:"" help:"Find lines in files, here or on an agent."`
	Rm           rmFlags           `cmd:"" help:"Remove files on an agent."`
	Mkdir        mkdirFlags        `cmd:"" help:"Make directories on an agent."`
	ApplyPatch   applyPatchFlags   `cmd:"" help:"Apply a model's patch to files, here or on an agent."`
	Skills       skillsFlags       `cmd:"" help:"List the skills and plugins that are installed on an agent."`
	Sandbox      sandboxFlags      `cmd:"" help:"Run a command in a sandbox on this machine."`
	Doctor       doctorFlags       `cmd:"" help:"Show what this host can enforce, and how to get what is missing."`
	Ports        portsFlags        `cmd:"" help:"List the TCP ports that listen, here or on an agent."`
	PortForward  portForwardFlags  `cmd:"" help:"Forward ports of this machine to ports that an agent can reach."`
	ProxyCommand proxyCommandFlags `cmd:"" help:"Connect standard input and output to a port that an agent can reach, as ssh's ProxyCommand."`
	Health       healthFlags       `cmd:"" help:"Check whether an agent is serving, for health checks."`
	Install      installFlags      `cmd:"" help:"Copy this program to a folder, such as one that another image shares."`

	Ps     psFlags     `cmd:"" help:"List the named sessions, and what runs in them."`
	Logs   logsFlags   `cmd:"" help:"Print the output of a command in a session."`
	Attach attachFlags `cmd:"" help:"Attach to a command that runs in a session."`
	Wait   waitFlags   `cmd:"" help:"Wait until the commands of sessions end, and return their exit code."`
	Kill   killFlags   `cmd:"" help:"Send a signal to the processes of sessions."`
	End    endFlags    `cmd:"" help:"End sessions, and discard their output."`

	Config       configCommands    `cmd:"" help:"Show which options are set, and where."`
	Context      contextFlags      `cmd:"" help:"Name agents, and choose the one that commands use."`
	Login        loginFlags        `cmd:"" help:"Store a key for a registry as a context."`
	Environments environmentsFlags `cmd:"" help:"List the environments of a registry that your key can use."`

	Execpolicy execpolicyFlags `cmd:"" help:"Check commands against files of rules."`
	Schema     schemaFlags     `cmd:"" help:"Print the contract of the protocol, for clients in any language."`

	Version    versionFlags    `cmd:"" help:"Print the version and what it is compatible with."`
	Completion completionFlags `cmd:"" help:"Print a completion script for a shell."`
	Complete   completeFlags   `cmd:"" hidden:"" help:"Print words for a completion script."`
}

// ownFlags are the flags of the program itself, which take effect at once.
type ownFlags struct {
	Version bool `help:"Print the version, like agent version."`
}

// commands is the program for package cli.
var commands = &cli.App{
	Name:        "agent",
	Description: description,
	Commands:    commandLine{},
	Own:         ownFlags{},
	Sections: []cli.Section{
		{Key: "remote", Title: "Remote mode:"},
		{Key: "auth", Title: "Authentication of WebSocket clients:"},
		{Key: "sandbox", Title: "Confined commands:"},
		{Key: "policy", Title: "Rules about commands:"},
		{Key: "log", Title: "Log:"},
	},
	Habits: habits,
	Hide:   func(command string, flag *cli.Field) bool { return command == "forward" && refusedByForward(flag) },
}

// refusedByForward reports whether forward accepts a flag only to refuse it, so that its help does
// not list the flag. These are the flags about clients, and those of the direct transport.
func refusedByForward(flag *cli.Field) bool {
	return flag.Section() == "auth" || strings.HasPrefix(flag.Name, "aws-") || strings.HasSuffix(flag.Name, "transport")
}

const description = `Runs processes, file operations and HTTP requests for clients that speak the protocol of codex exec-server.

Without a command, agent starts the server. agent exec-server --help lists the server's options, such as --listen and --ws-auth.

An option whose help names an environment variable can also be set by that variable, or in a file (see agent config --help). Secrets are read from files.

Examples:

  agent exec -- make test                          run a command through an embedded agent
  agent --listen ws://127.0.0.1:7000               serve on a port
  agent exec --url ws://127.0.0.1:7000 -t -- bash  run a command on that agent
  agent exec --url ... -d --name job -- make test  start a command and leave it running (see agent ps)
  agent cp --url ws://127.0.0.1:7000 site :/srv    copy files to that agent
  agent --listen stdio                             serve on standard input and output
  agent --remote https://HOST --environment-id ID  serve as a remote environment
  agent sandbox --workspace . -- make test         run a command that can write only here
  agent doctor                                     show which sandboxes this host can enforce`

// errEmpty refuses an empty command line of another program.
var errEmpty = errors.New("the command is empty")

// validCommand refuses a command line of another program that is empty, or that begins with an
// unknown flag.
func validCommand(name string, command []string) error {
	switch first := first(command); {
	case first == "" || first == "--" && (len(command) == 1 || command[1] == ""):
		return errEmpty
	case first != "--" && strings.HasPrefix(first, "-") && first != "-":
		return errors.New(commands.Find(name).UnknownFlag(first) + " (write -- before a command that begins with -)")
	}
	return nil
}

func first(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// parse returns the command that the arguments name, for example an *execFlags. If the
// command line is wrong, the error is a *wrongLine. overrides lists flags and variables
// that have no effect because of a file.
func parse(args []string) (flags command, overrides []string, err error) {
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	args, wrong := commands.Here(args)
	named, _ := commands.Command(args) // read reports a mistake in it
	if named.Path == "find" {
		args = findWords(args)
	}
	if wrong != nil {
		return nil, nil, &wrongLine{command: named.Path, err: wrong}
	}
	given := grammar.Line(args)
	if err := given.Nameless(); err != nil {
		return nil, nil, &wrongLine{command: named.Path, err: err}
	}
	values, broken := grammar.Values(args, given)
	if broken != nil && !slices.Contains(args, "--help") {
		return nil, nil, &wrongLine{"config", broken, false}
	}
	line, err := read(args, values)
	if err != nil {
		return nil, nil, err
	}
	switch line.AtOnce {
	case "help":
		return printed(line.Command.Help), nil, nil
	case "version":
		return printed(func(w io.Writer) error { return build.This("agent").Print(w, false) }), nil, nil
	}
	if broken != nil { // --help is an argument of another program
		return nil, nil, &wrongLine{"config", broken, false}
	}
	if exec, ok := line.Flags.(*execFlags); ok && given.Has("environment-id") && !exec.Elsewhere() {
		// The command must not run on this machine instead.
		return nil, nil, &wrongLine{command: named.Path, err: cli.UsageError("--environment-id needs --registry")}
	}
	return line.Flags.(command), line.Overrides, nil
}

// agentOf returns the flags of a line that name the agent, for a line that the user can type again. It
// leaves out values with parts that may be secret, and values that a shell would read otherwise.
func agentOf(args []string) string {
	args, _ = commands.Here(args) // parse has reported the mistake
	given := grammar.Line(args)
	var flags []string
	for _, name := range []string{"context", "url", "registry", "environment-id"} {
		if value := given[name]; value != "" && !strings.ContainsAny(value, " ?@\"'$&;|<>\\`*") {
			flags = append(flags, "--"+name+" "+value)
		}
	}
	return strings.Join(flags, " ")
}

// read reads a line, with the values from files. The error is a *wrongLine.
func read(args []string, values cli.Values) (*cli.Line, error) {
	named, err := commands.Command(args)
	if err != nil {
		return nil, &wrongLine{command: named.Path, err: err}
	}
	line, err := commands.Read(args, values)
	if unknown, ok := errors.AsType[*cli.UnknownFlag](err); ok {
		err = cli.UsageError(commands.Find(cmp.Or(named.Path, "exec-server")).UnknownFlag(unknown.Flag))
	}
	if err != nil {
		return nil, &wrongLine{named.Path, err, len(values) > 0}
	}
	return line, nil
}

// grammar adds variables and files to a line, see [settings.Grammar].
var grammar = settings.Grammar{Program: commands, Client: new(target.Flags)}

// printed is a command that prints something, for a flag of the program itself.
type printed func(io.Writer) error

func (p printed) run(sys program.System) int { return sys.Exit(p(sys.Stdout)) }

// wrongLine is the error of a wrong command line.
type wrongLine struct {
	command string // the command whose help to name; "" for none
	err     error
	filed   bool // files set options of the command
}

func (e *wrongLine) Error() string { return e.err.Error() }

// help returns a line that names the help of the command.
func (e *wrongLine) help() string {
	switch {
	case e.filed:
		return fmt.Sprintf("agent config show %s shows which files set its options; see agent %[1]s --help", cmp.Or(e.command, "exec-server"))
	case e.command == "":
		return "see agent --help, or agent exec-server --help for the server's options"
	}
	return fmt.Sprintf("see agent %s --help", e.command)
}
