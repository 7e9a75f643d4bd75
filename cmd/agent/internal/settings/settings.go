package settings

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/cli"
)

// groups are options that have to come from the same layer.
var groups = []cli.Group{
	{
		Heads: []string{"url", "registry", "context", "local", "probe"},
		Rest:  []string{"token-file", "tls-ca", "tls-cert", "tls-key", "tls-server-name", "environment-id", "registry-token-file", "transport"},
	},
	{Heads: []string{"read-only", "workspace", "policy"}},
	{Heads: []string{"dir", "workdir"}},
}

// servers are the groups of the commands that serve.
var servers = []cli.Group{{
	Heads: []string{"listen", "remote"},
	Rest: []string{
		"environment-id", "remote-transport", "transport", "api-key-file", "use-agent-identity-auth", "registration-bearer-stdin",
		"executor-credential-stdin", "chatgpt-token-stdin", "chatgpt-account-id", "aws-sigv4", "aws-profile", "aws-region", "aws-service",
		"exit-on-stdin-close", "keep-revoked-sessions",
	},
}}

// Serves reports whether a command serves clients.
func Serves(command string) bool { return command == "exec-server" || command == "forward" }

// Grammar is the grammar of the command line.
type Grammar struct {
	Program *cli.App // the commands
	// Client points to an empty struct with the flags of all commands that connect to an agent.
	Client any
}

// fields returns the flags of a command, nil if there is no such command or it has subcommands.
func (g Grammar) fields(command string) cli.Fields {
	if c := g.Program.Find(command); c != nil && len(c.Below()) == 0 {
		return c.Of(c.New())
	}
	return nil
}

// commandOf returns the command of a line.
func commandOf(args []string) string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return "exec-server"
	}
	return args[0]
}

// Line returns the flags that a command line gives. It returns nil for a command with subcommands.
func (g Grammar) Line(args []string) Line {
	line, _ := g.line(args)
	return line
}

// line does what Line does, and also returns an error for the first flag that the command does not
// have.
func (g Grammar) line(args []string) (line Line, unknown error) {
	command := commandOf(args)
	fields := g.fields(command)
	if fields == nil {
		return nil, nil
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	line, wrong := fields.Given(args)
	if wrong != nil {
		unknown = cli.UsageError(g.Program.Find(command).UnknownFlag(wrong.Flag))
	}
	return line, unknown
}

// Values returns the values that files set for the command of a line. It removes variables from this
// process's environment that contradict the line or a required value, as [Line.Prefer] does. An error
// names the file and the line in it.
func (g Grammar) Values(args []string, line Line) (cli.Values, error) {
	command := commandOf(args)
	if !cli.HasTable(command) {
		if command != "config" { // which shows all variables
			line.Prefer(false)
		}
		return nil, nil
	}
	files, err := line.read()
	if err != nil {
		return nil, err
	}
	if files.Empty() {
		line.Prefer(Serves(command))
		return nil, nil
	}
	values, err := g.settle(line, files, command, g.fields(command))
	if err != nil {
		return nil, err
	}
	return values, g.check(files, command)
}

// check finds mistakes in the tables of the other commands, so that a mistake does not wait for its
// command. A server starts in spite of mistakes that are not its own.
func (g Grammar) check(files *cli.Files, command string) error {
	if Serves(command) {
		return nil
	}
	for _, table := range files.Tables() {
		if table == command {
			continue
		}
		fields := cli.Of(g.Client)
		if table != cli.ClientTable {
			fields = g.fields(table)
		}
		if _, err := files.Of(table, fields.Options(), cli.Shared{}); err != nil {
			return err
		}
	}
	return nil
}

// Explain returns the options of the command of a line, each with the place of its value. Without a
// command, it returns the options of all commands that are set. tell is called with remarks for the
// user.
func (g Grammar) Explain(args []string, tell func(string)) (all []cli.Shown, err error) {
	line, err := g.line(args)
	if err != nil {
		return nil, fmt.Errorf("%w (write the flags of config show before the command)", err)
	}
	files, err := line.read()
	if err != nil {
		return nil, err
	}
	if files.Hidden() {
		tell("you may not read the folder " + cli.HostFolder + ", so files in it have no effect for you")
	}
	if len(args) > 0 {
		return g.explain(files, commandOf(args), line)
	}
	for _, command := range g.Program.Root().Shown() {
		if !cli.HasTable(command.Name) {
			continue
		}
		options, err := g.explain(files, command.Name, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(options, func(s cli.Shown) bool { return !s.Set() })...)
	}
	return all, nil
}

func (g Grammar) explain(files *cli.Files, command string, line Line) ([]cli.Shown, error) {
	if command == cli.ClientTable {
		return nil, fmt.Errorf("%s is not a command: its table is for all commands that connect to an agent, such as exec", command)
	}
	if !cli.HasTable(command) {
		return nil, fmt.Errorf("no options of %.64q can be set in files%s", command, cli.Meant(cli.NearTable(command)))
	}
	fields := g.fields(command)
	values, err := g.settle(line, files, command, fields)
	if err != nil {
		return nil, err
	}
	return cli.Explain(command, fields.Options(), values, line), nil
}

// read reads the files. The line or AGENT_CONFIG names the user's file.
func (g Line) read() (*cli.Files, error) {
	user, err := target.LocateContexts(cmp.Or(g["config"], os.Getenv("AGENT_CONFIG")))
	if err != nil {
		user = "" // without a home directory there is no such file
	}
	return cli.ReadFiles("agent", user)
}

// settle returns the values of files, and removes variables that contradict them or the line.
func (g Grammar) settle(line Line, files *cli.Files, command string, fields cli.Fields) (cli.Values, error) {
	var shared cli.Shared
	if !Serves(command) {
		shared = cli.Shared{Options: cli.Of(g.Client).Options(), Groups: groups}
	}
	l, err := files.Of(command, fields.Options(), shared)
	if err != nil {
		return nil, err
	}
	all := Line{}
	maps.Copy(all, line)
	for name, v := range l.Required() {
		all[name] = strings.Join(v.Texts, ",")
	}
	all.Prefer(Serves(command))
	return l.Merge(groupsOf(command), fields.Said(line)), nil
}

func groupsOf(command string) []cli.Group {
	if Serves(command) {
		return servers
	}
	return groups
}
