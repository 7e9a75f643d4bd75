package script

import (
	"path"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

const (
	// maxBytes bounds the length of a script that is parsed. The kernel accepts arguments of up to 128
	// KiB.
	maxBytes = 64 << 10
	// maxNested bounds the nesting in a script, and so the stack of the parser. It is compared with
	// the number of tokens that can begin a nested construct.
	maxNested = 1_000
	// MaxCommands is the highest number of commands in a plain script.
	MaxCommands = 1_000
)

// shells are the programs whose scripts are parsed, by name or by their usual paths.
var shells = []string{"bash", "sh", "zsh"}

var folders = []string{"/bin/", "/usr/bin/", "/usr/local/bin/"}

// Of returns the script of a shell's command. argv must be exactly the shell, -c or -lc, and the
// script.
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

// openers begin constructs that can contain more of a script. operators may stand many times before
// one number.
var (
	openers   = []string{"(", "{", "[", "`", "if", "while", "until", "for", "case", "select", "function", "time", "coproc"}
	operators = []string{"-", "+", "?", "~", "!"}
)

// tooDeep reports whether a script may be nested deeper than the parser should go. It counts
// openers also inside other words, so its count is at least the real depth.
func tooDeep(text string) bool {
	n := count(text, openers)
	if strings.Contains(text, "((") || strings.ContainsAny(text, "[:") {
		n = max(n, count(text, operators)) // the script may contain arithmetic
	}
	return n > maxNested
}

func count(text string, all []string) (n int) {
	for _, one := range all {
		n += strings.Count(text, one)
	}
	return n
}

// parse returns the syntax tree of a script, and false if the script has an error or is too large.
func parse(text string) (*syntax.File, bool) {
	if len(text) > maxBytes || tooDeep(text) || strings.ContainsAny(text, "\r\x00") {
		return nil, false
	}
	parser := parsers.Get().(*syntax.Parser)
	defer parsers.Put(parser)
	file, err := parser.Parse(strings.NewReader(text), "")
	return file, err == nil
}

// parsers has parsers for reuse, because they are large.
var parsers = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)) }}

// base returns the last element of a program's path.
func base(program string) string {
	if program == "" {
		return ""
	}
	return path.Base(program)
}
