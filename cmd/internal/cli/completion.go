package cli

import (
	"bytes"
	"strings"
)

// Completion is the script with which a shell completes command lines of the program: bash or zsh,
// and for every other name fish. It knows all commands and flags and the words that flags take, so
// completing a line starts no program, but for words that only the program knows. A flag or an
// argument with the tag complete:"KIND" takes such words: the script gets them, a line each, from
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

// script is a script as it is written.
type script struct {
	bytes.Buffer
	program  string
	entries  []completedCommand
	fallback completedCommand // of the default command: its flags may come without its name
}

// completedCommand is a command as scripts have it.
type completedCommand struct {
	*Command
	entries  []completedCommand // below it
	flags    Fields
	argument Field // of the arguments the one with known words, else the last
	many     bool  // there may be more than one argument
}

// entries are those of the commands below one.
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

// kind is that of the words that the program is asked for, "" for none.
func (f *Field) kind() string { return f.tag.Get("complete") }

// isFolder reports whether the value of a flag is the path of a directory.
func (f *Field) isFolder() bool { return f.Name == "dir" || f.Name == "workspace" }

// ways are the ways to write the flag.
func (f *Field) ways() []string {
	if f.Short == "" {
		return []string{"--" + f.Name}
	}
	return []string{"--" + f.Name, "-" + f.Short}
}

// firstSentence is that of a help text, without its full stop.
func firstSentence(help string) string {
	help, _, _ = strings.Cut(help, ". ")
	return strings.TrimSuffix(help, ".")
}

// quote quotes a word so that each of the three shells takes it as it is.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// all returns entries with all those below them.
func all(entries []completedCommand) (list []completedCommand) {
	for _, e := range entries {
		list = append(append(list, e), all(e.entries)...)
	}
	return list
}

// commandNames are those of the commands of entries.
func commandNames(entries []completedCommand) (names []string) {
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// flagNames are all flags of a command, each in every way to write it.
func (e *completedCommand) flagNames() (names []string) {
	for i := range e.flags {
		names = append(names, e.flags[i].ways()...)
	}
	return names
}

// valued are the flags of a command that take a value.
func (e *completedCommand) valued() (names []string) {
	for i := range e.flags {
		if f := &e.flags[i]; !f.Boolean() {
			names = append(names, f.ways()...)
		}
	}
	return names
}
