package filecopy

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Sender sends files and trees.
type Sender struct {
	// Sources are native paths. A path that ends in /. means the contents of the directory, any
	// other path the file or directory of its last name.
	Sources []string
	// Follow sends the target of a source that is a link. Links below a source are sent as links.
	Follow bool
	// Plain makes a stream for other programs.
	Plain bool
	// Measure makes the stream begin with the approximate number of bytes to come.
	Measure bool
	// Note is called for entries that cannot be read, or are no file, directory or link.
	// It may be nil.
	Note Note
	// Progress is called with the bytes of content sent since the last call, and the total, or -1
	// if unknown. It may be nil.
	Progress func(sent, total int64)
}

// ErrIncomplete says that some entries were left out, usually because they could not be read, and
// everything else was copied. Note gets the reasons.
var ErrIncomplete = errors.New("some files were left out")

// Send sends all sources. If one of them does not exist, it sends nothing.
func (s *Sender) Send(ctx context.Context, w io.Writer) error {
	roots := make([]root, len(s.Sources))
	for i, source := range s.Sources {
		var err error
		if roots[i], err = s.root(source); err != nil {
			return err
		}
	}
	buffer := bufio.NewWriterSize(w, gathered)
	o := &outgoing{Sender: s, ctx: ctx, tar: tar.NewWriter(buffer), buf: make([]byte, buffered), links: map[inode]string{}, total: -1}
	if s.Measure {
		o.total = 0
		for _, r := range roots {
			o.total += measure(ctx, r)
		}
	}
	if err := o.begin(); err != nil {
		return err
	}
	for _, r := range roots {
		if err := o.source(r); err != nil {
			return err
		}
	}
	if err := o.record(map[string]string{recordEnd: strconv.FormatInt(o.count, 10)}); err != nil {
		return err
	}
	if err := errors.Join(o.tar.Close(), buffer.Flush()); err != nil {
		return err
	}
	if o.failed {
		return ErrIncomplete
	}
	return nil
}

// root is a source, with the name that it has in the stream.
type root struct{ name, path string }

// contents reports whether a path means the contents of a directory, and not the directory itself.
func contents(path string) bool {
	base := filepath.Base(path)
	return strings.HasSuffix(path, "/.") || base == "." || base == ".." || base == "/"
}

// rootName returns the name that a source has in the stream.
func rootName(source string) string {
	if contents(source) {
		return "."
	}
	return filepath.Base(source)
}

// Names returns the names of the sources at the root of their stream. The name "." stands for the
// contents of a directory.
func Names(sources []string) []string {
	names := make([]string, len(sources))
	for i, source := range sources {
		names[i] = rootName(source)
	}
	return names
}

func (s *Sender) root(source string) (root, error) {
	if source == "" {
		return root{}, about(source, fs.ErrNotExist)
	}
	r := root{name: rootName(source), path: filepath.Clean(source)}
	look := os.Lstat
	// A slash at the end makes the path follow a link, as for the kernel.
	directory := strings.HasSuffix(source, "/") || r.name == "."
	if s.Follow || directory {
		look = os.Stat
		resolved, err := filepath.EvalSymlinks(source)
		if err != nil {
			return root{}, about(source, reason(err))
		}
		r.path = resolved
	}
	info, err := look(r.path)
	if err != nil {
		return root{}, about(source, reason(err))
	}
	if directory && !info.IsDir() {
		return root{}, about(source, unix.ENOTDIR)
	}
	return r, nil
}

// reason returns an error without its path, because the caller adds the path.
func reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// inode identifies a file that has several names.
type inode struct{ dev, ino uint64 }

// outgoing is one stream that is sent.
type outgoing struct {
	*Sender
	ctx    context.Context
	tar    *tar.Writer
	buf    []byte
	links  map[inode]string // the first name of each file that has several
	total  int64
	count  int64 // entries
	failed bool
}

func (o *outgoing) begin() error {
	records := map[string]string{recordBegin: version}
	if o.total >= 0 {
		records[recordBytes] = strconv.FormatInt(o.total, 10)
	}
	return o.record(records)
}

// record sends our records, unless the stream is plain.
func (o *outgoing) record(records map[string]string) error {
	if o.Plain {
		return nil
	}
	return o.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: records})
}

