package applypatch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/execagent/execagent/fsops"
)

// Preview changes nothing, and writes the changes of p to out as a unified diff, hunk by hunk: each
// hunk's diff is based on the result of the earlier hunks. It finds errors in the patch and in the
// files, but not errors that only writing would show. It returns an error of out, and an error if
// the diff has more than limit bytes.
func (t *Target) Preview(ctx context.Context, p *Patch, out io.Writer, limit int) ([]Change, error) {
	v := &preview{
		overlay: overlay{Target: t, entries: map[string]*touchedFile{}},
		diff:    diff{output{w: &limited{out, limit}}, t.Dir},
	}
	changes, err := t.apply(ctx, p, v)
	if err == nil {
		err = v.err
	}
	return changes, err
}

// preview is a tree in which new contents are kept in memory, at most maxFile bytes of all files.
type preview struct {
	overlay
	diff
	kept int
}

func (v *preview) add(ctx context.Context, path string, h *hunk) error {
	e, err := v.ready(ctx, path)
	if err != nil {
		return writeError(path, err)
	}
	var old *source
	if e.existed || e.filled {
		if old, err = v.read(ctx, path); err != nil && !errors.Is(err, syscall.ENOENT) {
			return writeError(path, err)
		}
	}
	v.header(path, old != nil, path, true)
	v.replace(old, h)
	return v.fill(e, path, h.content)
}

func (v *preview) update(ctx context.Context, src *source, u *updated) error {
	e, err := v.ready(ctx, src.path)
	if err != nil {
		return writeError(src.path, err)
	}
	v.header(src.path, true, src.path, true)
	v.hunks(u)
	return v.fill(e, src.path, u.content)
}

func (v *preview) move(ctx context.Context, src *source, path string, u *updated) error {
	e, err := v.ready(ctx, path)
	if err != nil {
		return writeError(path, err)
	}
	same, err := v.same(ctx, src, e)
	if err != nil {
		return writeError(path, err)
	}
	v.header(src.path, true, path, true)
	v.hunks(u)
	if err := v.fill(e, path, u.content); err != nil || same {
		return err
	}
	if err := v.take(ctx, src.path); err != nil {
		return deleteError(src.path, err)
	}
	return nil
}

func (v *preview) remove(ctx context.Context, path string) error {
	old, err := v.read(ctx, path)
	if _, ok := errors.AsType[fsops.InvalidError](err); ok {
		old, err = &source{}, nil // a fifo, say
	}
	if err == nil {
		err = v.take(ctx, path)
	}
	if err != nil {
		return deleteError(path, err)
	}
	v.header(path, true, path, false)
	v.replace(old, nil)
	return nil
}

// ready returns the file at path, if a new content could be written to it.
func (v *preview) ready(ctx context.Context, path string) (*touchedFile, error) {
	e, err := v.fresh(ctx, path)
	if err != nil || e.existed || e.filled {
		return e, err
	}
	for dir := filepath.Dir(e.path); ; dir = filepath.Dir(dir) {
		m, err := v.Files.Stat(ctx, dir, fsops.FollowLinks)
		switch {
		case errors.Is(err, syscall.ENOENT) && dir != "/":
			continue
		case err == nil && !m.IsDirectory:
			err = syscall.ENOTDIR
		}
		return e, err
	}
}

// fill keeps the new content of e.
func (v *preview) fill(e *touchedFile, path string, content func(io.Writer) error) error {
	var b bytes.Buffer
	if err := content(&b); err != nil {
		return writeError(path, err)
	}
	if v.kept += b.Len(); v.kept > maxFile {
		return writeError(path, syscall.EFBIG)
	}
	e.data, e.filled, e.gone = b.Bytes(), true, false
	v.keep(e)
	return nil
}

// limited is a writer that takes at most left bytes.
type limited struct {
	io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, fsops.InvalidError{Text: "the diff of the patch is too long"}
	}
	return l.Writer.Write(p)
}

// diff writes a unified diff. In it, paths below dir are relative.
type diff struct {
	output
	dir string
}

