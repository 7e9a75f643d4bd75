// Package completion makes the scripts with which bash, zsh and fish complete
// command lines of the agent. A script is made from the grammar of the parser, so
// it knows all commands and flags and the words that flags take. It holds all of
// that itself: completing a line starts no agent.
package completion

import (
	"bytes"
	"fmt"
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
	commands []command
	// fallback is the default command: its flags may come without its name.
	fallback command
}

// command is one command of the agent.
type command struct {
	name, help string
	flags      []flag
	words      []string // what the first argument may be; empty: anything
	program    bool     // the arguments are the command line of another program
}

// flag is one flag of a command.
type flag struct {
	long, short string // with their dashes; short may be ""
	help        string
	argument    bool     // the flag takes an argument
	words       []string // what the argument may be; empty: anything
	files, dirs bool     // the argument is a path, or the path of a directory
}

// names returns the ways to write the flag.
func (f flag) names() []string {
	if f.short == "" {
		return []string{f.long}
	}
	return []string{f.long, f.short}
}

func newGrammar(app *kong.Application) grammar {
	var g grammar
	for _, node := range app.Children {
		c := command{name: node.Name, help: oneLine(node.Help)}
		for _, group := range node.AllFlags(true) {
			for _, model := range group {
				c.flags = append(c.flags, newFlag(model))
			}
		}
		for _, positional := range node.Positional {
			c.program = positional.Passthrough
			if positional.Enum != "" {
				c.words = positional.EnumSlice()
			}
		}
		g.commands = append(g.commands, c)
		if app.DefaultCmd == node {
			g.fallback = c
		}
	}
	return g
}

