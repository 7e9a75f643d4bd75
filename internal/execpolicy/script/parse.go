package script

import (
	"path"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

const (
	// maxBytes is how long a script may be that is looked into. The kernel takes 128 KiB.
	maxBytes = 64 << 10
	// maxNested bounds how deep things in a script can be nested, and so the stack of the parser:
	// it is how often something may begin that can hold another such thing.
	maxNested = 1_000
	// MaxCommands is how many commands a plain script may have.
	MaxCommands = 1_000
)

// shells are the programs whose scripts are taken apart, by name or by their usual paths.
var shells = []string{"bash", "sh", "zsh"}

var folders = []string{"/bin/", "/usr/bin/", "/usr/local/bin/"}

// Of returns the script of a shell's command: argv is the shell, -c or -lc, and the script, and
// nothing else.
func Of(argv []string) (script string, ok bool) {
	if len(argv) != 3 || argv[1] != "-c" && argv[1] != "-lc" {
		return "", false
	}
	name := argv[0]
	for _, folder := range folders {
		if rest, ok := strings.CutPrefix(name, folder); ok {
			name = rest
			break
		}
	}
	return argv[2], slices.Contains(shells, name)
}

// openers are what can hold more of a script, and operators those of which many may stand before
// one number.
var (
	openers   = []string{"(", "{", "[", "`", "if", "while", "until", "for", "case", "select", "function", "time", "coproc"}
	operators = []string{"-", "+", "?", "~", "!"}
)

// tooDeep reports whether things in a script may be nested deeper than the parser should go. A word
// counts whatever it is part of; so this is more than there are.
func tooDeep(text string) bool {
	n := count(text, openers)
	if strings.Contains(text, "((") || strings.ContainsAny(text, "[:") {
		n = max(n, count(text, operators)) // in arithmetic
	}
	return n > maxNested
}

func count(text string, all []string) (n int) {
	for _, one := range all {
		n += strings.Count(text, one)
	}
	return n
}

// parse returns the tree of a script, and false if it has an error or is too large.
func parse(text string) (*syntax.File, bool) {
	if len(text) > maxBytes || tooDeep(text) || strings.ContainsAny(text, "\r\x00") {
		return nil, false
	}
	parser := parsers.Get().(*syntax.Parser)
	defer parsers.Put(parser)
	file, err := parser.Parse(strings.NewReader(text), "")
	return file, err == nil
}

// parsers can be used again, and are large.
var parsers = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)) }}

// base is the last name of a program's path.
func base(program string) string {
	if program == "" {
		return ""
	}
	return path.Base(program)
}
