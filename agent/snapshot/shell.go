package snapshot

import "strings"

// kind is a shell whose state can be captured.
type kind struct {
	// dump is the script that prints the state, with MARK in the place of a random text. It
	// prints, twice: MARK, the parts of code, and the variables, a NUL behind each; then
	// MARK.
	dump string
	// parts is how many parts of code there are, and code makes one text of them.
	parts int
	code  func(parts []string) string
	// restore is the flag of a shell that runs one command and no startup files.
	restore string
	// command is what keeps a builtin from ending the shell where it fails.
	command string
	// whole: the shell reads the whole command line before it runs the first line, so that
	// what is restored counts only for what is read afterwards.
	whole bool
}

// kinds are the shells by the names that clients have for them.
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
IFS=$' \t\n'
for _ in 1 2; do
builtin printf '%s\0' MARK
builtin set +o; builtin printf '\0'
builtin shopt -p; builtin printf '\0'
builtin declare -f; builtin printf '\0'
builtin declare -Fx; builtin printf '\0'
builtin alias -p; builtin printf '\0'
for __name in $(builtin compgen -e); do if [[ -n ${!__name+x} ]]; then builtin printf '%s=%s\0' "$__name" "${!__name}"; fi; done
done
builtin printf '%s\0' MARK
`

// bashCode puts functions before aliases, which would be expanded in them once more, and
// what changes how code is read or when a shell ends behind everything else.
func bashCode(parts []string) string {
	var last, first strings.Builder
	for line := range strings.Lines(parts[0]) {
		words := strings.Fields(line)
		if len(words) != 3 {
			continue
		}
		switch words[2] {
		case "noexec", "monitor", "history", "emacs", "vi":
		case "posix", "errexit", "nounset", "xtrace", "verbose":
			last.WriteString("builtin " + line)
		default:
			first.WriteString(line)
		}
	}
	for line := range strings.Lines(parts[1]) {
		if !strings.Contains(line, "login_shell") && !strings.Contains(line, "restricted_shell") {
			first.WriteString(line)
		}
	}
	return first.String() + parts[2] + "\n" + parts[3] + "\n" + parts[4] + "\n" + last.String()
}

const zshDump = `if [[ -r ${ZDOTDIR:-$HOME}/.zshrc ]]; then . ${ZDOTDIR:-$HOME}/.zshrc; fi >/dev/null 2>&1 </dev/null
for _ in 1 2; do
builtin printf '%s\0' MARK
builtin set +o; builtin printf '\0'
builtin functions; builtin printf '\0'
builtin alias -L; builtin printf '\0'
for __name in "${(@k)parameters[(R)*export*]}"; do builtin printf '%s=%s\0' "$__name" "${(P)__name}"; done
done
builtin printf '%s\0' MARK
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
			last.WriteString(line)
		default:
			first.WriteString(line)
		}
	}
	return first.String() + parts[1] + "\n" + parts[2] + "\n" + last.String()
}

// shDump has no functions: no shell of POSIX has a way to print them.
const shDump = `if [ -n "${ENV-}" ] && [ -r "$ENV" ]; then . "$ENV"; fi >/dev/null 2>&1 </dev/null
for _ in 1 2; do
printf '%s\0' MARK
set +o; printf '\0'
alias; printf '\0'
command env -0
done
printf '%s\0' MARK
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
			last.WriteString(line)
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