func newFlag(model *kong.Flag) flag {
	f := flag{
		long:     "--" + model.Name,
		help:     oneLine(model.Help),
		argument: !model.IsBool(),
		files:    model.Tag.Type == "path",
		dirs:     model.Name == "dir" || model.Name == "workspace",
	}
	if model.Short != 0 {
		f.short = "-" + string(model.Short)
	}
	if model.Enum != "" {
		for _, word := range model.EnumSlice() {
			if word != "" {
				f.words = append(f.words, word)
			}
		}
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

// names returns the names of all commands.
func (g grammar) names() []string {
	names := make([]string, len(g.commands))
	for i, c := range g.commands {
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

// bash writes a script for bash. It needs only bash itself, not the package
// bash-completion, which not every machine has.
func (g grammar) bash(w *bytes.Buffer) {
	fmt.Fprintf(w, `# bash completion for agent; made by: agent completion bash

_agent() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	local command= start=0 i
	COMPREPLY=()
	# bash takes a word apart at =, so --flag=value is three words.
	[[ $cur == = ]] && cur=
	[[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		%s)
			command=${COMP_WORDS[i]} start=$i
			break
			;;
		esac
	done
	_agent_value "$command" "$prev" "$cur" && return
	case $command in
`, strings.Join(g.names(), "|"))
	for _, c := range g.commands {
		fmt.Fprintf(w, "\t%s)\n", c.name)
		if c.program {
			fmt.Fprintf(w, "\t\tif _agent_program %s; then\n\t\t\treturn\n\t\tfi\n", quote(strings.Join(c.valued(), " ")))
		}
		fmt.Fprintf(w, "\t\tCOMPREPLY=($(compgen -W %s -- \"$cur\"))\n\t\t;;\n",
			quote(strings.Join(append(c.flagNames(), c.words...), " ")))
	}
	fmt.Fprintf(w, "\t*)\n\t\tCOMPREPLY=($(compgen -W %s -- \"$cur\"))\n\t\t;;\n\tesac\n}\n\n",
		quote(strings.Join(append(g.names(), g.fallback.flagNames()...), " ")))

	w.WriteString("# _agent_value COMMAND FLAG WORD completes the argument of a flag.\n_agent_value() {\n\tcase $1:$2 in\n")
	for _, c := range append(g.commands, command{flags: g.fallback.flags}) {
		for _, f := range c.flags {
			if !f.argument {
				continue
			}
			var patterns []string
			for _, name := range f.names() {
				patterns = append(patterns, c.name+":"+name)
			}
			fmt.Fprintf(w, "\t%s) %s ;;\n", strings.Join(patterns, "|"), f.compgen())
		}
	}
	w.WriteString("\t*) return 1 ;;\n\tesac\n}\n\n")
	w.WriteString(`# _agent_program VALUED completes the command line behind the flags, if the cursor is there.
_agent_program() {
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

complete -o filenames -F _agent agent
`)
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

// compgen returns the line of bash that completes the flag's argument.
func (f flag) compgen() string {
	switch {
	case len(f.words) > 0:
		return fmt.Sprintf(`COMPREPLY=($(compgen -W %s -- "$3"))`, quote(strings.Join(f.words, " ")))
	case f.dirs:
		return `COMPREPLY=($(compgen -d -- "$3"))`
	case f.files:
		return `COMPREPLY=($(compgen -f -- "$3"))`
	}
	return "COMPREPLY=()"
}

// zsh writes a script for zsh. It works both ways: in a folder of fpath, where zsh
// loads it when it is needed, and with source.
func (g grammar) zsh(w *bytes.Buffer) {
	w.WriteString("#compdef agent\n# zsh completion for agent; made by: agent completion zsh\n\n_agent() {\n")
	w.WriteString("\tlocal -a commands\n\tcommands=(\n")
	for _, c := range g.commands {
		fmt.Fprintf(w, "\t\t%s\n", quote(c.name+":"+c.help))
	}
	w.WriteString("\t)\n\tlocal context state state_descr line\n\ttypeset -A opt_args\n\n\tcase $words[2] in\n")
	for _, c := range g.commands {
		fmt.Fprintf(w, "\t%s)\n\t\tshift words\n\t\t((CURRENT--))\n\t\t_arguments -S -s", c.name)
		c.zshArguments(w)
		w.WriteString("\n\t\t;;\n")
	}
	w.WriteString("\t*)\n\t\t((CURRENT == 2)) && [[ $words[2] != -* ]] && _describe command commands\n\t\t_arguments -S -s")
	g.fallback.zshArguments(w)
	w.WriteString("\n\t\t;;\n\tesac\n}\n\n")
	w.WriteString("if [[ $funcstack[1] == _agent ]]; then\n\t_agent \"$@\"\nelse\n\tcompdef _agent agent\nfi\n")
}

// zshArguments writes the arguments of _arguments that describe the command.
func (c command) zshArguments(w *bytes.Buffer) {
	escape := strings.NewReplacer(":", `\:`, "[", `\[`, "]", `\]`)
	for _, f := range c.flags {
		action := ""
		switch {
		case len(f.words) > 0:
			action = ":value:(" + strings.Join(f.words, " ") + ")"
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
	switch {
	case c.program:
		fmt.Fprintf(w, " \\\n\t\t\t%s", quote("*::command:_normal"))
	case len(c.words) > 0:
		fmt.Fprintf(w, " \\\n\t\t\t%s", quote("1:value:("+strings.Join(c.words, " ")+")"))
	}
}

// fish writes a script for fish.
func (g grammar) fish(w *bytes.Buffer) {
	names := strings.Join(g.names(), " ")
	w.WriteString("# fish completion for agent; made by: agent completion fish\n\ncomplete -c agent -f\n")
	for _, c := range g.commands {
		fmt.Fprintf(w, "complete -c agent -n __fish_use_subcommand -a %s -d %s\n", c.name, quote(c.help))
	}
	none := quote("not __fish_seen_subcommand_from " + names)
	for _, f := range g.fallback.flags {
		f.fish(w, none)
	}
	for _, c := range g.commands {
		condition := quote("__fish_seen_subcommand_from " + c.name)
		for _, f := range c.flags {
			f.fish(w, condition)
		}
		switch {
		case c.program:
			fmt.Fprintf(w, "complete -c agent -n %s -a %s\n", condition, quote("(__fish_complete_subcommand)"))
		case len(c.words) > 0:
			fmt.Fprintf(w, "complete -c agent -n %s -a %s\n", condition, quote(strings.Join(c.words, " ")))
		}
	}
}

// fish writes the line that completes the flag where the condition holds.
func (f flag) fish(w *bytes.Buffer, condition string) {
	fmt.Fprintf(w, "complete -c agent -n %s -l %s", condition, strings.TrimPrefix(f.long, "--"))
	if f.short != "" {
		fmt.Fprintf(w, " -s %s", strings.TrimPrefix(f.short, "-"))
	}
	switch {
	case len(f.words) > 0:
		fmt.Fprintf(w, " -x -a %s", quote(strings.Join(f.words, " ")))
	case f.dirs:
		fmt.Fprintf(w, " -x -a %s", quote("(__fish_complete_directories)"))
	case f.files:
		w.WriteString(" -r -F")
	case f.argument:
		w.WriteString(" -x")
	}
	fmt.Fprintf(w, " -d %s\n", quote(f.help))
}
