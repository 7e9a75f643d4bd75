package filecopy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strconv"

	"golang.org/x/sys/unix"
)

// Receiver writes the files of a stream.
type Receiver struct {
	// Target is a native path. If it is a directory, the files go into it; otherwise the
	// received entry gets its name, and its parent must exist.
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
	// Note is called for entries that are left out, because they are no file, directory or link. It
	// may be nil.
	Note Note
	// Progress is called as [Sender.Progress] is, with the received bytes.
	Progress func(received, total int64)
}

// Receive reads the stream to its end. After an error, completely received files are in place, and
// nothing of any other: old files in their places remain. With [ErrIncomplete], everything has come
// except the entries reported to Note.
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
	err = in.entries()
	if err == nil {
		// Archives are padded. Read the padding too, so that the sender gets no error.
		_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{stream}, in.buf)
	}
	if dropped := in.drop(); err == nil {
		err = dropped
	}
	if left := in.tree.leave(0); err == nil {
		err = about(r.Target, left)
	}
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

	failed bool // something was left out

	// A received file that waits for its sum.
	file  *newFile
	names []string
	with  *attributes
	sum   hash.Hash
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

func (in *incoming) put() error {
	err := in.file.put(in.with)
	if dropped := in.drop(); err == nil {
		err = dropped
	}
	return about(in.to.path(in.names), err)
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
	switch {
	case directory:
		err = in.tree.directory(names, with)
	case len(names) == 0:
		err = unix.EISDIR
	case in.to.missing && len(names) == 1:
		err = errors.New("there is no such directory")
	case h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse || h.Typeflag == tar.TypeCont:
		return in.content(names, h, with)
	case h.Typeflag == tar.TypeSymlink:
		err = in.tree.link(names, h.Linkname, with)
	case h.Typeflag == tar.TypeLink:
		err = in.again(names, h.Linkname)
	default:
		in.failed = true
		if in.Note != nil {
			in.Note(in.to.path(names), errSpecial)
		}
	}
	return about(in.to.path(names), err)
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

// content writes a file, and puts it in its place unless its sum is still to come.
func (in *incoming) content(names []string, h *tar.Header, with *attributes) error {
	if h.Size > maxFile {
		return about(in.to.path(names), fmt.Errorf("has %d bytes, at most %d are allowed", h.Size, int64(maxFile)))
	}
	f, err := in.tree.create(names)
	if err != nil {
		return about(in.to.path(names), err)
	}
	in.file, in.names, in.with = f, names, with
	if !in.plain {
		in.sum = sha256.New()
	}
	if err := in.write(f, h.Size); err != nil {
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

// write writes the content of the entry. If a whole buffer is zero, nothing is written for it, and
// the file has a hole.
func (in *incoming) write(f *newFile, size int64) error {
	hole := false
	for at := int64(0); at < size; {
		data := in.buf[:min(size-at, int64(len(in.buf)))]
		if _, err := io.ReadFull(in.tar, data); err == io.EOF || err == io.ErrUnexpectedEOF {
			return ErrCut
		} else if err != nil {
			return fmt.Errorf("reading the stream: %w", err)
		}
		if !in.plain {
			in.sum.Write(data)
		}
		if hole = len(data) == len(zeros) && bytes.Equal(data, zeros[:]); !hole {
			if _, err := f.WriteAt(data, at); err != nil {
				return about(in.to.path(in.names), reason(err))
			}
		}
		at += int64(len(data))
		if in.Progress != nil {
			in.Progress(int64(len(data)), in.total)
		}
		if err := context.Cause(in.ctx); err != nil {
			return err
		}
	}
	if hole {
		return about(in.to.path(in.names), reason(f.Truncate(size)))
	}
	return nil
}

// zeros are compared with the data that was read.
var zeros [buffered]byte
