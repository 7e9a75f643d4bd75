package cli

import (
	"fmt"
	"strings"
)

// fish writes a script for fish.
func (g *script) fish() {
	fmt.Fprintf(g, "# fish completion for %s; made by: %s completion fish\n\ncomplete -c %s -f\n", g.program, g.program, g.program)
	for _, e := range g.entries {
		fmt.Fprintf(g, "complete -c %s -n __fish_use_subcommand -a %s -d %s\n", g.program, e.Name, quote(firstSentence(e.Summary)))
	}
	none := "not __fish_seen_subcommand_from " + strings.Join(commandNames(g.entries), " ")
	for i := range g.fallback.flags {
		g.fishFlag(&g.fallback.flags[i], none)
	}
	for _, e := range all(g.entries) {
		var seen []string
		for name := range strings.SplitSeq(e.Path, " ") {
			seen = append(seen, "__fish_seen_subcommand_from "+name)
		}
		condition := strings.Join(seen, "; and ")
		for i := range e.flags {
			g.fishFlag(&e.flags[i], condition)
		}
		for _, below := range e.entries {
			fmt.Fprintf(g, "complete -c %s -n %s -a %s -d %s\n", g.program,
				quote(condition+"; and not __fish_seen_subcommand_from "+strings.Join(commandNames(e.entries), " ")), below.Name, quote(firstSentence(below.Summary)))
		}
		switch offered := e.argument.fish(g.program); {
		case e.argument.Passthrough:
			fmt.Fprintf(g, "complete -c %s -n %s -a %s\n", g.program, quote(condition), quote("(__fish_complete_subcommand)"))
		case offered != "":
			fmt.Fprintf(g, "complete -c %s -n %s -a %s\n", g.program, quote(condition), quote(offered))
		}
	}
}

// fishFlag writes the line that completes a flag where the condition holds.
func (g *script) fishFlag(f *Field, condition string) {
	fmt.Fprintf(g, "complete -c %s -n %s -l %s", g.program, quote(condition), f.Name)
	if f.Short != "" {
		fmt.Fprintf(g, " -s %s", f.Short)
	}
	switch offered := f.fish(g.program); {
	case offered != "":
		fmt.Fprintf(g, " -x -a %s", quote(offered))
	case f.isFolder():
		fmt.Fprintf(g, " -x -a %s", quote("(__fish_complete_directories)"))
	case f.Path:
		g.WriteString(" -r -F")
	case !f.Boolean():
		g.WriteString(" -x")
	}
	fmt.Fprintf(g, " -d %s\n", quote(firstSentence(f.Help())))
}

// fish returns the words that complete offers for a field, or "" for any word.
func (f *Field) fish(program string) string {
	if kind := f.kind(); kind != "" {
		return fmt.Sprintf("(%s complete %s -- (commandline -opc)[2..-1] 2>/dev/null)", program, kind)
	}
	return strings.Join(f.choices(), " ")
}