func (o *outgoing) note(path string, err error) {
	if o.Note != nil {
		o.Note(path, err)
	}
}

// omit notes that something cannot be read.
func (o *outgoing) omit(path string, err error) {
	o.failed = true
	o.note(path, reason(err))
}

func (o *outgoing) progress(n int64) {
	if o.Progress != nil {
		o.Progress(n, o.total)
	}
}

// source sends a source and everything below it. Its error, like the errors of all methods that it
// calls, is an error of the stream.
func (o *outgoing) source(r root) error {
	n, err := r.open()
	if err != nil {
		o.omit(r.path, err)
		return nil
	}
	defer unix.Close(n.dir)
	st, err := n.stat()
	if err != nil {
		o.omit(n.path, err)
		return nil
	}
	return o.tree(r.name, n, &st)
}

// tree sends a file, link or directory, and everything below it.
func (o *outgoing) tree(name string, n node, st *unix.Stat_t) error {
	if err := context.Cause(o.ctx); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return o.file(name, n)
	case unix.S_IFLNK:
		return o.link(name, n, st)
	case unix.S_IFDIR:
		return o.directory(name, n, st)
	}
	o.omit(n.path, errSpecial)
	return nil
}

// header sends the header of an entry. It leaves out an entry that no header can describe.
func (o *outgoing) header(native string, h *tar.Header) (sent bool, err error) {
	if len(h.Name) > maxName {
		o.omit(native, unix.ENAMETOOLONG)
		return false, nil
	}
	h.Format = tar.FormatPAX
	err = o.tar.WriteHeader(h)
	if errors.Is(err, tar.ErrHeader) {
		o.omit(native, err)
		return false, nil
	}
	o.count++
	return err == nil, err
}

func newHeader(name string, st *unix.Stat_t) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o777), ModTime: time.Unix(st.Mtim.Unix()), Uid: int(st.Uid), Gid: int(st.Gid)}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		h.Mode |= int64(st.Mode & unix.S_ISVTX)
	}
	return h
}

func (o *outgoing) directory(name string, n node, st *unix.Stat_t) error {
	h := newHeader(name+"/", st)
	h.Typeflag = tar.TypeDir
	if sent, err := o.header(n.path, h); !sent {
		return err
	}
	dir, entries, err := n.list()
	if err != nil {
		o.omit(n.path, err) // the entries that could be listed follow
	}
	if dir == nil {
		return nil
	}
	defer dir.Close()
	for _, entry := range entries {
		below := n.below(dir, entry.Name())
		if entry.Type().IsRegular() { // file checks whether it still is one
			if err := o.file(name+"/"+entry.Name(), below); err != nil {
				return err
			}
			continue
		}
		st, err := below.stat()
		if err != nil {
			o.omit(below.path, err)
			continue
		}
		if err := o.tree(name+"/"+entry.Name(), below, &st); err != nil {
			return err
		}
	}
	return nil
}

func (o *outgoing) link(name string, n node, st *unix.Stat_t) error {
	target, err := n.readlink()
	if err != nil {
		o.omit(n.path, err)
		return nil
	}
	h := newHeader(name, st)
	h.Typeflag, h.Linkname = tar.TypeSymlink, target
	_, err = o.header(n.path, h)
	return err
}

