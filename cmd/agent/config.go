package main

import (
	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
)

// configCommands are the commands about the files that set options.
type configCommands struct {
	Show configShowFlags `cmd:"" help:"Show which options are set, and where."`
}

func (*configCommands) Help() string {
	return `Every option that has an environment variable can also be set in a file. If an option is set in several places, the last of these wins: the default; /etc/execagent/config.toml; config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config, which also holds the contexts; the variable; the flag; /etc/execagent/requirements.toml. If the requirements override a flag or a variable, a line on standard error says so.

In a file each command has a table. The keys of the table are the names of the command's flags. The table exec-server is for the server. The table client is for all commands that connect to an agent; the command's own table overrides it. A relative path starts at the folder of the file; ~/ is your home. An unknown key is an error, and so is a file that another user can write.

    [client]
    url = "wss://build.example.com"
    token-file = "token"

    [exec-server]
    listen = "unix:///run/agent.sock"
    session-ttl = "5m"

    [sandbox]
    workspace = ["/srv/build"]
    network = ["off"]

--url, --registry and --context exclude each other. The last of the places above that sets one of them also decides the options that belong to it, such as the token.`
}

// configShowFlags name the options to show.
type configShowFlags struct {
	listFlags

	Line []string `arg:"" bytes:"" optional:"" passthrough:"" name:"command" help:"Command, with or without flags: show the value that each of its options would have. Default: show the options that are set, for all commands."`
}

func (*configShowFlags) Help() string {
	return `FROM shows where the value comes from: a file and a line, a variable, a flag, or default. Values that may be secret are not shown. Without a command, all tables of the files are checked for mistakes.

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
