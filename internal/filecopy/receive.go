package filecopy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Receiver writes the files of a stream.
type Receiver struct {
	// Target is a native path. If it is a directory, the files go into it; otherwise the
	// received entry gets its name, and its parent must exist. A link is never followed: one to a
	// file or to nothing is replaced, any other refused, and every one if Target ends in a slash.
	Target string
	// Many says that the stream has several roots, or is plain: the target must be a
	// directory.
	Many bool
	// Names are the requested names, see [Names]: the stream may have only these, and entries below
	// them. nil: any.
	Names []string
	// Plain takes a tar archive of any program.
	Plain bool
	// Owners gives everything the owner in the stream, which requires root.
	Owners bool
	// Note is called for entries that are left out, because they cannot be written, or are no file,
	// directory or link. It may be nil.
	Note Note
	// Progress is called as [Sender.Progress] is, with the received bytes.
	Progress func(received, total int64)
}

// Receive reads the stream to its end. After an error, completely received files are in place, and
// nothing of any other: old files in their places remain. With [ErrIncomplete], everything has come
// except the entries reported to Note, and what is below them.
//
// A file that can be written and not replaced, such as a mounted one, is written in place once all of
// its content has come.
func (r *Receiver) Receive(ctx context.Context, stream io.Reader) error {
	to, err := aim(r.Target, r.Many || r.Plain)
	if err != nil {
		return err
	}
	defer unix.Close(to.base)
	to.asked = r.Names
	stream = bufio.NewReaderSize(stream, gathered)
	in := &incoming{
		Receiver: r, ctx: ctx, tar: tar.NewReader(stream), to: to, tree: tree{base: to.base},
		buf: make([]byte, buffered), total: -1, plain: r.Plain,
	}
	in.tree.omitted = in.omit
	err = in.entries()
	if err == nil {
		// Archives are padded. Read the padding too, so that the sender gets no error.
		_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{stream}, in.buf)
	}
	if dropped := in.drop(); err == nil {
		err = dropped
	}
	in.tree.leave(0)
	if err == nil && in.failed {
		return ErrIncomplete
	}
	return err
}

// incoming is one stream that is received.
type incoming struct {
	*Receiver
	ctx   context.Context
	tar   *tar.Reader
	to    *target
	tree  tree
	buf   []byte
	total int64
	count int64 // entries
	plain bool
	began bool // the record begin has come
	ended bool // the record end has come

	failed bool     // something was left out
	omits  []string // a directory that was left out, with everything below it

	// A received file that waits for its sum.
	file  *newFile
	names []string
	with  *attributes
	sum   hash.Hash
	// A file with holes comes in pieces, and filled is the end of the last piece.
	holes  bool
	filled int64
}

// omit notes that an entry is left out.
func (in *incoming) omit(names []string, err error) {
	in.failed = true
	if in.Note != nil {
		in.Note(in.to.path(names), reason(err))
	}
}

// lose omits an entry after an error, and returns nil. It returns an error that other entries
// would meet, too.
func (in *incoming) lose(names []string, err error) error {
	for _, whole := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.ENOMEM, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, whole) {
			return about(in.to.path(names), reason(err))
		}
	}
	if err != nil {
		in.omit(names, err)
	}
	return nil
}

