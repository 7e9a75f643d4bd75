package cli

import (
	"bytes"
	"strings"
)

// Completion returns the script with which a shell completes command lines of the program: for
// bash, for zsh, and for every other name for fish. It contains all commands and flags, and the
// words that flags accept. So completing a line starts no program, except for words that only the
// program knows. A flag or an argument with the tag complete:"KIND" accepts such words. The script
// gets them, each on a line, from
//
//	PROGRAM complete KIND -- WORDS OF THE LINE SO FAR
func (p *App) Completion(shell string) []byte {
	g := script{program: p.Name, entries: p.Root().entries()}
	for _, e := range g.entries {
		if e.Default {
			g.fallback = e
		}
	}
	switch shell {
	case "bash":
		g.bash()
	case "zsh":
		g.zsh()
	default:
		g.fish()
	}
	return g.Bytes()
}

// script is a script that is being written.
type script struct {
	bytes.Buffer
	program  string
	entries  []completedCommand
	fallback completedCommand // the default command: its flags may come without its name
}

// completedCommand is a command in the form that scripts need.
type completedCommand struct {
	*Command
	entries  []completedCommand // the commands below it
	flags    Fields
	argument Field // the argument with known words, else the last one
	many     bool  // there may be more than one argument
}

// entries returns the commands below c.
func (c *Command) entries() (all []completedCommand) {
	for _, child := range c.Shown() {
		e := completedCommand{Command: child, entries: child.entries(), flags: c.program.own()}
		for _, f := range child.Of(child.New()) {
			switch {
			case f.Arguments:
				e.many = f.list()
				if e.argument.kind() == "" {
					e.argument = f
				}
			case !f.Hidden:
				e.flags = append(e.flags, f)
			}
		}
		all = append(all, e)
	}
	return all
}

// kind returns the kind of the words that the program is asked for, or "" if there is none.
func (f *Field) kind() string { return f.tag.Get("complete") }

// isFolder reports whether the value of a flag is the path of a directory.
func (f *Field) isFolder() bool { return f.Name == "dir" || f.Name == "workspace" }

// ways returns the ways to write the flag.
func (f *Field) ways() []string {
	if f.Short == "" {
		return []string{"--" + f.Name}
	}
	return []string{"--" + f.Name, "-" + f.Short}
}

// firstSentence returns the first sentence of a help text, without its full stop.
func firstSentence(help string) string {
	help, _, _ = strings.Cut(help, ". ")
	return strings.TrimSuffix(help, ".")
}

// quote quotes a word so that each of the three shells reads it unchanged.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// all returns the entries and all entries below them.
func all(entries []completedCommand) (list []completedCommand) {
	for _, e := range entries {
		list = append(append(list, e), all(e.entries)...)
	}
	return list
}

// commandNames returns the names of the commands of entries.
func commandNames(entries []completedCommand) (names []string) {
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// flagNames returns all flags of a command, each in every way to write it.
func (e *completedCommand) flagNames() (names []string) {
	for i := range e.flags {
		names = append(names, e.flags[i].ways()...)
	}
	return names
}

// valued returns the flags of a command that take a value.
func (e *completedCommand) valued() (names []string) {
	for i := range e.flags {
		if f := &e.flags[i]; !f.Boolean() {
			names = append(names, f.ways()...)
		}
	}
	return names
}
