package cli

import (
	"fmt"
	"strings"
)

// bash writes a script for bash. It needs only bash itself, not the package
// bash-completion, which not every machine has.
func (g *script) bash() {
	var paths []string
	for _, e := range all(g.entries) {
		paths = append(paths, quote(e.Path))
	}
	g.text(`# bash completion for PROGRAM; made by: PROGRAM completion bash

_PROGRAM() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	local command= start=0 i
	COMPREPLY=()
	# bash takes a word apart at =, so --flag=value is three words.
	[[ $cur == = ]] && cur=
	[[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}
	for ((i = 1; i < COMP_CWORD; i++)); do
		case "${command:+$command }${COMP_WORDS[i]}" in
		` + strings.Join(paths, "|") + `)
			command="${command:+$command }${COMP_WORDS[i]}" start=$i
			;;
		esac
	done
	_PROGRAM_value "$command" "$prev" "$cur" && return
	case $command in
`)
	for _, e := range all(g.entries) {
		fmt.Fprintf(g, "\t%s)\n", quote(e.Path))
		if e.argument.Passthrough {
			g.text(fmt.Sprintf("\t\tif _PROGRAM_program %s; then\n\t\t\treturn\n\t\tfi\n", quote(strings.Join(e.valued(), " "))))
		}
		known := append(append(commandNames(e.entries), e.flagNames()...), e.argument.choices()...)
		fmt.Fprintf(g, "\t\tCOMPREPLY=($(compgen -W %s -- \"$cur\"))\n", quote(strings.Join(known, " ")))
		if kind := e.argument.kind(); kind != "" {
			g.text(fmt.Sprintf("\t\t_PROGRAM_ask %s \"$cur\"\n", kind))
		}
		g.WriteString("\t\t;;\n")
	}
	fmt.Fprintf(g, "\t*)\n\t\tCOMPREPLY=($(compgen -W %s -- \"$cur\"))\n\t\t;;\n\tesac\n}\n\n",
		quote(strings.Join(append(commandNames(g.entries), g.fallback.flagNames()...), " ")))

	g.text("# _PROGRAM_value COMMAND FLAG WORD completes the argument of a flag.\n_PROGRAM_value() {\n\tcase $1:$2 in\n")
	for _, e := range append(all(g.entries), completedCommand{Command: new(Command), flags: g.fallback.flags}) {
		for i := range e.flags {
			f := &e.flags[i]
			if f.Boolean() {
				continue
			}
			var patterns []string
			for _, name := range f.ways() {
				patterns = append(patterns, quote(e.Path+":"+name))
			}
			g.text(fmt.Sprintf("\t%s) %s ;;\n", strings.Join(patterns, "|"), f.compgen()))
		}
	}
	g.text(`	*) return 1 ;;
	esac
}

# _PROGRAM_ask KIND WORD adds the words that the program knows. They are compared and never
# expanded: compgen would run what they hold.
_PROGRAM_ask() {
	local word
	while IFS= read -r word; do
		[[ $word == "$2"* ]] && COMPREPLY+=("$word")
	done < <(PROGRAM complete "$1" -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
	return 0
}

# _PROGRAM_program VALUED completes the command line behind the flags, if the cursor is there.
_PROGRAM_program() {
	for ((i = start + 1; i < COMP_CWORD; i++)); do
		case " $1 " in
		*" ${COMP_WORDS[i]} "*)
			((i++))
			[[ ${COMP_WORDS[i]} == = ]] && ((i++))
			continue
			;;
		esac
		case ${COMP_WORDS[i]} in
		--)
			((i + 1 == COMP_CWORD)) && COMPREPLY=($(compgen -c -- "$cur")) || COMPREPLY=($(compgen -f -- "$cur"))
			return 0
			;;
		-*) ;;
		*)
			COMPREPLY=($(compgen -f -- "$cur"))
			return 0
			;;
		esac
	done
	[[ $cur == -* ]] && return 1
	COMPREPLY=($(compgen -c -- "$cur"))
}

complete -o filenames -F _PROGRAM PROGRAM
`)
}

// compgen returns the line of bash that completes the flag's argument.
func (f *Field) compgen() string {
	switch {
	case f.kind() != "":
		return fmt.Sprintf(`_PROGRAM_ask %s "$3"`, f.kind())
	case len(f.Enum) > 0:
		return fmt.Sprintf(`COMPREPLY=($(compgen -W %s -- "$3"))`, quote(strings.Join(f.choices(), " ")))
	case f.isFolder():
		return `COMPREPLY=($(compgen -d -- "$3"))`
	case f.Path:
		return `COMPREPLY=($(compgen -f -- "$3"))`
	}
	return "COMPREPLY=()"
}

// text writes a part of a script, in which PROGRAM stands for the name of the program.
func (g *script) text(s string) { g.WriteString(strings.ReplaceAll(s, "PROGRAM", g.program)) }