// header begins the diff of a file: the path that it has before, if it is there, and after.
func (d *diff) header(from string, before bool, to string, after bool) {
	below := strings.TrimSuffix(d.dir, "/") + "/"
	from, to = strings.TrimPrefix(from, below), strings.TrimPrefix(to, below)
	from, to = strings.TrimPrefix(from, "/"), strings.TrimPrefix(to, "/")
	if from != to {
		d.text("diff --git a/" + from + " b/" + to + "\nrename from " + from + "\nrename to " + to + "\n")
	}
	old, changed := "a/"+from, "b/"+to
	if !before {
		old = "/dev/null"
	}
	if !after {
		changed = "/dev/null"
	}
	d.text("--- " + old + "\n+++ " + changed + "\n")
}

// place writes the line before the lines of a hunk of the diff.
func (d *diff) place(from, olds, to, news int) {
	number := func(at, count int) string {
		if count == 0 {
			at-- // the line after which lines are added or removed
		}
		return strconv.Itoa(at) + "," + strconv.Itoa(count)
	}
	d.text("@@ -" + number(from, olds) + " +" + number(to, news) + " @@\n")
}

// line writes a line. Only a line feed ends it for who reads the diff.
func (d *diff) line(mark byte, line string) {
	d.bytes([]byte{mark})
	d.text(line)
	if !strings.HasSuffix(line, "\n") {
		d.text("\n")
	}
}

const noEnd = "\\ No newline at end of file\n"

// hunks writes what an update changes.
func (d *diff) hunks(u *updated) {
	at, from, to := u.first, 1, 1 // a place, and its line in the file before and after
	for _, e := range u.shown() {
		for at < e.from {
			_, at = u.line(at)
			from, to = from+1, to+1
		}
		olds, news := 0, 0
		e.lines(u.text, func(mark byte, _, _ int, _ string) {
			if mark != '+' {
				olds++
			}
			if mark != '-' {
				news++
			}
		})
		d.place(from, olds, to, news)
		// The first line of each file has the byte-order mark.
		before, after := string(u.data[:u.first]), string(u.data[:u.first])
		if from > 1 {
			before = ""
		}
		if to > 1 {
			after = ""
		}
		e.lines(u.text, func(mark byte, start, next int, added string) {
			line := string(u.data[start:next])
			open := u.open && next == len(u.data)
			switch {
			case mark == '+':
				d.line('+', after+added+u.eol)
			case mark == '-' || open || before != after:
				d.line('-', before+line)
				if open {
					d.text(noEnd)
					line += u.eol
				}
				if mark == ' ' {
					d.line('+', after+line)
				}
			default:
				d.line(' ', before+line)
			}
			if mark != '+' {
				before = ""
			}
			if mark != '-' {
				after = ""
			}
		})
		at, from, to = e.to, from+olds, to+news
	}
}

// shown returns the edits, and where the last line of the file gets an end without one, one for
// that line.
func (u *updated) shown() []edit {
	if !u.open {
		return u.edits
	}
	before := len(u.edits)
	for before > 0 && u.edits[before-1].from == len(u.data) {
		before--
	}
	if before > 0 && u.edits[before-1].to == len(u.data) {
		return u.edits
	}
	stays := &chunk{body: " ", olds: 1, news: 1}
	last := edit{chunk: stays, from: u.before(len(u.data)), to: len(u.data)}
	return append(append(u.edits[:before:before], last), u.edits[before:]...)
}

// replace writes the removal of a whole file, and its new content; nil means none.
func (d *diff) replace(old *source, h *hunk) {
	olds, news := 0, 0
	var text *text
	if old != nil {
		if checkUTF8(old.data) != nil {
			d.text("Binary file\n")
			return
		}
		text = newText(old.data)
		for at := 0; at < len(old.data); olds++ {
			_, at = text.line(at)
		}
	}
	if h != nil {
		for range h.added.all() {
			news++
		}
	}
	if olds+news == 0 {
		return
	}
	d.place(1, olds, 1, news)
	for at := 0; old != nil && at < len(old.data); {
		_, next := text.line(at)
		d.line('-', string(old.data[at:next]))
		if text.open && next == len(old.data) {
			d.text(noEnd)
		}
		at = next
	}
	if h == nil {
		return
	}
	for _, line := range h.added.all() {
		d.line('+', line)
	}
}
