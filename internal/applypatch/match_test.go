package applypatch

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// pieces are what random lines are made of: some are equal in one pass only.
var pieces = []string{"a", "b", " ", "\t", "\u00a0", "-", "\u2013", "'", "\u2019", "\u3000", "\u200b", "\v", "é"}

func aLine() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 3).Draw(t, "pieces"), "")
	})
}

// aText is a file of random lines.
func aText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		ends := []string{"\n", "\n", "\r\n", "\r"}
		for range rapid.IntRange(0, 12).Draw(t, "lines") {
			b.WriteString(aLine().Draw(t, "line") + rapid.SampledFrom(ends).Draw(t, "end"))
		}
		if rapid.Bool().Draw(t, "open") {
			b.WriteString(rapid.SampledFrom([]string{"a", "-", "b "}).Draw(t, "last"))
		}
		return b.String()
	})
}

// cut returns the lines of a file with their ends, cut in the plainest way.
func cut(text string) (all []string) {
	for text != "" {
		i := strings.IndexAny(text, "\r\n")
		switch {
		case i < 0:
			i = len(text)
		case strings.HasPrefix(text[i:], "\r\n"):
			i += 2
		default:
			i++
		}
		all = append(all, text[:i])
		text = text[i:]
	}
	return all
}

func bare(line string) []byte { return []byte(strings.TrimRight(line, "\r\n")) }

// TestFind compares the search with one that tries each place.
func TestFind(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := aText().Draw(t, "text")
		all := cut(text)
		first := rapid.IntRange(0, len(all)).Draw(t, "first")
		from := len(strings.Join(all[:first], ""))
		var h hunk
		s := &search{text: newText([]byte(text)), hunk: &h}
		// Several searches in one text: later ones have a sieve.
		for range 3 {
			var want [][]byte
			for range rapid.IntRange(1, 3).Draw(t, "wanted") {
				line := aLine().Draw(t, "want")
				if len(all) > 0 && rapid.Bool().Draw(t, "there") {
					line = string(bare(rapid.SampledFrom(all).Draw(t, "which")))
				}
				want = append(want, []byte(line))
			}
			body := " " + string(bytes.Join(want, []byte("\n "))) + "\n"
			h.chunks = []chunk{{body: lines(body), olds: len(want)}}
			atEnd := rapid.Bool().Draw(t, "at end")
			if rapid.Bool().Draw(t, "sieve") {
				s.last, _ = s.newSieve(t.Context(), from)
			} else {
				s.last = nil
			}
			start, next, ok, err := s.find(t.Context(), want, from, atEnd)
			rig.Must(t, err)
			at, found := findPlainly(all, want, first, atEnd)
			rig.Is(t, ok, found, "in %q from %d: found", text, from)
			if !ok || !found {
				continue
			}
			rig.Is(t, start, len(strings.Join(all[:at], "")), "in %q: found from", text)
			rig.Is(t, next, len(strings.Join(all[:at+len(want)], "")), "in %q: found up to", text)
		}
	})
}

func findPlainly(all []string, want [][]byte, first int, atEnd bool) (at int, ok bool) {
	for p := range passes {
		for i := first; i+len(want) <= len(all); i++ {
			if atEnd && i+len(want) != len(all) {
				continue
			}
			same := true
			for j, w := range want {
				same = same && p.equal(bare(all[i+j]), w)
			}
			if same {
				return i, true
			}
		}
	}
	return 0, false
}