func (in *incoming) entries() error {
	for {
		if err := context.Cause(in.ctx); err != nil {
			return err
		}
		h, err := in.tar.Next()
		switch {
		case err == io.EOF && (in.plain || in.ended):
			return nil
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return ErrCut
		case err != nil:
			return fmt.Errorf("reading the stream: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			err = in.record(h.PAXRecords)
		} else {
			err = in.entry(h)
		}
		if err != nil {
			return err
		}
	}
}

// record handles one of our records. A plain stream has none of them, and the records of other
// programs have no meaning.
func (in *incoming) record(records map[string]string) error {
	if in.plain {
		return nil
	}
	if begin, ok := records[recordBegin]; ok && !in.began {
		if begin != version {
			return fmt.Errorf("the stream is of version %.32q, and not of %s", begin, version)
		}
		if n, err := strconv.ParseInt(records[recordBytes], 10, 64); err == nil && n >= 0 {
			in.total = n
		}
		in.began = true
		return nil
	}
	if sum, ok := records[recordSum]; ok && in.file != nil {
		if in.holes {
			in.file.short = true
			in.progress(in.file.size - in.filled)
		}
		return in.finish(sum)
	}
	if end, ok := records[recordEnd]; ok && in.began && in.file == nil {
		if end != strconv.FormatInt(in.count, 10) {
			return fmt.Errorf("the stream has %d entries and says %.32q", in.count, end)
		}
		in.ended = true
		return nil
	}
	return errors.New("the stream has a record out of its order")
}

// finish puts the received file in its place, if it has the sent content.
func (in *incoming) finish(sum string) error {
	switch got := hex.EncodeToString(in.sum.Sum(nil)); sum {
	case changed:
		return in.drop() // the sender reports the reason
	case got:
		return in.put()
	default:
		return about(in.to.path(in.names), fmt.Errorf("what came is not what was sent: its SHA-256 is %s, and not %.64q", got, sum))
	}
}

func (in *incoming) put() (err error) {
	if in.file.File != nil {
		err = in.file.put(in.with)
	}
	if dropped := in.drop(); err == nil {
		err = dropped
	}
	return in.lose(in.names, err)
}

// drop ends the writing of the last file, if there is one.
func (in *incoming) drop() error {
	if in.file == nil {
		return nil
	}
	err := in.file.drop()
	in.file = nil
	return err
}

func (in *incoming) entry(h *tar.Header) error {
	if extents, ok := h.PAXRecords[recordExtents]; ok && !in.plain {
		return in.piece(h, extents)
	}
	if !in.plain && (!in.began || in.ended || in.file != nil) {
		return errors.New("the stream has an entry out of its order")
	}
	if in.count++; in.count > maxEntries {
		return fmt.Errorf("the stream has more than %d entries", maxEntries)
	}
	names, err := in.to.place(h.Name)
	if err != nil {
		return err
	}
	with, err := in.attributes(h)
	if err != nil {
		return about(in.to.path(names), err)
	}
	directory := h.Typeflag == tar.TypeDir
	file := h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse || h.Typeflag == tar.TypeCont
	if !directory && path.Clean(h.Name) == "." {
		return fmt.Errorf("the stream has the source %s, which is no directory", Quote(h.Name))
	}
	if !in.plain && sparse(h) {
		return about(in.to.path(names), errors.New("has holes in a form of other programs"))
	}
	switch {
	case in.omits != nil && len(names) > len(in.omits) && slices.Equal(names[:len(in.omits)], in.omits):
	case directory:
		if in.to.linked && len(names) == 1 {
			err = in.to.unlink()
		}
		if err == nil {
			err = in.tree.directory(names, with)
		}
		if err != nil {
			in.omits = names
		}
	case in.to.missing && len(names) == 1:
		err = errors.New("there is no such directory")
	case file:
		return in.content(names, h, with)
	case h.Typeflag == tar.TypeSymlink:
		err = in.tree.link(names, h.Linkname, with)
	case h.Typeflag == tar.TypeLink:
		err = in.again(names, h.Linkname)
	default:
		err = errSpecial
	}
	if err := in.lose(names, err); err != nil || !file {
		return err
	}
	return in.content(names, h, nil)
}

// sparse reports whether a file has holes in a form of other programs. Its few bytes may stand for so
// many zeros that their sum would take days.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

func (in *incoming) again(names []string, first string) error {
	from, err := in.to.place(first)
	if err != nil {
		return err
	}
	if len(from) == 0 {
		return unix.EISDIR
	}
	return in.tree.again(names, from)
}

// attributes returns the attributes that an entry may have here. They have no set-ID bits, because
// a user who executes such a file becomes its owner.
func (in *incoming) attributes(h *tar.Header) (*attributes, error) {
	a := &attributes{mode: uint32(h.Mode) & 0o777, modified: h.ModTime, owner: in.Owners, uid: h.Uid, gid: h.Gid}
	if h.Typeflag == tar.TypeDir {
		a.mode |= uint32(h.Mode) & unix.S_ISVTX
	}
	const none = math.MaxUint32 // chown(2) leaves an id unchanged for this value
	if a.owner && (h.Uid < 0 || h.Uid >= none || h.Gid < 0 || h.Gid >= none) {
		return nil, fmt.Errorf("has the owner %d:%d", h.Uid, h.Gid)
	}
	return a, nil
}

// content writes a file, and puts it in its place unless its sum is still to come. Without
// attributes the file is dropped.
func (in *incoming) content(names []string, h *tar.Header, with *attributes) error {
	size := h.Size
	in.holes, in.filled = false, 0
	if text, ok := h.PAXRecords[recordSize]; ok && !in.plain {
		var err error
		if size, err = strconv.ParseInt(text, 10, 64); err != nil || size < 0 || h.Size != 0 {
			return about(in.to.path(names), fmt.Errorf("has the size %.32q and %d bytes", text, h.Size))
		}
		in.holes = true
	}
	if size > maxFile {
		return about(in.to.path(names), fmt.Errorf("has %d bytes, at most %d are allowed", size, int64(maxFile)))
	}
	f := new(newFile)
	if with != nil {
		made, err := in.tree.create(names)
		if err := in.lose(names, err); err != nil {
			return err
		}
		if err == nil {
			f = made
		}
	}
	f.size, f.short = size, in.holes
	in.file, in.names, in.with = f, names, with
	if !in.plain {
		in.sum = sha256.New()
	}
	if err := in.write(0, h.Size); err != nil {
		return err
	}
	if in.plain {
		return in.put()
	}
	if sum, ok := h.PAXRecords[recordSum]; ok {
		return in.finish(sum)
	}
	return nil
}

// piece writes a part of a file with holes: first come the places of its extents, then their bytes.
func (in *incoming) piece(h *tar.Header, text string) error {
	wrong := errors.New("the stream has a piece that fits no file")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxExtents || in.file == nil || !in.holes {
		return wrong
	}
	places := make([]byte, n*extentSize)
	if _, err := io.ReadFull(in.tar, places); err != nil {
		return ErrCut
	}
	in.sum.Write(places)
	for left := h.Size - int64(len(places)); ; places = places[extentSize:] {
		if len(places) == 0 {
			if left != 0 {
				return wrong
			}
			return nil
		}
		from, n := int64(binary.BigEndian.Uint64(places)), int64(binary.BigEndian.Uint64(places[8:]))
		if from < in.filled || n < 1 || n > left || from > in.file.size-n {
			return wrong
		}
		in.progress(from - in.filled)
		if err := in.write(from, n); err != nil {
			return err
		}
		in.filled, left = from+n, left-n
	}
}

func (in *incoming) progress(n int64) {
	if in.Progress != nil {
		in.Progress(n, in.total)
	}
}

// block is the size of the holes that a file gets where its content is zero, in bytes.
const block = 4 << 10

// write writes the next size bytes of the entry to the file. Blocks of zeros are left out, and the
// file has holes there.
func (in *incoming) write(from, size int64) error {
	for at := from; at < from+size; {
		data := in.buf[:min(from+size-at, int64(len(in.buf)))]
		if _, err := io.ReadFull(in.tar, data); err == io.EOF || err == io.ErrUnexpectedEOF {
			return ErrCut
		} else if err != nil {
			return fmt.Errorf("reading the stream: %w", err)
		}
		if !in.plain {
			in.sum.Write(data)
		}
		if err := in.file.fill(data, at); err != nil {
			err = in.lose(in.names, err)
			dropped := in.file.drop()
			in.file = &newFile{size: in.file.size}
			if err = errors.Join(err, dropped); err != nil {
				return err
			}
		}
		at += int64(len(data))
		in.progress(int64(len(data)))
		if err := context.Cause(in.ctx); err != nil {
			return err
		}
	}
	return nil
}

// fill writes data at an offset, without the blocks that are zero.
func (f *newFile) fill(data []byte, at int64) error {
	if f.File == nil {
		return nil
	}
	begin := 0 // of what is to be written
	for i := 0; i < len(data); i += block {
		end := min(i+block, len(data))
		if f.short = bytes.Equal(data[i:end], zeros[:end-i]); !f.short {
			continue
		}
		if err := f.writeAt(data[begin:i], at+int64(begin)); err != nil {
			return err
		}
		begin = end
	}
	return f.writeAt(data[begin:], at+int64(begin))
}

// writeAt does not call the kernel for nothing.
func (f *newFile) writeAt(data []byte, at int64) (err error) {
	if len(data) > 0 {
		_, err = f.WriteAt(data, at)
	}
	return err
}

// zeros are compared with the data that was read.
var zeros [block]byte
