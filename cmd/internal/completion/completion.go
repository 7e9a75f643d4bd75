// Package completion makes the scripts with which bash, zsh and fish complete
// command lines of a program. A script is made from the grammar of the parser, so
// it knows all commands and flags and the words that flags take. It holds all of
// that itself: completing a line starts no program, but for words that only the
// program knows. A flag or an argument with the tag complete:"KIND" takes such words:
// the script gets them, a line each, from
//
//	PROGRAM complete KIND -- WORDS OF THE LINE SO FAR
package completion

import (
	"bytes"
	"strings"

	"github.com/alecthomas/kong"
)

// Script returns the script for a shell: bash or zsh, and for every other name
// fish. app is the grammar, as kong.New makes it.
func Script(shell string, app *kong.Application) []byte {
	g := newGrammar(app)
	var script bytes.Buffer
	switch shell {
	case "bash":
		g.bash(&script)
	case "zsh":
		g.zsh(&script)
	default:
		g.fish(&script)
	}
	return script.Bytes()
}

// grammar is the part of the parser's grammar that scripts complete.
type grammar struct {
	program  string
	commands []command
	// fallback is the default command: its flags may come without its name.
	fallback command
}

// command is one command of the program.
type command struct {
	name, help string
	path       []string  // names of the commands above it, and its own
	commands   []command // below it
	flags      []flag
	argument   words // what an argument may be
	program    bool  // the arguments are the command line of another program
	many       bool  // there may be more than one argument
}

// words are what a flag or an argument takes.
type words struct {
	known []string // empty: anything
	kind  string   // of the words that the program is asked for; "": none
}

// flag is one flag of a command.
type flag struct {
	long, short string // with their dashes; short may be ""
	help        string
	argument    bool // the flag takes an argument
	words       words
	files, dirs bool // the argument is a path, or the path of a directory
}

// names returns the ways to write the flag.
func (f flag) names() []string {
	if f.short == "" {
		return []string{f.long}
	}
	return []string{f.long, f.short}
}

func newGrammar(app *kong.Application) grammar {
	g := grammar{program: app.Name}
	for _, node := range app.Children {
		if node.Hidden {
			continue
		}
		c := newCommand(node, nil)
		g.commands = append(g.commands, c)
		if app.DefaultCmd == node {
			g.fallback = c
		}
	}
	return g
}

func newCommand(node *kong.Node, above []string) command {
	c := command{name: node.Name, help: oneLine(node.Help), path: append(above[:len(above):len(above)], node.Name)}
	for _, child := range node.Children {
		if !child.Hidden {
			c.commands = append(c.commands, newCommand(child, c.path))
		}
	}
	for _, group := range node.AllFlags(true) {
		for _, model := range group {
			c.flags = append(c.flags, newFlag(model))
		}
	}
	for _, positional := range node.Positional {
		c.program = positional.Passthrough
		c.many = positional.IsCumulative()
		if c.argument.kind == "" { // else the words are for the argument before
			c.argument = newWords(positional)
		}
	}
	return c
}

func newWords(model *kong.Value) words {
	w := words{kind: model.Tag.Get("complete")}
	if model.Enum != "" {
		for _, word := range model.EnumSlice() {
			if word != "" {
				w.known = append(w.known, word)
			}
		}
	}
	return w
}

func newFlag(model *kong.Flag) flag {
	f := flag{
		long:     "--" + model.Name,
		help:     oneLine(model.Help),
		argument: !model.IsBool(),
		words:    newWords(model.Value),
		files:    model.Tag.Type == "path",
		dirs:     model.Name == "dir" || model.Name == "workspace",
	}
	if model.Short != 0 {
		f.short = "-" + string(model.Short)
	}
	return f
}

// oneLine returns the first sentence of a help text, without its full stop.
func oneLine(help string) string {
	help, _, _ = strings.Cut(help, ". ")
	return strings.TrimSuffix(help, ".")
}

// quote quotes a word so that each of the three shells takes it as it is.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// all returns commands with all those below them.
func all(commands []command) (list []command) {
	for _, c := range commands {
		list = append(append(list, c), all(c.commands)...)
	}
	return list
}

// names returns the names of commands.
func names(commands []command) []string {
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.name
	}
	return names
}

// flagNames returns all flags of a command, each in every way to write it.
func (c command) flagNames() []string {
	var names []string
	for _, f := range c.flags {
		names = append(names, f.names()...)
	}
	return names
}

// valued returns the flags of a command that take an argument.
func (c command) valued() []string {
	var names []string
	for _, f := range c.flags {
		if f.argument {
			names = append(names, f.names()...)
		}
	}
	return names
}
