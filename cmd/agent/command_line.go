package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/execagent/execagent/cmd/agent/habits"
	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/agent/settings"
	"github.com/execagent/execagent/cmd/agent/target"
	"github.com/execagent/execagent/cmd/internal/commandline"
	"github.com/execagent/execagent/cmd/internal/layers"
	"github.com/execagent/execagent/cmd/internal/program"
)

// command is what a command line leads to: the flags of a command, as they are given. Of its own
// accord the parser calls two methods more, if they are there: Help, for the help below the line of
// the grammar, and Check, which finds flags that contradict each other.
type command interface {
	// run does what the flags say, and returns the exit code.
	run(program.System) int
}

// commandLine is the grammar of the command line: the only place that reads
// flags and AGENT_ variables. The name of a field is that of its command, Cp of agent cp; its type
// is a [command], or has fields that are.
type commandLine struct {
	ExecServer   serverFlags       `cmd:"" default:"withargs" help:"Serve clients over WebSocket or stdio. This is the default command."`
	Forward      forwardFlags      `cmd:"" help:"Register a WebSocket exec-server as a remote environment."`
	Connect      connectFlags      `cmd:"" help:"Offer an agent behind a registry to programs on this machine."`
	Exec         execFlags         `cmd:"" help:"Run a command on an agent, as if it ran here."`
	Cp           cpFlags           `cmd:"" help:"Copy files and directories to an agent, or from it."`
	Ls           lsFlags           `cmd:"" help:"List files of an agent."`
	Cat          catFlags          `cmd:"" help:"Print files of an agent."`
	Rm           rmFlags           `cmd:"" help:"Remove files of an agent."`
	Mkdir        mkdirFlags        `cmd:"" help:"Make directories at an agent."`
	ApplyPatch   applyPatchFlags   `cmd:"" help:"Change files as a patch of a model says, here or at an agent."`
	Skills       skillsFlags       `cmd:"" help:"List the skills and plugins that are installed at an agent."`
	Sandbox      sandboxFlags      `cmd:"" help:"Run a command here, confined."`
	Doctor       doctorFlags       `cmd:"" help:"Tell what this host can enforce, and how to get what is missing."`
	PortForward  portForwardFlags  `cmd:"" help:"Bring ports of this machine to ports on an agent's side."`
	ProxyCommand proxyCommandFlags `cmd:"" help:"Join standard input and output with a port on an agent's side, as ssh's ProxyCommand."`
	Health       healthFlags       `cmd:"" help:"Ask an agent whether it serves, for health checks."`
	Install      installFlags      `cmd:"" help:"Copy this program to a folder, for an image with tools."`

	Ps     psFlags     `cmd:"" help:"List the sessions with a name, and what runs in them."`
	Logs   logsFlags   `cmd:"" help:"Print what a command in a session has printed."`
	Attach attachFlags `cmd:"" help:"Join a command that runs in a session."`
	Wait   waitFlags   `cmd:"" help:"Wait for the commands of sessions, and end as they do."`
	Kill   killFlags   `cmd:"" help:"Send a signal to what runs in sessions."`
	End    endFlags    `cmd:"" help:"End sessions: forget them, with what they have printed."`

	Config       configCommands    `cmd:"" help:"Tell which options are set, and where."`
	Context      contextFlags      `cmd:"" help:"Name agents, and choose the one that commands use."`
	Login        loginFlags        `cmd:"" help:"Store the key for a registry, and name it."`
	Environments environmentsFlags `cmd:"" help:"List the environments of a registry that the key is for."`

	Execpolicy execpolicyFlags `cmd:"" help:"Ask files of rules about commands."`

	Version    versionFlags    `cmd:"" help:"Print the version and what it is compatible with."`
	Completion completionFlags `cmd:"" help:"Print a completion script for a shell."`
	Man        manFlags        `cmd:"" help:"Print a man page."`
	Complete   completeFlags   `cmd:"" hidden:"" help:"Print words for a completion script."`

	ShowVersion versionFlag `name:"version" help:"Print the version, as agent version does."`
}

const description = `Runs processes, file operations and HTTP requests for clients that speak the protocol of codex exec-server.

The options of the server need no command before them: agent exec-server --help lists them (--listen, --ws-auth and the rest).

Every option can also be given as an environment variable, named in its help, and in files: agent config tells of them. Secrets are read from files.

Examples:

  agent exec -- make test                          run a command through an embedded agent
  agent --listen ws://127.0.0.1:7000               serve on a port
  agent exec --url ws://127.0.0.1:7000 -t -- bash  and use it
  agent exec --url ... -d --name job -- make test  start it and go; agent ps, logs -f, attach, wait, kill
  agent cp --url ws://127.0.0.1:7000 site :/srv    copy files to it
  agent --listen stdio                             serve on standard input and output
  agent --remote https://HOST --environment-id ID  serve as a remote environment
  agent sandbox --workspace . -- make test         run a command that can write only here
  agent doctor                                     tell which sandboxes can be enforced here`

// errEmpty is why a command line of another program is refused that has no program.
var errEmpty = errors.New("the command is empty")

// validCommand refuses a command line of another program that is empty, or that begins with
// what looks like a flag of ours and is not.
func validCommand(name string, command []string, flags any) error {
	switch first := first(command); {
	case first == "" || first == "--" && (len(command) == 1 || command[1] == ""):
		return errEmpty
	case first != "--" && strings.HasPrefix(first, "-") && first != "-":
		return errors.New(unknownFlag(name, first, flags) + " (a command that begins with - comes after --)")
	}
	return nil
}

