package completion

import (
	"bytes"
	"fmt"
	"strings"
)

// zsh writes a script for zsh. It works both ways: in a folder of fpath, where zsh
// loads it when it is needed, and with source.
func (g grammar) zsh(w *bytes.Buffer) {
	text := func(s string) { w.WriteString(strings.ReplaceAll(s, "PROGRAM", g.program)) }
	text(`#compdef PROGRAM
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
	zshCase(w, g.program, "\t", g.commands, func() {
		w.WriteString("\t\t((CURRENT == 2)) && [[ $words[2] != -* ]] && _describe command commands\n\t\t_arguments -S -s")
		g.fallback.zshArguments(w, g.program)
		w.WriteString("\n")
	})
	text(`}

if [[ $funcstack[1] == _PROGRAM ]]; then
	_PROGRAM "$@"
else
	compdef _PROGRAM PROGRAM
fi
`)
}

// zshCase writes what completes a line that goes on with one of the commands; otherwise
// writes what completes it where it goes on with something else.
func zshCase(w *bytes.Buffer, program, indent string, commands []command, otherwise func()) {
	fmt.Fprintf(w, "%scommands=(\n", indent)
	for _, c := range commands {
		fmt.Fprintf(w, "%s\t%s\n", indent, quote(strings.ReplaceAll(c.name, ":", `\:`)+":"+c.help))
	}
	fmt.Fprintf(w, "%s)\n%scase $words[2] in\n", indent, indent)
	for _, c := range commands {
		fmt.Fprintf(w, "%s%s)\n%s\tshift words\n%s\t((CURRENT--))\n", indent, c.name, indent, indent)
		if len(c.commands) > 0 {
			zshCase(w, program, indent+"\t", c.commands, func() {
				fmt.Fprintf(w, "%s\t\t((CURRENT == 2)) && _describe command commands\n", indent)
			})
		} else {
			fmt.Fprintf(w, "%s\t_arguments -S -s", indent)
			c.zshArguments(w, program)
			w.WriteString("\n")
		}
		fmt.Fprintf(w, "%s\t;;\n", indent)
	}
	fmt.Fprintf(w, "%s*)\n", indent)
	otherwise()
	fmt.Fprintf(w, "%s\t;;\n%sesac\n", indent, indent)
}

// zshArguments writes the arguments of _arguments that describe the command.
func (c command) zshArguments(w *bytes.Buffer, program string) {
	escape := strings.NewReplacer(":", `\:`, "[", `\[`, "]", `\]`)
	for _, f := range c.flags {
		action := f.words.zsh(program)
		switch {
		case action != "":
		case f.dirs:
			action = ":directory:_files -/"
		case f.files:
			action = ":file:_files"
		case f.argument:
			action = ":value: "
		}
		for _, name := range f.names() {
			if f.argument && name == f.long {
				name += "=" // it may be --flag=value or --flag value
			} else if f.argument {
				name += "+" // it may be -fvalue or -f value
			}
			if f.argument {
				name = "*" + name // it may be given more than once
			}
			fmt.Fprintf(w, " \\\n\t\t\t%s", quote(name+"["+escape.Replace(f.help)+"]"+action))
		}
	}
	action := c.argument.zsh(program)
	switch {
	case c.program:
		fmt.Fprintf(w, " \\\n\t\t\t%s", quote("*::command:_normal"))
	case action != "" && c.many:
		fmt.Fprintf(w, " \\\n\t\t\t%s", quote("*"+action))
	case action != "":
		fmt.Fprintf(w, " \\\n\t\t\t%s", quote("1"+action))
	}
}

// zsh is the action of _arguments for the words, "" for any word.
func (s words) zsh(program string) string {
	switch {
	case s.kind != "":
		return fmt.Sprintf(":value:{_%s_ask %s}", program, s.kind)
	case len(s.known) > 0:
		return ":value:(" + strings.Join(s.known, " ") + ")"
	}
	return ""
}
