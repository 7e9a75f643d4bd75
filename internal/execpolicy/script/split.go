package script

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Split returns the commands of a script, if it is plain: commands of literal words, joined by &&,
// ||, ;, | and newlines. Of every other script it returns false: it is opaque.
func Split(text string) (commands [][]string, ok bool) {
	file, ok := parse(text)
	if !ok || len(file.Stmts) == 0 || len(file.Last) > 0 {
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
			return nil, false // an assignment to the reference
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
	// notUnquoted are the characters that may mean something outside of quotes.
	notUnquoted = "{}*?[]\\~^#$`"
	// escapable are those before which a backslash means something in double quotes.
	escapable = "$`\"\\\n"
)

// plainWord returns a word that means what is written there. The first word of a command has no
// quotes either, and is no number.
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

// quoted returns the text between double quotes, if nothing in it means anything else.
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