func (o *outgoing) file(name string, at node) error {
	f, st, err := at.open()
	if err != nil {
		o.omit(at.path, err)
		return nil
	}
	defer f.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		o.omit(at.path, errSpecial)
		return nil
	}
	h := newHeader(name, &st)
	var id inode // of a file with several names
	if st.Nlink > 1 {
		id = inode{st.Dev, st.Ino}
		if first, known := o.links[id]; known {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			_, err := o.header(at.path, h)
			return err
		}
	}
	h.Typeflag = tar.TypeReg
	sum := sha256.New()
	if !o.Plain && st.Size > int64(len(o.buf)) && st.Blocks*512 < st.Size {
		whole, err := o.pieces(f, at.path, h, st.Size, sum)
		if whole {
			o.first(id, name)
		}
		return err
	}
	n, err := beginning(f, o.buf, st.Size)
	switch {
	case err != nil:
		o.omit(at.path, err)
		return nil
	case n < len(o.buf):
		h.Size = int64(n)
	case st.Size < int64(n):
		o.omit(at.path, errors.New("left out: its size is not known"))
		return nil
	default:
		h.Size = st.Size
	}
	whole := h.Size == int64(n)
	if whole && !o.Plain {
		sum.Write(o.buf[:n])
		h.PAXRecords = map[string]string{recordSum: hex.EncodeToString(sum.Sum(nil))}
	}
	if sent, err := o.header(at.path, h); !sent {
		return err
	}
	if whole {
		_, err = o.tar.Write(o.buf[:n])
		o.progress(int64(n))
	} else if whole, err = o.content(f, at.path, n, h.Size, sum, true); err == nil {
		err = o.sum(sum, whole)
	}
	if whole {
		o.first(id, name)
	}
	return err
}

// first notes the first name of a file that has several.
func (o *outgoing) first(id inode, name string) {
	if id != (inode{}) && len(o.links) < maxLinks {
		o.links[id] = name
	}
}

// sum sends the sum of a file. The receiver drops a file that was not read to its end.
func (o *outgoing) sum(sum hash.Hash, whole bool) error {
	digest := changed
	if whole {
		digest = hex.EncodeToString(sum.Sum(nil))
	}
	return o.record(map[string]string{recordSum: digest})
}

// pieces sends a file with holes. It sends only the parts with data, each piece with a bounded number
// of them.
func (o *outgoing) pieces(f *os.File, native string, h *tar.Header, size int64, sum hash.Hash) (whole bool, err error) {
	h.PAXRecords = map[string]string{recordSize: strconv.FormatInt(size, 10)}
	if sent, err := o.header(native, h); !sent {
		return false, err
	}
	whole = true
	for at := int64(0); at < size; {
		var places []byte
		var data []io.Reader
		begin, bytes := at, int64(0)
		for at < size && len(data) < maxExtents {
			from, to := linux.NextData(int(f.Fd()), at, size)
			if at = to; from == to {
				break
			}
			places = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(places, uint64(from)), uint64(to-from))
			data, bytes = append(data, io.NewSectionReader(f, from, to-from)), bytes+to-from
		}
		o.progress(at - begin - bytes)
		if len(data) == 0 {
			break
		}
		err := o.tar.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: "piece", Size: int64(len(places)) + bytes, Format: tar.FormatPAX,
			PAXRecords: map[string]string{recordExtents: strconv.Itoa(len(data))},
		})
		if err != nil {
			return false, err
		}
		sum.Write(places)
		if _, err := o.tar.Write(places); err != nil {
			return false, err
		}
		if whole, err = o.content(io.MultiReader(data...), native, 0, bytes, sum, whole); err != nil {
			return false, err
		}
	}
	return whole, o.sum(sum, whole)
}

// beginning fills buf from a file, or reads the file to its end. If the file system reports the
// right size, it does not read again to find the end.
func beginning(f *os.File, buf []byte, size int64) (n int, err error) {
	for n < len(buf) {
		m, err := f.Read(buf[n:])
		n += m
		if err == io.EOF || err == nil && int64(n) == size {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// content sends the next size bytes of a file, of which the first n have been read. If the file is
// shorter than it was, zero bytes follow, and the result is false. If whole is false, only zero bytes
// are sent.
func (o *outgoing) content(f io.Reader, native string, n int, size int64, sum hash.Hash, whole bool) (bool, error) {
	for data := o.buf[:n]; ; {
		sum.Write(data)
		if _, err := o.tar.Write(data); err != nil {
			return false, err
		}
		o.progress(int64(len(data)))
		if size -= int64(len(data)); size == 0 {
			return whole, nil
		}
		if err := context.Cause(o.ctx); err != nil {
			return false, err
		}
		data = o.buf[:min(size, int64(len(o.buf)))]
		if !whole {
			clear(data)
			continue
		}
		n, err := io.ReadAtLeast(f, data, 1)
		if err == nil {
			data = data[:n]
			continue
		}
		if err == io.EOF {
			err = errShrunk
		}
		o.omit(native, err)
		whole = false
		clear(data)
	}
}
