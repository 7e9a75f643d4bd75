package main

import (
	"fmt"
	"slices"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
)

// groups are options that must come from the same layer.
var groups = []cli.Group{
	{Heads: []string{"data", "nats-url"}, Rest: []string{"nats-creds", "nats-replicas"}},
	{Heads: []string{"tls-cert", "behind-proxy"}, Rest: []string{"tls-key"}},
}

// fileless are the commands that read no file, so that they work even if a file has an error.
var fileless = []string{"version", "completion"}

// read reads the line of a command, with the values from files for its options. An error is about
// the line, or about a file.
func (s system) read(commands *cli.App, command string, args []string) (*cli.Line, error) {
	var values cli.Values
	if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		if line, err := commands.Read(args, nil); err != nil || line.AtOnce != "" {
			return line, err // help works even if a file has an error
		}
	}
	if !slices.Contains(fileless, command) {
		files, err := cli.ReadFiles("registry", s.config)
		if err != nil {
			return nil, err
		}
		given, _ := commands.Given(args) // Read reports mistakes in the line below
		if values, err = valuesOf(commands, commands.Find(command), files, given); err != nil {
			return nil, err
		}
	}
	line, err := commands.Read(args, values)
	if err != nil && len(values) > 0 {
		err = fmt.Errorf("%w (registry config show %s shows which files set its options)", err, command)
	}
	return line, err
}

// valuesOf returns the values that files set for a command.
func valuesOf(commands *cli.App, c *cli.Command, files *cli.Files, given map[string]string) (cli.Values, error) {
	if files.Empty() || len(c.Below()) > 0 {
		return nil, nil
	}
	if err := files.Known(paths(commands)); err != nil {
		return nil, err
	}
	fields := c.Of(c.New())
	l, err := files.Of(c.Path, fields.Options(), cli.Shared{})
	if err != nil {
		return nil, err
	}
	return l.Merge(groups, fields.Said(given)), nil
}

// paths returns the paths of the commands whose options files can set.
func paths(commands *cli.App) (names []string) {
	for _, c := range commands.Leaves() {
		if !slices.Contains(fileless, c.Path) {
			names = append(names, c.Path)
		}
	}
	return names
}

// configShowFlags name the options to show.
type configShowFlags struct {
	listFlags

	Line []string `arg:"" bytes:"" optional:"" passthrough:"" name:"command" help:"Command, with or without flags: show the value that each of its options would have. Default: show the options that are set, for all commands."`
}

func (*configShowFlags) Help() string {
	return `Every option that has an environment variable can also be set in a file. If an option is set in several places, the last of these wins: the default; /etc/execagent/config.toml; config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config; the variable; the flag; /etc/execagent/requirements.toml. If the requirements override a flag or a variable, a line on standard error says so.

In a file each command has a table inside the table registry. The keys of the table are the names of the command's flags. A relative path starts at the folder of the file; ~/ is your home.

    [registry.serve]
    listen = "127.0.0.1:8080"
    streams = 500

    [registry.keys.create]
    environment = "ci-*"

FROM shows where the value comes from: a file and a line, a variable, a flag, or default. Values that may be secret are not shown.

Examples:

    registry config show
    registry config show serve
    registry config show keys create --role harness
    registry config show -o json serve`
}

func (f *configShowFlags) run(sys system) error {
	files, err := cli.ReadFiles("registry", sys.config)
	if err != nil {
		return cli.UsageError(err.Error())
	}
	if files.Hidden() {
		sys.complain("you may not read the folder " + cli.HostFolder + ", so files in it have no effect for you")
	}
	all, err := f.explain(commands(sys), files)
	if err != nil {
		return cli.UsageError(err.Error())
	}
	return program.PrintList(sys.stdout, f.json(), all, cli.ShownHeading, func(s cli.Shown) []string { return s.Row() })
}

// explain returns the options of one command or of all commands.
func (f *configShowFlags) explain(commands *cli.App, files *cli.Files) (all []cli.Shown, err error) {
	line := f.Line
	if len(line) > 0 && line[0] == "--" {
		line = line[1:]
	}
	if len(line) == 0 {
		for _, path := range paths(commands) {
			options, err := explain(commands, commands.Find(path), files, nil)
			if err != nil {
				return nil, err
			}
			all = append(all, slices.DeleteFunc(options, func(s cli.Shown) bool { return !s.Set() })...)
		}
		return all, nil
	}
	c, err := commands.Command(line)
	if err != nil {
		return nil, err
	}
	if c.Path == "" {
		c = commands.Find("serve")
	}
	if !slices.Contains(paths(commands), c.Path) {
		return nil, fmt.Errorf("no options of %s can be set in files", c.Path)
	}
	given, unknown := commands.Given(line)
	if unknown != nil {
		return nil, unknown
	}
	return explain(commands, c, files, given)
}

// explain returns the options of a command.
func explain(commands *cli.App, c *cli.Command, files *cli.Files, given map[string]string) ([]cli.Shown, error) {
	values, err := valuesOf(commands, c, files, given)
	if err != nil {
		return nil, err
	}
	return cli.Explain(c.Path, c.Of(c.New()).Options(), values, given), nil
}
