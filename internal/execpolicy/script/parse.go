package script

import (
	"errors"
	"io"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

const (
	// maxBytes bounds the length of a script that is parsed. The kernel accepts no longer argument.
	maxBytes = 128 << 10
	// maxCalls bounds the calls of the parser within each other, and so its stack. It needs up to 12
	// for a command within a command, and 54 for an expression within an expression.
	maxCalls = 5_000
	// maxRepairs bounds how often read repairs a script. A script that has an error even then is parsed
	// more often.
	maxRepairs = 8
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

// errTooLarge is the error for a script that is too long or nested too deeply to be read. A shell
// may run such a script.
var errTooLarge = errors.New("the script is too large")

// source passes a script to the parser, and ends it if the parser is nested too deeply. Only the
// parser knows what is nested: in a comment or a here-document a parenthesis is a letter.
type source struct {
	text  string
	calls []uintptr // for tooDeep
}

func (s *source) Read(b []byte) (n int, err error) {
	if s.tooDeep() {
		return 0, errTooLarge
	}
	if s.text == "" {
		return 0, io.EOF
	}
	n = copy(b, s.text)
	s.text = s.text[n:]
	return n, nil
}

// tooDeep reports whether more than maxCalls calls are under way. Calls of a function by itself
// count once, because the parser skips comment lines by such calls, of which each needs little.
func (s *source) tooDeep() bool {
	var first [1]uintptr
	if runtime.Callers(maxCalls, first[:]) == 0 {
		return false
	}
	if s.calls == nil {
		s.calls = make([]uintptr, maxBytes) // one for each byte, which is more than a script can cause
	}
	return len(slices.Compact(s.calls[:runtime.Callers(0, s.calls)])) > maxCalls
}

// parse returns the syntax tree of a script.
func parse(text string) (file *syntax.File, err error) {
	if len(text) > maxBytes {
		return nil, errTooLarge
	}
	parser := parsers.Get().(*syntax.Parser)
	defer parsers.Put(parser)
	return parser.Parse(&source{text: text}, "")
}

// read returns the statements that a shell executes. If the parser finds an error, these are the
// statements in the lines before, because a shell reads line by line, and rest is the text behind
// them: not all that is an error for the parser is one for a shell. A script that is too large has
// errTooLarge.
func read(text string) (list []*syntax.Stmt, rest string, err error) {
	list, rest, repaired, err := readUntilError(text)
	// The parser may have gone past the end of a comment, as below, before it came to the error. Once
	// is enough, because rest has what follows another error.
	if cut := withoutContinued(repaired); cut != repaired {
		others, more, _, err := readUntilError(cut)
		return append(list, others...), rest + "\n" + more, err
	}
	return list, rest, err
}

// readUntilError is read without a second try. It also returns the script as it was repaired, if it has an
// error all the same.
func readUntilError(text string) (list []*syntax.Stmt, rest, read string, err error) {
	file, err := parse(text)
	for range maxRepairs {
		repaired := repair(text, file, err)
		if repaired == text {
			break
		}
		text = repaired
		file, err = parse(text)
	}
	switch {
	case err == nil:
		return file.Stmts, "", "", nil
	case errors.Is(err, errTooLarge):
		return nil, "", "", err
	}
	line, end := errorLine(err), uint(0)
	parser := parsers.Get().(*syntax.Parser)
	defer parsers.Put(parser)
	for stmt, err := range parser.StmtsSeq(&source{text: text}) {
		if err != nil || stmt.End().Line() >= line {
			break
		}
		list = append(list, stmt)
		if end = stmt.End().Offset(); hasDocument(stmt) { // which ends below the statements behind it
			end = stmt.Pos().Offset()
		}
	}
	return list, text[min(end, uint(len(text))):], text, nil
}

// hasDocument reports whether a statement has a here-document.
func hasDocument(stmt *syntax.Stmt) (has bool) {
	syntax.Walk(stmt, func(n syntax.Node) bool {
		r, ok := n.(*syntax.Redirect)
		has = has || ok && r.Hdoc != nil
		return !has
	})
	return has
}

// repair returns a script without what the parser reads otherwise than a shell. A here-document may
// end with the script. A comment ends with its line, also after a backslash.
func repair(text string, file *syntax.File, err error) string {
	if e, ok := errors.AsType[syntax.ParseError](err); ok {
		quoted, _ := strings.CutPrefix(e.Text, "unclosed here-document ")
		if end, err := strconv.Unquote(quoted); err == nil {
			return text + "\n" + end + "\n"
		}
	}
	if err != nil || !strings.Contains(text, "#") {
		return text
	}
	repaired := []byte(text)
	syntax.Walk(file, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.Comment); ok && strings.HasSuffix(c.Text, "\\\n") {
			start := c.Hash.Offset()
			line, _, _ := strings.Cut(text[start:], "\n")
			repaired[start+uint(strings.LastIndex(line, `\`))] = ' '
		}
		return true
	})
	return string(repaired)
}

// withoutContinued returns a script without the backslashes at the ends of lines that may end with a
// comment.
func withoutContinued(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		body := strings.TrimRight(line, "\r\n")
		if cut, ok := strings.CutSuffix(body, `\`); ok && strings.Contains(cut, "#") {
			lines[i] = cut + " " + line[len(body):]
		}
	}
	return strings.Join(lines, "")
}

// turn is held while a long script is read, because its syntax tree takes hundreds of times its
// length.
var turn sync.Mutex

// takeTurn waits until a script may be read. The caller calls done.
func takeTurn(text string) (done func()) {
	const long = 8 << 10
	if len(text) <= long {
		return func() {}
	}
	turn.Lock()
	return turn.Unlock
}

// errorLine returns the line of an error of the parser, or 0.
func errorLine(err error) uint {
	if e, ok := errors.AsType[syntax.LangError](err); ok {
		return e.Pos.Line()
	}
	e, _ := errors.AsType[syntax.ParseError](err)
	return e.Pos.Line()
}

// readings returns the scripts that shells may see in a text. A carriage return is a letter in Bash,
// and a blank in the reference. Bytes that are no UTF-8 are letters.
func readings(text string) []string {
	const letter = "\x01" // of one byte, so that the text gets no longer
	text = strings.ToValidUTF8(text, letter)
	if !strings.Contains(text, "\r") {
		return []string{text}
	}
	return []string{text, strings.ReplaceAll(text, "\r", letter)}
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
