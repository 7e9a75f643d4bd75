package script

import (
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Split returns the commands of a plain script: commands of literal words, joined by &&, ||, ;, |
// and newlines. It returns false for every other script (an opaque script).
func Split(text string) (commands [][]string, ok bool) {
	s, ok := split(text)
	return s.commands, ok
}

// Folders returns the folders in which the commands of a plain script run, if the script runs in dir
// and each cd in it works. A folder is "" if it depends on more.
func Folders(text, dir string) []string {
	s, _ := split(text)
	for i, folder := range s.folders {
		if folder != "" && !path.IsAbs(folder) {
			s.folders[i] = path.Join(dir, folder)
		}
	}
	return s.folders
}

// splitter takes a plain script apart.
type splitter struct {
	commands [][]string
	folders  []string
	folder   string // of the next command
}

func split(text string) (s splitter, ok bool) {
	s.folder = "."
	if strings.ContainsAny(text, "\r\x00") {
		return splitter{}, false
	}
	defer takeTurn(text)()
	file, err := parse(text)
	if err != nil || len(file.Stmts) == 0 || len(file.Last) > 0 {
		return splitter{}, false
	}
	for _, stmt := range file.Stmts {
		if !s.plain(stmt) {
			return splitter{}, false
		}
	}
	return s, true
}

// plain appends the commands of a statement, and reports whether it is plain.
func (sp *splitter) plain(s *syntax.Stmt) bool {
	if s.Negated || s.Background || s.Coprocess || s.Disown || len(s.Redirs) > 0 || len(s.Comments) > 0 {
		return false
	}
	switch c := s.Cmd.(type) {
	case *syntax.CallExpr:
		if len(c.Assigns) > 0 || len(c.Args) == 0 {
			return false
		}
		words := make([]string, len(c.Args))
		for i, w := range c.Args {
			var ok bool
			if words[i], ok = plainWord(w, i == 0); !ok {
				return false
			}
		}
		if words[0] == "unset" {
			return false // the reference treats unset as an assignment
		}
		sp.commands, sp.folders = append(sp.commands, words), append(sp.folders, sp.folder)
		sp.folder = after(sp.folder, words)
		return len(sp.commands) <= MaxCommands
	case *syntax.BinaryCmd:
		if c.Op != syntax.AndStmt && c.Op != syntax.OrStmt && c.Op != syntax.Pipe {
			return false
		}
		before := sp.folder
		if !sp.plain(c.X) {
			return false
		}
		changed := sp.folder != before
		switch {
		case c.Op == syntax.Pipe: // each part is a process of its own
			sp.folder = before
		case c.Op == syntax.OrStmt && changed:
			sp.folder = ""
		}
		middle := sp.folder
		if !sp.plain(c.Y) {
			return false
		}
		switch {
		case c.Op == syntax.Pipe:
			sp.folder = before
		case c.Op == syntax.OrStmt && sp.folder != middle:
			sp.folder = ""
		}
		return true
	}
	return false
}

// after returns the folder of the command behind one in folder.
func after(folder string, words []string) string {
	switch words[0] {
	case "cd":
		switch {
		case len(words) != 2 || words[1] == "" || words[1][0] == '-':
			return ""
		case path.IsAbs(words[1]):
			return words[1]
		case folder == "":
			return ""
		}
		return folder + "/" + words[1]
	case "set", "setopt", "emulate", "shopt", "pushd", "popd", "builtin", "command", "eval", "exec", "source", ".":
		return ""
	}
	return folder
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
