package applypatch

import (
	"context"
	"errors"
	"io"
	"sort"
	"strings"
)

// edit is a chunk at its place: the lines of the chunk replace the text between two places.
type edit struct {
	chunk    *chunk
	from, to int
	// The last expected line of the chunk was missing; the last resulting line was dropped with it.
	dropOld, dropNew bool
}

// updated is a file with the edits of a hunk, in the order of their places.
type updated struct {
	*text
	edits []edit
}

// place finds the place of each chunk of h in data; path is for the texts of errors. A byte-order
// mark stays in front of the first line. Only where that line is not found without it, it belongs to
// the line, because a patch may have the mark, too.
func place(ctx context.Context, data []byte, h *hunk, path string) (*updated, error) {
	t := newText(data)
	marked := t.withoutMark()
	u, err := placeIn(ctx, t, h, path)
	if _, mismatch := errors.AsType[*MismatchError](err); marked && mismatch {
		if u, err := placeIn(ctx, newText(data), h, path); err == nil {
			return u, nil
		}
	}
	return u, err
}

func placeIn(ctx context.Context, t *text, h *hunk, path string) (*updated, error) {
	s := &search{text: t, hunk: h}
	u := &updated{text: s.text, edits: make([]edit, 0, len(h.chunks))}
	at := t.first
	for i := range h.chunks {
		c := &h.chunks[i]
		if c.context != "" {
			_, next, ok, err := s.find(ctx, [][]byte{[]byte(c.context)}, at, false)
			switch {
			case err != nil:
				return nil, err
			case !ok:
				return nil, &MismatchError{"Failed to find context '" + c.context + "' in " + path + s.nearest([]string{c.context}, at)}
			}
			at = next
		}
		if c.olds == 0 {
			u.edits = append(u.edits, edit{chunk: c, from: len(t.data), to: len(t.data)})
			continue
		}
		e, ok, err := s.place(ctx, c, at)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			old := c.old()
			return nil, &MismatchError{"Failed to find expected lines in " + path + ":\n" + strings.Join(old, "\n") + s.nearest(old, at)}
		}
		u.edits = append(u.edits, e)
		at = e.to
	}
	sort.SliceStable(u.edits, func(i, j int) bool { return u.edits[i].from < u.edits[j].from })
	return u, nil
}

// place finds the lines that c expects. If the last of them is empty, it also searches without that
// line, because models like to end a chunk with an empty line that the file does not have. If no
// lines are left then, the chunk's new lines go to the current place of the search.
func (s *search) place(ctx context.Context, c *chunk, at int) (e edit, ok bool, err error) {
	old := c.old()
	want := make([][]byte, len(old))
	for i, line := range old {
		want[i] = []byte(line)
	}
	e.chunk = c
	e.from, e.to, ok, err = s.find(ctx, want, at, c.atEnd)
	if ok || err != nil || !c.lastOldEmpty {
		return e, ok, err
	}
	e.dropOld, e.dropNew = true, c.news > 0 && c.lastNewEmpty
	if want = want[:len(want)-1]; len(want) == 0 {
		e.from, e.to = at, at
		return e, true, nil
	}
	e.from, e.to, ok, err = s.find(ctx, want, at, c.atEnd)
	return e, ok, err
}

// lines yields the lines of an edit: the mark of each, and the line in the file (from start to next
// in data) or, for an added line, in the patch. A line that stays has both.
func (e *edit) lines(t *text, yield func(mark byte, start, next int, added string)) {
	at, olds, news := e.from, 0, 0
	for mark, line := range e.chunk.body.all() {
		old, kept := mark != '+', mark != '-'
		if old {
			olds++
			old = !e.dropOld || olds < e.chunk.olds
		}
		if kept {
			news++
			kept = !e.dropNew || news < e.chunk.news
		}
		start, next := at, at
		if old {
			_, next = t.line(at)
			at = next
		}
		switch {
		case old && kept:
			yield(' ', start, next, "")
		case old:
			yield('-', start, next, "")
		case kept:
			yield('+', start, start, line)
		}
	}
}

// content writes the updated file. A last line without an end gets one.
func (u *updated) content(w io.Writer) error {
	out := output{w: w}
	at := 0
	for i := range u.edits {
		e := &u.edits[i]
		out.copy(u.text, at, e.from)
		e.lines(u.text, func(mark byte, start, next int, added string) {
			switch mark {
			case ' ':
				out.copy(u.text, start, next)
			case '+':
				out.text(added)
				out.text(u.eol)
			}
		})
		at = e.to
	}
	out.copy(u.text, at, len(u.data))
	return out.err
}

// output writes until there is an error.
type output struct {
	w   io.Writer
	err error
}

func (o *output) bytes(b []byte) {
	if o.err == nil && len(b) > 0 {
		_, o.err = o.w.Write(b)
	}
}

func (o *output) text(s string) {
	if o.err == nil && s != "" {
		_, o.err = io.WriteString(o.w, s)
	}
}

// copy writes a part of a file that consists of whole lines.
func (o *output) copy(t *text, from, to int) {
	o.bytes(t.data[from:to])
	if from < to && to == len(t.data) && t.open {
		o.text(t.eol)
	}
}

// content writes the content of the file that h adds.
func (h *hunk) content(w io.Writer) error {
	out := output{w: w}
	for _, line := range h.added.all() {
		out.text(line)
		out.text("\n")
	}
	return out.err
}
