package script

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// A Command is a command in a script. Known is false for a word that the script computes.
type Command struct {
	Words []string
	Known []bool
	// Behind says that the command follows time or coproc. time and coproc are listed as commands of
	// their own too, because the reference treats them as programs and the rest as their arguments.
	Behind bool
}

// Prefix returns the words before the first word that is not known.
func (c Command) Prefix() []string {
	if i := slices.Index(c.Known, false); i >= 0 {
		return c.Words[:i]
	}
	return c.Words
}

// Literal returns the commands in a script whose first word is literal, wherever they are: in
// pipes, loops, functions, substitutions, and after time, which counts as a program here. It
// returns false if the script is too long or nested too deeply to be read. Such a script may do
// anything.
//
// A shell may run what the parser takes for an error. From there on, each word of a line counts as the
// first word of a command.
func Literal(text string) (commands []Command, ok bool) {
	defer takeTurn(text)()
	for _, text := range readings(text) {
		list, rest, err := read(text)
		if err != nil {
			return nil, false
		}
		for _, stmt := range list {
			var more string
			commands, more = appendLiteral(commands, stmt)
			rest += "\n" + more
		}
		commands = appendWords(commands, rest)
	}
	return commands, true
}

// maxWords bounds the words of a command that begins with any word of a line.
const maxWords = 32

// unparsed makes blanks of what separates words, and takes quotes away.
var unparsed = strings.NewReplacer("\\\n", "", `\`, "", `"`, "", "'", "", ";", " ", "&", " ", "|", " ", "(", " ", ")", " ", "<", " ", ">", " ", "`", " ", "{", " ", "}", " ")

// appendWords appends a command for each word of a text, with the words behind it in its line.
func appendWords(commands []Command, text string) []Command {
	for line := range strings.Lines(unparsed.Replace(text)) {
		words := strings.Fields(line)
		known := slices.Repeat([]bool{true}, len(words))
		for i := range words {
			end := min(i+maxWords, len(words))
			commands = append(commands, Command{Words: words[i:end], Known: known[i:end]})
		}
	}
	return commands
}

// appendLiteral appends the commands in a statement, and returns the text of what the parser takes for
// patterns: !(x) may be a subshell for a shell.
func appendLiteral(commands []Command, stmt *syntax.Stmt) (_ []Command, patterns string) {
	behind := map[*syntax.CallExpr]bool{}
	syntax.Walk(stmt, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.TimeClause:
			commands = append(commands, wrapped("time", n.Stmt, behind))
		case *syntax.CoprocClause:
			commands = append(commands, wrapped("coproc", n.Stmt, behind))
		case *syntax.ExtGlob:
			patterns += n.Pattern.Value + "\n"
		case *syntax.CallExpr:
			if c, ok := literal(n); ok {
				c.Behind = behind[n]
				commands = append(commands, c)
			}
		}
		return true
	})
	return commands, patterns
}

// wrapped returns the command of s with word (time or coproc) as its first word, and marks the
// command of s in behind.
func wrapped(word string, s *syntax.Stmt, behind map[*syntax.CallExpr]bool) Command {
	c := Command{Words: []string{word}, Known: []bool{true}}
	if s == nil {
		return c
	}
	if inner, ok := s.Cmd.(*syntax.CallExpr); ok {
		behind[inner] = true
		if inner, ok := literal(inner); ok {
			c.Words, c.Known = append(c.Words, inner.Words...), append(c.Known, inner.Known...)
		}
	}
	return c
}

func literal(n *syntax.CallExpr) (c Command, ok bool) {
	for i, w := range n.Args {
		word, known := literalWord(w)
		if i == 0 && !known {
			return Command{}, false
		}
		c.Words, c.Known = append(c.Words, word), append(c.Known, known)
	}
	return c, len(c.Words) > 0
}

// literalWord returns the text of a word, and reports whether all parts of the word are literal.
func literalWord(w *syntax.Word) (string, bool) {
	var b strings.Builder
	for _, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			if strings.Contains(p.Value, `\`) {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			if p.Dollar {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			if len(p.Parts) == 0 {
				continue
			}
			text, ok := p.Parts[0].(*syntax.Lit)
			if !ok || p.Dollar || len(p.Parts) > 1 || strings.Contains(text.Value, `\`) {
				return "", false
			}
			b.WriteString(text.Value)
		default:
			return "", false
		}
	}
	return b.String(), true
}
