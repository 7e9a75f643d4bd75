package main

import (
	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
)

// configCommands are the commands about the files that set options.
type configCommands struct {
	Show configShowFlags `cmd:"" help:"Tell which options are set, and where."`
}

func (*configCommands) Help() string {
	return `Every option that has a variable can be set in a file too. What counts is, each over the one before it: the default; /etc/execagent/config.toml; config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config, which has the contexts too; the variable; the flag; /etc/execagent/requirements.toml, over which nothing is. Where a flag or a variable asks for something else than is required, a line on standard error says so.

In a file each command has a table, in which the keys are the names of its flags. exec-server is the server. The table client is for all commands that reach an agent; one of a command is over it. A path is relative to the folder of the file; ~/ is your home. A key that is not known is an error, and so is a file that somebody else could have written.

    [client]
    url = "wss://build.example.com"
    token-file = "token"

    [exec-server]
    listen = "unix:///run/agent.sock"
    session-ttl = "5m"

    [sandbox]
    workspace = ["/srv/build"]
    network = ["off"]

Of options of which only one makes sense (--url, --registry, --context, and what belongs to them, such as tokens) the strongest layer says all.`
}

// configShowFlags say of which options to tell.
type configShowFlags struct {
	listFlags

	Line []string `arg:"" optional:"" passthrough:"" name:"command" help:"Command, with flags or without them: tell of all its options, and what would count. Default: of all commands, the options that are set."`
}

func (*configShowFlags) Help() string {
	return `FROM is the file and the line, the variable, the flag, or default. What may be secret is not shown. Without a command all files are checked.

Examples:

    agent config show
    agent config show exec-server
    agent config show exec --wait 5s
    agent config show -o json sandbox`
}

func (f *configShowFlags) run(sys program.System) int {
	if first(f.Line) == "--" {
		f.Line = f.Line[1:]
	}
	all, err := grammar.Explain(f.Line, func(what string) { program.Complain(sys.Stderr, what) })
	if err != nil {
		program.Complain(sys.Stderr, err)
		return program.ExitUsage
	}
	return sys.Exit(printList(sys.Stdout, f.listFlags, all, func(s cli.Shown) string { return s.Command + "." + s.Option }, cli.ShownHeading,
		func(s cli.Shown) []string { return s.Row() }))
}
