package applypatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// print writes p as Parse reads it.
func (p *Patch) print() string {
	var b strings.Builder
	b.WriteString(beginMark + "\n")
	for i := range p.hunks {
		h := &p.hunks[i]
		b.WriteString([]string{Add: addMark, Update: updMark, Delete: delMark}[h.kind] + h.path + "\n")
		if h.moveTo != "" {
			b.WriteString(moveMark + h.moveTo + "\n")
		}
		h.added.print(&b)
		for j := range h.chunks {
			c := &h.chunks[j]
			b.WriteString(atMark)
			if c.context != "" {
				b.WriteString(" " + c.context)
			}
			b.WriteString("\n")
			c.body.print(&b)
			if c.atEnd {
				b.WriteString(eofMark + "\n")
			}
		}
	}
	b.WriteString(endMark + "\n")
	return b.String()
}

func (l lines) print(b *strings.Builder) {
	for mark, line := range l.all() {
		b.WriteByte(mark)
		b.WriteString(line + "\n")
	}
}

// FuzzParse: what is wrong with a text is said of one of its lines; what is not wrong can be
// printed, and is the same patch then.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("testdata/cases.jsonl")
	rig.Must(f, err)
	for line := range bytes.Lines(text) {
		var c struct {
			Patch json.RawMessage `json:"patch"`
		}
		rig.Must(f, json.Unmarshal(line, &c))
		var patch string
		if json.Unmarshal(c.Patch, &patch) == nil {
			f.Add(patch)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if wrong, ok := errors.AsType[*SyntaxError](err); ok {
			rig.Is(t, wrong.Line >= 0 && wrong.Line <= strings.Count(text, "\n")+1, true, "%v: the patch has so many lines", err)
			return
		}
		if errors.Is(err, ErrEmpty) {
			return
		}
		rig.Must(t, err)
		for i := range p.hunks {
			for j := range p.hunks[i].chunks {
				checkCounts(t, &p.hunks[i].chunks[j])
			}
		}
		printed := p.print()
		again, err := Parse(printed)
		rig.Must(t, err)
		rig.Is(t, again.print(), printed, "printed %q, and then", printed)
	})
}

// checkCounts compares what a chunk tells of its body with the body.
func checkCounts(t *testing.T, c *chunk) {
	var counted chunk
	for mark, line := range c.body.all() {
		counted.count(mark, line == "")
	}
	counted.context, counted.body, counted.atEnd = c.context, c.body, c.atEnd
	rig.Is(t, *c, counted, "a chunk")
	rig.Is(t, c.olds, len(c.old()), "old lines of %q", c.body)
	rig.Is(t, c.olds+c.news > 0, true, "%q has lines", c.body)
}

// TestParseBounds: a patch with very many parts is refused before they fill the memory.
func TestParseBounds(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"bytes":  strings.Repeat(" ", maxPatch+1),
		"hunks":  beginMark + "\n" + strings.Repeat(delMark+"a\n", maxParts+1) + endMark,
		"chunks": beginMark + "\n" + updMark + "a\n" + strings.Repeat("@@\n+\n", maxParts) + endMark,
		"lines":  beginMark + "\n" + updMark + "a\n" + strings.Repeat(" \n", maxParts+1) + endMark,
	} {
		_, err := Parse(text)
		rig.Is(t, strings.Contains(fmt.Sprint(err), " at most "), true, "%s: %v names the bound", name, err)
	}
}