func first(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// parse returns the flags of the command that the arguments name. Their type, for
// example *execFlags, tells which command it is. If the command line is wrong, the
// error is a *wrongLine.
//
// parse builds the parser only for a line that plain.Parse cannot read. --help is
// such a line, and so is every wrong one: only the parser can say what is wrong.
//
// overrides says what on the line, or in variables, has no effect because of a file.
func parse(args []string, stdout, stderr io.Writer) (flags command, overrides []string, err error) {
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	if args, err = asHere(args); err != nil {
		return nil, nil, &wrongLine{command: commandOf(args), err: err}
	}
	line := grammar.Line(args)
	if err := line.Nameless(); err != nil {
		return nil, nil, &wrongLine{command: commandOf(args), err: err}
	}
	values, broken := grammar.Values(args, line)
	if broken != nil && !slices.Contains(args, "--help") {
		return nil, nil, &wrongLine{"config", broken, false}
	}
	if flags, overrides = parseOne(args, values); flags == nil {
		if flags, overrides, err = parseAny(args, values, stdout, stderr); err != nil {
			return nil, nil, err
		}
	}
	if broken != nil { // --help was for another program
		return nil, nil, &wrongLine{"config", broken, false}
	}
	if exec, ok := flags.(*execFlags); ok && line.Has("environment-id") && !exec.Elsewhere() {
		// The command must not run here instead.
		return nil, nil, &wrongLine{command: commandOf(args), err: commandline.UsageError("--environment-id needs --registry")}
	}
	return flags, overrides, nil
}

// grammar finds out what counts beside the line: see [settings.Grammar].
var grammar = settings.Grammar{Flags: func(command string) any {
	if flags := newFlags(command); flags != nil {
		return flags
	}
	return nil
}, Client: new(target.Flags)}

// parseAny is parse with the parser.
func parseAny(args []string, values layers.Values, stdout, stderr io.Writer) (flags command, overrides []string, err error) {
	parser, err := newParser(stdout, stderr)
	if err != nil {
		return nil, nil, err
	}
	name, err := commandline.Command(parser.Model, args, habits.Commands)
	if err != nil {
		return nil, nil, &wrongLine{command: name, err: err}
	}
	bound, err := layers.Bind(parser, cmp.Or(name, "exec-server"), values)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := commandline.Parse(parser, args)
	if err != nil {
		return nil, nil, &wrongLine{name, wrong(name, err), len(values) > 0}
	}
	return parsed.Selected().Target.Addr().Interface().(command), bound.Overrides(parsed), nil
}

// wrongLine is the error of a command line that is wrong.
type wrongLine struct {
	command string // whose help has the right ones; "" for none
	err     error
	filed   bool // files say something about its options
}

func (e *wrongLine) Error() string { return e.err.Error() }

// help names the help of the command.
func (e *wrongLine) help() string {
	switch {
	case e.filed:
		return fmt.Sprintf("agent config show %s tells which files set options of it; see agent %[1]s --help", cmp.Or(e.command, "exec-server"))
	case e.command == "":
		return "see agent --help, for the options of the server agent exec-server --help"
	}
	return fmt.Sprintf("see agent %s --help", e.command)
}

// commandOf is the word of a command line that names the command, or "".
func commandOf(args []string) string {
	if first := first(args); !strings.HasPrefix(first, "-") {
		return first
	}
	return ""
}

// parseOne returns the flags of a plain line, without the parser. It returns nil
// for every other line.
func parseOne(args []string, values layers.Values) (flags command, overrides []string) {
	name := "exec-server" // the default
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if flags = newFlags(name); flags == nil {
		return nil, nil
	}
	overrides, ok := plain.Parse(args, flags, values)
	if !ok {
		return nil, nil
	}
	return flags, overrides
}

// newFlags returns empty flags for a command. It returns nil for a word that is no command, and for
// a command that has others below it, which only the parser reads.
func newFlags(name string) command {
	all := reflect.TypeFor[commandLine]()
	for field := range all.Fields() {
		if _, ok := field.Tag.Lookup("cmd"); ok && plain.Dashed(field.Name) == name {
			flags, _ := reflect.New(field.Type).Interface().(command)
			return flags
		}
	}
	return nil
}

// commandNames returns the names of all commands.
func commandNames() (names []string) {
	all := reflect.TypeFor[commandLine]()
	for field := range all.Fields() {
		_, isCommand := field.Tag.Lookup("cmd")
		if _, hidden := field.Tag.Lookup("hidden"); isCommand && !hidden {
			names = append(names, plain.Dashed(field.Name))
		}
	}
	return names
}

// refusedByForward tells whether forward takes a flag only to say that it has no meaning there, so
// that its help does not list it: those about who may connect, and those of the direct transport.
func refusedByForward(flag *kong.Flag) bool {
	return flag.Group != nil && flag.Group.Key == "auth" || strings.HasPrefix(flag.Name, "aws-") || strings.HasSuffix(flag.Name, "transport")
}

// newParser makes the parser of the whole command line.
func newParser(stdout, stderr io.Writer) (*kong.Kong, error) {
	var grammar commandLine
	parser, err := kong.New(&grammar,
		kong.Name("agent"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoAppDescFormat: true, FlagsLast: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "remote", Title: "Remote mode:"},
			{Key: "auth", Title: "Authentication of WebSocket clients:"},
			{Key: "sandbox", Title: "Confined commands:"},
			{Key: "policy", Title: "Rules about commands:"},
			{Key: "log", Title: "Log:"},
		}))
	if err != nil {
		return nil, err
	}
	for _, command := range parser.Model.Children {
		for _, flag := range command.Flags {
			flag.Hidden = flag.Hidden || command.Name == "forward" && refusedByForward(flag)
		}
	}
	commandline.NoEmptyPaths(parser.Model.Node)
	return parser, nil
}
