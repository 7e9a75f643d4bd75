package completion

import (
	"bytes"
	"fmt"
	"strings"
)

// fish writes a script for fish.
func (g grammar) fish(w *bytes.Buffer) {
	fmt.Fprintf(w, "# fish completion for %s; made by: %s completion fish\n\ncomplete -c %s -f\n", g.program, g.program, g.program)
	for _, c := range g.commands {
		fmt.Fprintf(w, "complete -c %s -n __fish_use_subcommand -a %s -d %s\n", g.program, c.name, quote(c.help))
	}
	none := "not __fish_seen_subcommand_from " + strings.Join(names(g.commands), " ")
	for _, f := range g.fallback.flags {
		f.fish(w, g.program, none)
	}
	for _, c := range all(g.commands) {
		var seen []string
		for _, name := range c.path {
			seen = append(seen, "__fish_seen_subcommand_from "+name)
		}
		condition := strings.Join(seen, "; and ")
		for _, f := range c.flags {
			f.fish(w, g.program, condition)
		}
		for _, below := range c.commands {
			fmt.Fprintf(w, "complete -c %s -n %s -a %s -d %s\n", g.program,
				quote(condition+"; and not __fish_seen_subcommand_from "+strings.Join(names(c.commands), " ")), below.name, quote(below.help))
		}
		switch offered := c.argument.fish(g.program); {
		case c.program:
			fmt.Fprintf(w, "complete -c %s -n %s -a %s\n", g.program, quote(condition), quote("(__fish_complete_subcommand)"))
		case offered != "":
			fmt.Fprintf(w, "complete -c %s -n %s -a %s\n", g.program, quote(condition), quote(offered))
		}
	}
}

// fish writes the line that completes the flag where the condition holds.
func (f flag) fish(w *bytes.Buffer, program, condition string) {
	fmt.Fprintf(w, "complete -c %s -n %s -l %s", program, quote(condition), strings.TrimPrefix(f.long, "--"))
	if f.short != "" {
		fmt.Fprintf(w, " -s %s", strings.TrimPrefix(f.short, "-"))
	}
	switch offered := f.words.fish(program); {
	case offered != "":
		fmt.Fprintf(w, " -x -a %s", quote(offered))
	case f.dirs:
		fmt.Fprintf(w, " -x -a %s", quote("(__fish_complete_directories)"))
	case f.files:
		w.WriteString(" -r -F")
	case f.argument:
		w.WriteString(" -x")
	}
	fmt.Fprintf(w, " -d %s\n", quote(f.help))
}

// fish is what complete offers for the words, "" for any word.
func (s words) fish(program string) string {
	if s.kind != "" {
		return fmt.Sprintf("(%s complete %s -- (commandline -opc)[2..-1] 2>/dev/null)", program, s.kind)
	}
	return strings.Join(s.known, " ")
}