// TestEqual: what is equal in a pass is equal in those after it, and has one hash.
func TestEqual(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		from pass // the first pass in which they are equal
	}{
		{"a", "a", exact},
		{"a \t", "a", right},
		{"a\u00a0", "a", right},
		{"\u3000a", "a", trimmed},
		{" a", "a ", trimmed},
		{"a \u2013 b", "a - b", folded},
		{"\u201cx\u2019", "\"x'", folded},
		{"a\u202fb", "a b", folded},
		{strings.Repeat("\u2212", 300), strings.Repeat("-", 300), folded},
		{"a\u2000b", "a b", passes}, // not every blank is one here
		{"a\u200b", "a", passes},
		{"a", "A", passes},
		{"a b", "ab", passes},
	} {
		s := &search{text: newText(nil), hunk: &hunk{}}
		v, err := s.newSieve(t.Context(), 0)
		rig.Must(t, err)
		for p := range passes {
			rig.Is(t, p.equal([]byte(tt.a), []byte(tt.b)), (p >= tt.from), "%q and %q are equal in pass %d", tt.a, tt.b, p)
			rig.Is(t, p.hash(v.seed, []byte(tt.a)) == p.hash(v.seed, []byte(tt.b)), (p >= tt.from), "%q and %q have one hash in pass %d", tt.a, tt.b, p)
		}
	}
}

// TestUpdate: a chunk that has all lines of a file makes of it what the chunk says, and leaves
// the ends of the lines that stay.
func TestUpdate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := aText().Draw(t, "text")
		all := cut(text)
		eol := newText([]byte(text)).eol
		var body, want strings.Builder
		come := func() {
			for range rapid.IntRange(0, 2).Draw(t, "new") {
				line := aLine().Draw(t, "line")
				body.WriteString("+" + line + "\n")
				want.WriteString(line + eol)
			}
		}
		if come(); len(all) == 0 && body.Len() == 0 {
			return
		}
		for _, line := range all {
			bare := string(bare(line))
			if rapid.Bool().Draw(t, "stays") {
				body.WriteString(" " + bare + "\n")
				want.WriteString(line)
				if line == bare {
					want.WriteString(eol)
				}
			} else {
				body.WriteString("-" + bare + "\n")
			}
			come()
		}
		if rapid.Bool().Draw(t, "at end") {
			body.WriteString(eofMark + "\n")
		}
		p, err := Parse(beginMark + "\n" + updMark + "f\n@@\n" + body.String() + endMark)
		rig.Must(t, err)
		mark := rapid.SampledFrom([]string{"", byteOrderMark}).Draw(t, "mark")
		u, err := place(t.Context(), []byte(mark+text), &p.hunks[0], "/f")
		rig.Must(t, err)
		var got strings.Builder
		rig.Must(t, u.content(&got))
		rig.Is(t, got.String(), mark+want.String(), "%q became", text)
	})
}

// TestNearest: the message about lines that were not found shows those of the file that are most
// like them.
func TestNearest(t *testing.T) {
	t.Parallel()
	file := "func a() {\n\treturn 1\n}\n\nfunc b() {\n\treturn 2\n}\n"
	for _, tt := range []struct{ hunk, want string }{
		{"@@\n func b() {\n-\treturn 3\n+\treturn 4\n }\n", "/f:\nfunc b() {\n\treturn 3\n}\nThe nearest lines are 5 to 7:\nfunc b() {\n\treturn 2\n}"},
		{"@@\n-\treturn 12\n+x\n", "/f:\n\treturn 12\nThe nearest line is 2:\n\treturn 1"},
		{"@@ func c() {\n-x\n+y\n", "Failed to find context 'func c() {' in /f\nThe nearest line is 1:\nfunc a() {"},
		{"@@\n-func b() {\n+x\n@@\n-func a() {\n+y\n", "/f:\nfunc a() {\nThe nearest line is 1, before the place where the search began:\nfunc a() {"},
		{"@@\n-nothing like this is there\n+x\n", "/f:\nnothing like this is there"},
		{"@@\n }\n \n-x\n", "/f:\n}\n\nx\nThe nearest lines are 3 to 5:\n}\n\nfunc b() {"},
	} {
		p := rig.Value(Parse(beginMark + "\n" + updMark + "f\n" + tt.hunk + endMark))
		_, err := place(t.Context(), []byte(file), &p.hunks[0], "/f")
		rig.Is(t, err != nil && strings.HasSuffix(err.Error(), tt.want), true, "%q: %v", tt.hunk, err)
	}
}
