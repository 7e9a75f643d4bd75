package script

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// maxShells bounds the depth of scripts in scripts.
const maxShells = 16

// ForcedRm reports whether a command removes files without asking: rm with -f or --force, also
// after sudo and env, in the script of a shell, or somewhere in a script that argv runs. It finds
// only literal words, so a command can hide it on purpose.
func ForcedRm(argv []string) bool { return forcedRm(argv, nil, 0) }

// forcedRm is ForcedRm for words of which some may be unknown. known says for each word whether it
// is literal; nil means that all words are.
func forcedRm(argv []string, known []bool, depth int) bool {
	if len(argv) == 0 || depth > maxShells {
		return len(argv) > 0
	}
	isKnown := func(i int) bool { return known == nil || known[i] }
	if !isKnown(0) {
		return false
	}
	rest := func(i int) ([]string, []bool) {
		if known == nil {
			return argv[i:], nil
		}
		return argv[i:], known[i:]
	}
	switch name := base(argv[0]); name {
	case "rm":
		for i := 1; i < len(argv); i++ {
			arg := argv[i]
			if !isKnown(i) {
				continue
			}
			if arg == "--" {
				return false
			}
			if arg == "--force" || len(arg) > 1 && arg[0] == '-' && arg[1] != '-' && strings.Contains(arg, "f") {
				return true
			}
		}
	case "sudo":
		words, known := rest(1)
		return forcedRm(words, known, depth+1)
	case "env":
		i := 1
		for ; i < len(argv) && isKnown(i); i++ {
			arg := argv[i]
			if arg == "--" {
				i++
				break
			}
			if arg != "-i" && arg != "--ignore-environment" && !isAssignment(arg) {
				break
			}
		}
		words, known := rest(i)
		return forcedRm(words, known, depth+1)
	case "bash", "sh", "zsh":
		if len(argv) == 3 && isKnown(1) && isKnown(2) && (argv[1] == "-c" || argv[1] == "-lc") {
			return forcedRmIn(argv[2], depth+1)
		}
	case "trap":
		if len(argv) > 1 && known != nil && isKnown(1) { // in a script, trap is a builtin of the shell and not a program
			return forcedRmIn(argv[1], depth+1)
		}
	}
	return false
}

// forcedRmIn reports whether a forced rm is among the commands of a script. It also returns true
// for a script that is too large to be parsed.
func forcedRmIn(text string, depth int) bool {
	commands, ok := Literal(text)
	return !ok || slices.ContainsFunc(commands, func(c Command) bool { return !c.Behind && forcedRm(c.Words, c.Known, depth) })
}

// isAssignment reports whether a word sets a variable.
func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && syntax.ValidName(name)
}
