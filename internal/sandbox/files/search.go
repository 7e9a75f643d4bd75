package files

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/pack"
)

const (
	// maxSearch is the largest packed result of a search, in bytes. Each string of a result counts 64 bytes
	// besides its own for [fsops.MaxSearchSize], which is more than what is packed for it. Characters that are
	// not UTF-8 can take three times their bytes.
	maxSearch = 2 * fsops.MaxSearchSize
	// maxSearchWords bounds the patterns of a search, in bytes.
	maxSearchWords = fsops.MaxSearchGlobs*(fsops.MaxSearchGlob+8) + fsops.MaxSearchPattern
)

// appendSearch encodes the options of a search.
func appendSearch(b []byte, o *fsops.SearchOptions) []byte {
	b = pack.AppendStrings(b, o.Globs)
	b = pack.AppendString(pack.AppendString(b, o.Pattern), o.Kind)
	b = append(b, pack.Bool(o.Literal), pack.Bool(o.IgnoreCase), pack.Bool(o.Hidden), pack.Bool(o.NoIgnore))
	for _, n := range []uint64{o.Before, o.After, o.MaxMatches, o.MaxFileMatches, o.MaxFiles, o.MaxDepth, o.MaxLine, uint64(o.Time)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func (d *decoder) search() (o fsops.SearchOptions) {
	o.Globs = d.strings(fsops.MaxSearchGlobs)
	o.Pattern, o.Kind = d.String(fsops.MaxSearchPattern), d.String(maxPath)
	o.Literal, o.IgnoreCase, o.Hidden, o.NoIgnore = d.Bool(), d.Bool(), d.Bool(), d.Bool()
	for _, n := range []*uint64{&o.Before, &o.After, &o.MaxMatches, &o.MaxFileMatches, &o.MaxFiles, &o.MaxDepth, &o.MaxLine} {
		*n = d.Uint64()
	}
	o.Time = time.Duration(d.Uint64())
	return o
}

// strings decodes a list of at most most strings; nil for none.
func (d *decoder) strings(most int) []string {
	list := d.Strings(maxSearch)
	d.Require(len(list) <= most)
	return list
}

// packSearch encodes the result of a search.
func packSearch(r *fsops.SearchResult) []byte {
	b := pack.AppendString(nil, r.Truncated)
	b = binary.LittleEndian.AppendUint64(b, r.FilesRead)
	b = binary.LittleEndian.AppendUint64(b, r.BinaryFiles)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Errors)))
	for _, e := range r.Errors {
		b = walkItem{path: e.Path, kind: kindError, err: e.Err}.append(b)
	}
	for _, f := range r.Files {
		b = pack.AppendString(pack.AppendString(b, f.Path), f.Kind)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Matches)))
		for _, m := range f.Matches {
			for _, n := range []uint64{m.Line, m.Column, m.Length, m.TextColumn} {
				b = binary.LittleEndian.AppendUint64(b, n)
			}
			b = append(pack.AppendString(b, m.Text), pack.Bool(m.Cut))
			b = pack.AppendStrings(pack.AppendStrings(b, m.Before), m.After)
		}
	}
	return b
}

// unpackSearch is the reverse of packSearch. It does not trust b.
func unpackSearch(b []byte) (r fsops.SearchResult, err error) {
	d := newDecoder(b)
	r.Truncated, r.FilesRead, r.BinaryFiles = d.String(maxPath), d.Uint64(), d.Uint64()
	for n := d.Uint32(); n > 0 && d.OK(); n-- {
		i := d.walkItem()
		d.Require(i.kind == kindError)
		r.Errors = append(r.Errors, fsops.WalkError{Path: i.path, Err: i.err})
	}
	for d.More() {
		f := fsops.SearchedFile{Path: d.String(maxPacket), Kind: d.String(maxPath)}
		for n := d.Uint32(); n > 0 && d.OK(); n-- {
			m := fsops.SearchMatch{Line: d.Uint64(), Column: d.Uint64(), Length: d.Uint64(), TextColumn: d.Uint64()}
			m.Text, m.Cut = d.String(maxSearch), d.Bool()
			m.Before, m.After = d.strings(fsops.MaxSearchContext), d.strings(fsops.MaxSearchContext)
			f.Matches = append(f.Matches, m)
		}
		r.Files = append(r.Files, f)
	}
	return r, d.End()
}

// search does a search, packs the result, and sends it in pieces.
func (a *reply) search(ctx context.Context, r *request) error {
	found, err := a.server.view.Search(ctx, r.path, r.search)
	if err != nil {
		return err
	}
	packed := packSearch(&found)
	if len(packed) > maxSearch {
		return fsops.InvalidError{Text: fmt.Sprintf("what was found is larger than %d bytes: lower maxMatches", maxSearch)}
	}
	a.pieces(packed)
	return nil
}

// pieces sends bytes in as many packets as they need.
func (a *reply) pieces(packed []byte) {
	for piece := range slices.Chunk(packed, maxPacket-answerHeader) {
		a.room(len(piece))
		a.packet = append(a.packet, piece...)
	}
}

// Search looks for names, or for lines of files, below root.
func (f *FS) Search(ctx context.Context, root string, o fsops.SearchOptions) (fsops.SearchResult, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) (fsops.SearchResult, error) { return v.Search(ctx, root, o) })
	}
	words := len(o.Pattern)
	for _, glob := range o.Globs {
		words += len(glob) + 8
	}
	if words > maxSearchWords || len(o.Kind) > maxPath {
		return fsops.SearchResult{}, fsops.InvalidError{Text: fmt.Sprintf("globs, pattern: %d bytes are more than %d", words, maxSearchWords)}
	}
	r, err := f.call(ctx, request{op: opSearch, path: root, search: o})
	if err != nil {
		return fsops.SearchResult{}, err
	}
	return unpackSearch(r.packed)
}
