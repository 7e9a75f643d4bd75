package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/execagent/execagent/cmd/internal/commandline"
	"github.com/execagent/execagent/cmd/internal/layers"
)

// groups are the options of which one layer says all.
var groups = []layers.Group{
	{Heads: []string{"data", "nats-url"}, Rest: []string{"nats-creds", "nats-replicas"}},
	{Heads: []string{"tls-cert", "behind-proxy"}, Rest: []string{"tls-key"}},
}

// fileless are the commands that no file is read for: they work whatever is wrong with one.
var fileless = []string{"version", "completion", "man"}

// parse parses the line of a command, with what files say about its options. overrides says what
// has no effect because of them. An error is about the line, or about a file.
func (s system) parse(parser *kong.Kong, command string, args []string) (parsed *kong.Context, overrides []string, err error) {
	command = cmp.Or(command, "serve")
	var values layers.Values
	if !slices.Contains(fileless, command) && !slices.Contains(args, "--help") && !slices.Contains(args, "-h") {
		files, err := layers.Read("registry", s.config)
		if err != nil {
			return nil, nil, err
		}
		given, _ := given(parser, args) // of an error the parser says why
		if values, err = valuesOf(parser, files, command, given); err != nil {
			return nil, nil, err
		}
	}
	bound, err := layers.Bind(parser, command, values)
	if err != nil {
		return nil, nil, err
	}
	if parsed, err = commandline.Parse(parser, args); err != nil {
		err = commandline.Wrong(err)
		if len(values) > 0 {
			err = fmt.Errorf("%w (registry config show %s tells which files set options of it)", err, command)
		}
		return nil, nil, err
	}
	return parsed, bound.Overrides(parsed), nil
}

// given returns the values of the flags that are on a line, as far as that can be read.
func given(parser *kong.Kong, args []string) (values map[string]string, err error) {
	values = map[string]string{}
	traced, err := kong.Trace(parser, args)
	if err != nil {
		return values, err
	}
	for _, path := range traced.Path {
		if path.Flag != nil {
			values[path.Flag.Name] = fmt.Sprint(traced.FlagValue(path.Flag))
		}
	}
	return values, traced.Error
}

// valuesOf returns what files say about the options of a command.
func valuesOf(parser *kong.Kong, files *layers.Files, command string, given map[string]string) (layers.Values, error) {
	node := layers.Find(parser.Model, command)
	if files.Empty() || node == nil {
		return nil, nil
	}
	if err := files.Known(commandsOf(parser.Model.Node, "")); err != nil {
		return nil, err
	}
	options := layers.Options(node)
	l, err := files.Of(command, options, layers.Shared{})
	if err != nil {
		return nil, err
	}
	return l.Merge(groups, func(option string) (string, bool) {
		if text, ok := given[option]; ok {
			return text, true
		}
		i := slices.IndexFunc(options, func(o layers.Option) bool { return o.Name == option })
		if i < 0 {
			return "", false
		}
		_, text, ok := layers.Variable(options[i].Env, options[i].Path)
		return text, ok
	}), nil
}

// commandsOf are the commands that files can set options of, with those above them.
func commandsOf(node *kong.Node, above string) (names []string) {
	for _, child := range node.Children {
		switch {
		case len(child.Children) > 0:
			names = append(names, commandsOf(child, above+child.Name+" ")...)
		case !slices.Contains(fileless, child.Name):
			names = append(names, above+child.Name)
		}
	}
	return names
}

// configShowFlags say of which options to tell.
type configShowFlags struct {
	listFlags

	Line []string `arg:"" optional:"" passthrough:"" name:"command" help:"Command, with flags or without them: tell of all its options, and what would count. Default: of all commands, the options that are set."`
}

func (*configShowFlags) Help() string {
	return `Every option that has a variable can be set in a file too. What counts is, each over the one before it: the default; /etc/execagent/config.toml; config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config; the variable; the flag; /etc/execagent/requirements.toml, over which nothing is. Where a flag or a variable asks for something else than is required, a line on standard error says so.

In a file each command has a table below that of registry, in which the keys are the names of its flags. A path is relative to the folder of the file; ~/ is your home.

    [registry.serve]
    listen = "127.0.0.1:8080"
    streams = 500

    [registry.keys.create]
    environment = "ci-*"

FROM is the file and the line, the variable, the flag, or default. What may be secret is not shown.

Examples:

    registry config show
    registry config show serve
    registry config show keys create --role harness
    registry config show -o json serve`
}

func (f *configShowFlags) run(sys system) error {
	parser, _, err := newParser(sys)
	if err != nil {
		return err
	}
	files, err := layers.Read("registry", sys.config)
	if err != nil {
		return err
	}
	if files.Hidden() {
		sys.complain("you may not look into " + layers.Folder + ": files there say nothing to you")
	}
	all, err := f.explain(parser, files)
	if err != nil {
		return err
	}
	if f.json() {
		return printJSON(sys.stdout, all)
	}
	return printTable(sys.stdout, layers.Heading, len(all), func(i int) []any {
		var cells []any
		for _, cell := range all[i].Row() {
			cells = append(cells, cell)
		}
		return cells
	})
}

// explain returns the options, of one command or of all.
func (f *configShowFlags) explain(parser *kong.Kong, files *layers.Files) (all []layers.Shown, err error) {
	line := f.Line
	if len(line) > 0 && line[0] == "--" {
		line = line[1:]
	}
	commands := commandsOf(parser.Model.Node, "")
	if len(line) > 0 {
		command, err := commandline.Command(parser.Model, line, nil)
		if err != nil {
			return nil, err
		}
		if command = cmp.Or(command, "serve"); !slices.Contains(commands, command) {
			return nil, fmt.Errorf("no options of %s can be set in files", command)
		}
		commands = []string{command}
	}
	on := map[string]string{}
	if len(line) > 0 {
		if on, err = given(parser, line); err != nil {
			return nil, commandline.Wrong(err)
		}
	}
	for _, command := range commands {
		values, err := valuesOf(parser, files, command, on)
		if err != nil {
			return nil, err
		}
		options := layers.Explain(command, layers.Options(layers.Find(parser.Model, command)), values, on)
		if len(line) == 0 {
			options = slices.DeleteFunc(options, func(s layers.Shown) bool { return !s.Set() })
		}
		all = append(all, options...)
	}
	return all, nil
}
