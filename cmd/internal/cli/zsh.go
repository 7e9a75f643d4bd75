package cli

import (
	"fmt"
	"strings"
)

// zsh writes a script for zsh. It works both ways: in a folder of fpath, where zsh
// loads it when it is needed, and with source.
func (g *script) zsh() {
	g.text(`#compdef PROGRAM
# zsh completion for PROGRAM; made by: PROGRAM completion zsh

# _PROGRAM_ask KIND adds the words that the program knows.
_PROGRAM_ask() {
	local -a known
	known=("${(@f)$(PROGRAM complete $1 -- "${(@)line_words}" 2>/dev/null)}")
	compadd -a known
}

_PROGRAM() {
	local -a line_words commands
	line_words=("${(@)words[2,CURRENT-1]}")
	local context state state_descr line
	typeset -A opt_args

`)
	g.zshCase("\t", g.entries, func() {
		g.WriteString("\t\t((CURRENT == 2)) && [[ $words[2] != -* ]] && _describe command commands\n\t\t_arguments -S -s")
		g.zshArguments(&g.fallback)
		g.WriteString("\n")
	})
	g.text(`}

if [[ $funcstack[1] == _PROGRAM ]]; then
	_PROGRAM "$@"
else
	compdef _PROGRAM PROGRAM
fi
`)
}

// zshCase writes the code that completes a line whose next word is one of the commands. otherwise
// writes the code for any other next word.
func (g *script) zshCase(indent string, entries []completedCommand, otherwise func()) {
	fmt.Fprintf(g, "%scommands=(\n", indent)
	for _, e := range entries {
		fmt.Fprintf(g, "%s\t%s\n", indent, quote(strings.ReplaceAll(e.Name, ":", `\:`)+":"+firstSentence(e.Summary)))
	}
	fmt.Fprintf(g, "%s)\n%scase $words[2] in\n", indent, indent)
	for _, e := range entries {
		fmt.Fprintf(g, "%s%s)\n%s\tshift words\n%s\t((CURRENT--))\n", indent, e.Name, indent, indent)
		if len(e.entries) > 0 {
			g.zshCase(indent+"\t", e.entries, func() {
				fmt.Fprintf(g, "%s\t\t((CURRENT == 2)) && _describe command commands\n", indent)
			})
		} else {
			fmt.Fprintf(g, "%s\t_arguments -S -s", indent)
			g.zshArguments(&e)
			g.WriteString("\n")
		}
		fmt.Fprintf(g, "%s\t;;\n", indent)
	}
	fmt.Fprintf(g, "%s*)\n", indent)
	otherwise()
	fmt.Fprintf(g, "%s\t;;\n%sesac\n", indent, indent)
}

// zshArguments writes the arguments of _arguments that describe the command.
func (g *script) zshArguments(e *completedCommand) {
	escape := strings.NewReplacer(":", `\:`, "[", `\[`, "]", `\]`)
	for i := range e.flags {
		f := &e.flags[i]
		action := f.zsh(g.program)
		switch {
		case action != "":
		case f.isFolder():
			action = ":directory:_files -/"
		case f.Path:
			action = ":file:_files"
		case !f.Boolean():
			action = ":value: "
		}
		for _, name := range f.ways() {
			switch {
			case f.Boolean():
			case strings.HasPrefix(name, "--"):
				name = "*" + name + "=" // it may be --flag=value or --flag value, and more than once
			default:
				name = "*" + name + "+" // it may be -fvalue or -f value
			}
			fmt.Fprintf(g, " \\\n\t\t\t%s", quote(name+"["+escape.Replace(firstSentence(f.Help()))+"]"+action))
		}
	}
	action := e.argument.zsh(g.program)
	switch {
	case e.argument.Passthrough:
		fmt.Fprintf(g, " \\\n\t\t\t%s", quote("*::command:_normal"))
	case action != "" && e.many:
		fmt.Fprintf(g, " \\\n\t\t\t%s", quote("*"+action))
	case action != "":
		fmt.Fprintf(g, " \\\n\t\t\t%s", quote("1"+action))
	}
}

// zsh returns the action of _arguments for the words of a field, or "" for any word.
func (f *Field) zsh(program string) string {
	switch {
	case f.kind() != "":
		return fmt.Sprintf(":value:{_%s_ask %s}", program, f.kind())
	case len(f.Enum) > 0:
		return ":value:(" + strings.Join(f.choices(), " ") + ")"
	}
	return ""
}
