package script

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Split returns the commands of a plain script: commands of literal words, joined by &&, ||, ;, |
// and newlines. It returns false for every other script (an opaque script).
func Split(text string) (commands [][]string, ok bool) {
	if strings.ContainsAny(text, "\r\x00") {
		return nil, false
	}
	defer takeTurn(text)()
	file, err := parse(text)
	if err != nil || len(file.Stmts) == 0 || len(file.Last) > 0 {
		return nil, false
	}
	for _, s := range file.Stmts {
		if commands, ok = plain(commands, s); !ok {
			return nil, false
		}
	}
	return commands, true
}

// plain appends the commands of a statement.
func plain(commands [][]string, s *syntax.Stmt) ([][]string, bool) {
	if s.Negated || s.Background || s.Coprocess || s.Disown || len(s.Redirs) > 0 || len(s.Comments) > 0 {
		return nil, false
	}
	switch c := s.Cmd.(type) {
	case *syntax.CallExpr:
		if len(c.Assigns) > 0 || len(c.Args) == 0 {
			return nil, false
		}
		words := make([]string, len(c.Args))
		for i, w := range c.Args {
			var ok bool
			if words[i], ok = plainWord(w, i == 0); !ok {
				return nil, false
			}
		}
		if words[0] == "unset" {
			return nil, false // the reference treats unset as an assignment
		}
		return append(commands, words), len(commands) < MaxCommands
	case *syntax.BinaryCmd:
		if c.Op != syntax.AndStmt && c.Op != syntax.OrStmt && c.Op != syntax.Pipe {
			return nil, false
		}
		var ok bool
		if commands, ok = plain(commands, c.X); !ok {
			return nil, false
		}
		return plain(commands, c.Y)
	}
	return nil, false
}

const (
	// notUnquoted are the characters that may have a special meaning outside of quotes.
	notUnquoted = "{}*?[]\\~^#$`"
	// escapable are the characters before which a backslash is special in double quotes.
	escapable = "$`\"\\\n"
)

// plainWord returns a word that has exactly its literal text. The first word of a command must also
// have no quotes and must not be a number.
func plainWord(w *syntax.Word, first bool) (string, bool) {
	var b strings.Builder
	for _, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(p.Value, notUnquoted) || first && strings.Contains(p.Value, "%") {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			if p.Dollar || first {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			text, ok := quoted(p)
			if !ok || first {
				return "", false
			}
			b.WriteString(text)
		default:
			return "", false
		}
	}
	word := b.String()
	if _, isLit := w.Parts[0].(*syntax.Lit); isLit && strings.HasPrefix(word, "=") || first && strings.Trim(word, "0123456789") == "" {
		return "", false
	}
	return word, true
}

// quoted returns the text between double quotes, if no character in it is special.
func quoted(p *syntax.DblQuoted) (string, bool) {
	if p.Dollar || len(p.Parts) == 0 {
		return "", !p.Dollar
	}
	lit, ok := p.Parts[0].(*syntax.Lit)
	if !ok || len(p.Parts) > 1 || strings.ContainsAny(lit.Value, "$`") {
		return "", false
	}
	for i := range len(lit.Value) {
		if lit.Value[i] == '\\' && i+1 < len(lit.Value) && strings.IndexByte(escapable, lit.Value[i+1]) >= 0 {
			return "", false
		}
	}
	return lit.Value, true
}
