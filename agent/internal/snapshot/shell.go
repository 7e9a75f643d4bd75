package snapshot

import "strings"

// kind is a shell whose state can be captured.
type kind struct {
	// dump is the script that prints the state, with MARK in place of a random text. It prints twice:
	// MARK, the parts of code, and the variables, with a NUL after each; then MARK. It removes traps
	// first, because the output of traps would be read as a part of the state. Diagnostics of the
	// shell are discarded for the same reason, if its errors go to its output.
	dump string
	// parts is the number of parts of code. code joins the parts to one text.
	parts int
	code  func(parts []string) string
	// restore is the flag with which the shell runs one command and no startup files.
	restore string
	// command is the prefix that keeps a builtin from ending the shell if the builtin fails.
	command string
	// whole is true if the shell parses the whole command line before it runs the first line. Restored
	// aliases and options then apply only to text that is parsed later.
	whole bool
}

// kinds returns the kind of a shell by the name that clients use for it.
func kinds(name string) (kind, bool) {
	switch name {
	case "bash":
		return kind{dump: bashDump, parts: 5, code: bashCode, restore: "-pc"}, true
	case "zsh":
		return kind{dump: zshDump, parts: 3, code: zshCode, restore: "-fc", whole: true}, true
	case "sh":
		return kind{dump: shDump, parts: 2, code: shCode, restore: "-c", command: "command "}, true
	}
	return kind{}, false
}

const bashDump = `if [ -r ~/.bashrc ]; then . ~/.bashrc; fi >/dev/null 2>&1 </dev/null
builtin trap - DEBUG RETURN ERR EXIT
IFS=$' \t\n'
__names=$(builtin compgen -e) || builtin exit 1
for _ in 1 2; do
builtin printf '%s\0' MARK
builtin set +o; builtin printf '\0'
builtin shopt -p; builtin printf '\0'
builtin declare -f; builtin printf '\0'
builtin declare -Fx; builtin printf '\0'
builtin alias -p; builtin printf '\0'
for __name in $__names; do if [[ -n ${!__name+x} ]]; then builtin printf '%s=%s\0' "$__name" "${!__name}"; fi; done
done 2>/dev/null
builtin printf '%s\0' MARK 2>/dev/null
`

// bashCode orders the parts. Functions come after all commands that they could replace. Options
// that change how code is read, or when the shell ends, come last, because otherwise aliases would
// be expanded again in functions.
func bashCode(parts []string) string {
	var last, first strings.Builder
	for line := range strings.Lines(parts[0]) {
		words := strings.Fields(line)
		if len(words) != 3 {
			continue
		}
		switch words[2] {
		case "noexec", "monitor", "history", "emacs", "vi":
		case "errexit", "nounset", "xtrace", "verbose":
			if words[1] == "-o" { // an option that is off is off in a new shell anyway
				last.WriteString("builtin " + line)
			}
		case "posix":
			last.WriteString("builtin " + line)
		default:
			first.WriteString(line)
		}
	}
	first.WriteString("shopt -u expand_aliases\n")
	for line := range strings.Lines(parts[1]) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "shopt" {
			continue
		}
		switch words[2] {
		case "login_shell", "restricted_shell":
		case "expand_aliases":
			if words[1] == "-s" {
				last.WriteString("builtin " + line)
			}
		default:
			first.WriteString(line)
		}
	}
	var exported strings.Builder
	for line := range strings.Lines(parts[3]) {
		exported.WriteString("builtin " + line)
	}
	return first.String() + parts[4] + "\n" + parts[2] + "\n" + exported.String() + last.String()
}

const zshDump = `if [[ -r ${ZDOTDIR:-$HOME}/.zshrc ]]; then . ${ZDOTDIR:-$HOME}/.zshrc; fi >/dev/null 2>&1 </dev/null
builtin trap - DEBUG ZERR EXIT
builtin zmodload zsh/parameter || builtin exit 1
for _ in 1 2; do
builtin printf '%s\0' MARK
builtin set +o; builtin printf '\0'
builtin functions; builtin printf '\0'
builtin alias -L; builtin printf '\0'
for __name in "${(@k)parameters[(R)*export*]}"; do builtin printf '%s=%s\0' "$__name" "${(P)__name}"; done
done 2>/dev/null
builtin printf '%s\0' MARK 2>/dev/null
`

func zshCode(parts []string) string {
	var last, first strings.Builder
	for line := range strings.Lines(parts[0]) {
		words := strings.Fields(line)
		if len(words) != 3 {
			continue
		}
		switch strings.TrimPrefix(words[2], "no") {
		case "exec", "monitor", "zle", "interactive", "login", "privileged", "restricted", "shinstdin", "singlecommand":
		case "errexit", "errreturn", "unset", "xtrace", "verbose":
			last.WriteString("builtin " + line)
		default:
			first.WriteString(line)
		}
	}
	return first.String() + parts[2] + "\n" + parts[1] + "\n" + last.String()
}

// shDump has no functions, because POSIX shells have no way to print them.
const shDump = `if [ -n "${ENV-}" ] && [ -r "$ENV" ]; then . "$ENV"; fi >/dev/null 2>&1 </dev/null
for __name in EXIT DEBUG ERR; do command trap - $__name || :; done 2>/dev/null
for _ in 1 2; do
printf '%s\0' MARK
set +o; printf '\0'
alias; printf '\0'
command env -0 || exit 1
done 2>/dev/null
printf '%s\0' MARK 2>/dev/null
`

func shCode(parts []string) string {
	var last, first strings.Builder
	for line := range strings.Lines(parts[0]) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "set" {
			continue
		}
		switch words[2] {
		case "noexec", "interactive", "stdin", "monitor", "emacs", "vi", "privileged":
		case "errexit", "nounset", "xtrace", "verbose":
			if words[1] == "-o" { // an option that is off is off in a new shell anyway
				last.WriteString(line)
			}
		default:
			first.WriteString(line)
		}
	}
	// alias prints NAME='VALUE', with or without the word alias before it.
	for _, definition := range splitLines(parts[1]) {
		first.WriteString("alias " + strings.TrimPrefix(definition, "alias ") + "\n")
	}
	return first.String() + last.String()
}

// splitLines splits a text at the line ends that are not in single or double quotes.
func splitLines(text string) (lines []string) {
	start, quote := 0, byte(0)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '\\':
			i++
		case c == '\n':
			if i > start {
				lines = append(lines, text[start:i])
			}
			start = i + 1
		}
	}
	return lines
}
