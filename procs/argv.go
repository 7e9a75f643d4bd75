package procs

import (
	"strings"
	"unicode/utf8"
)

const (
	// maxString is the length, in bytes, from which on the kernel refuses an
	// argument or variable: MAX_ARG_STRLEN without its NUL (execve(2)).
	maxString = 128 << 10
	// maxStrings is the most bytes of all arguments and variables together that
	// the kernel accepts, whatever the limit of the stack (execve(2)).
	maxStrings = 6 << 20
	// keptArgv bounds the memory of the kept copy of a command, in bytes.
	keptArgv = 4 << 10
)

// tooLong reports whether the kernel will certainly refuse these strings. Start
// calls it before it allocates anything for them.
func tooLong(argv, env []string) bool {
	total := 0
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			total += len(s) + 1 + 8 // its NUL, and the pointer to it
			if len(s) >= maxString || total > maxStrings {
				return true
			}
		}
	}
	return false
}

// clipArgv copies the part of a command that is kept: whole arguments, then the
// beginning of the next one with an ellipsis.
func clipArgv(argv []string) []string {
	const header, more = 16, "…" // header: of a string, beside its text
	kept := make([]string, 0, min(len(argv), keptArgv/header))
	room := keptArgv
	for i, arg := range argv {
		room -= header
		next := 0
		if i+1 < len(argv) {
			next = header + len(more)
		}
		if len(arg)+next > room {
			end := min(len(arg), room-len(more))
			for end > 0 && end < len(arg) && !utf8.RuneStart(arg[end]) {
				end--
			}
			return append(kept, arg[:end]+more)
		}
		room -= len(arg)
		kept = append(kept, strings.Clone(arg))
	}
	return kept
}
