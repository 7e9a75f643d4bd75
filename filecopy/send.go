package filecopy

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sender sends files and trees.
type Sender struct {
	// Sources are native paths. One that ends in /. stands for what is in the directory, any
	// other one for the file or directory of its last name.
	Sources []string
	// Follow sends what a source leads to that is a link. Links below a source are sent as they
	// are.
	Follow bool
	// Plain makes a stream for other programs.
	Plain bool
	// Measure has the stream say at its beginning how much is to come.
	Measure bool
	// Note hears of what cannot be read, and of what is no file, directory or link; nil:
	// nobody.
	Note Note
	// Progress hears how much content has been sent since the last time, and how much there is
	// in all, or -1; nil: nobody.
	Progress func(sent, total int64)
}

// ErrIncomplete says that something could not be read, and all else was sent. Note has the
// reasons.
var ErrIncomplete = errors.New("some files could not be read")

// Send sends all sources. If one of them is not there it sends nothing.
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
			o.total += measure(ctx, r.path)
		}
	}
	if err := o.begin(); err != nil {
		return err
	}
	for _, r := range roots {
		if err := o.tree(r.name, r.path, r.info); err != nil {
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
type root struct {
	name, path string
	info       fs.FileInfo
}

// contents tells whether a path means what is in a directory, and not the directory.
func contents(path string) bool {
	base := filepath.Base(path)
	return strings.HasSuffix(path, "/.") || base == "." || base == ".." || base == "/"
}

func (s *Sender) root(source string) (root, error) {
	if source == "" {
		return root{}, about(source, fs.ErrNotExist)
	}
	r := root{name: filepath.Base(source), path: filepath.Clean(source)}
	if contents(source) {
		r.name = "."
	}
	look := os.Lstat
	// A slash at the end leads through a link, as it does for the kernel.
	directory := strings.HasSuffix(source, "/") || r.name == "."
	if s.Follow || directory {
		look = os.Stat
		resolved, err := filepath.EvalSymlinks(source)
		if err != nil {
			return root{}, about(source, reason(err))
		}
		r.path = resolved
	}
	var err error
	if r.info, err = look(r.path); err != nil {
		return root{}, about(source, reason(err))
	}
	if directory && !r.info.IsDir() {
		return root{}, about(source, unix.ENOTDIR)
	}
	return r, nil
}

// reason is an error without the path, which stands elsewhere.
func reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// measure is the size of the files of a tree, as far as it can be read.
func measure(ctx context.Context, path string) (size int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

// inode tells which file has several names.
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

// record sends records of ours, unless the stream is plain.
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

// tree sends a path and all below it. Its error is one of the stream.
func (o *outgoing) tree(name, native string, info fs.FileInfo) error {
	if err := context.Cause(o.ctx); err != nil {
		return err
	}
	switch info.Mode().Type() {
	case 0:
		return o.file(name, native)
	case fs.ModeSymlink:
		return o.link(name, native, info)
	case fs.ModeDir:
		return o.directory(name, native, info)
	}
	o.note(native, errSpecial)
	return nil
}

// header sends the header of an entry. What no header can say is left out.
func (o *outgoing) header(native string, h *tar.Header) (sent bool, err error) {
	h.Format = tar.FormatPAX
	err = o.tar.WriteHeader(h)
	if errors.Is(err, tar.ErrHeader) {
		o.omit(native, err)
		return false, nil
	}
	o.count++
	return err == nil, err
}

func newHeader(name string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if info.Mode()&fs.ModeSticky != 0 && info.IsDir() {
		h.Mode |= unix.S_ISVTX
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	return h
}

func (o *outgoing) directory(name, native string, info fs.FileInfo) error {
	h := newHeader(name+"/", info)
	h.Typeflag = tar.TypeDir
	if sent, err := o.header(native, h); !sent {
		return err
	}
	entries, err := os.ReadDir(native)
	if err != nil {
		o.omit(native, err) // what could be listed of it follows
	}
	for _, entry := range entries {
		if entry.Type().IsRegular() { // nobody need ask what it is
			if err := o.file(name+"/"+entry.Name(), filepath.Join(native, entry.Name())); err != nil {
				return err
			}
			continue
		}
		info, err := entry.Info()
		if err != nil {
			o.omit(filepath.Join(native, entry.Name()), err)
			continue
		}
		if err := o.tree(name+"/"+entry.Name(), filepath.Join(native, entry.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

func (o *outgoing) link(name, native string, info fs.FileInfo) error {
	target, err := os.Readlink(native)
	if err != nil {
		o.omit(native, err)
		return nil
	}
	h := newHeader(name, info)
	h.Typeflag, h.Linkname = tar.TypeSymlink, target
	_, err = o.header(native, h)
	return err
}

func (o *outgoing) file(name, native string) error {
	// Not a link that has taken the place of the file, and not waiting for the other end of a
	// FIFO that has.
	f, err := os.OpenFile(native, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		o.omit(native, err)
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		o.omit(native, err)
		return nil
	}
	if !info.Mode().IsRegular() {
		o.note(native, errSpecial)
		return nil
	}
	h := newHeader(name, info)
	var id inode // of a file with several names
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		id = inode{st.Dev, st.Ino}
		if first, known := o.links[id]; known {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			_, err := o.header(native, h)
			return err
		}
	}
	h.Typeflag = tar.TypeReg
	n, err := beginning(f, o.buf, info.Size())
	switch {
	case err != nil:
		o.omit(native, err)
		return nil
	case n < len(o.buf):
		h.Size = int64(n)
	case info.Size() < int64(n):
		o.omit(native, errors.New("left out: its size is not known"))
		return nil
	default:
		h.Size = info.Size()
	}
	sum := sha256.New()
	whole := h.Size == int64(n)
	if whole && !o.Plain {
		sum.Write(o.buf[:n])
		h.PAXRecords = map[string]string{recordSum: hex.EncodeToString(sum.Sum(nil))}
	}
	if sent, err := o.header(native, h); !sent {
		return err
	}
	if whole {
		_, err = o.tar.Write(o.buf[:n])
		o.progress(int64(n))
	} else if whole, err = o.content(f, native, n, h.Size, sum); err == nil {
		digest := changed
		if whole {
			digest = hex.EncodeToString(sum.Sum(nil))
		}
		err = o.record(map[string]string{recordSum: digest})
	}
	if whole && id != (inode{}) && len(o.links) < maxLinks {
		o.links[id] = name
	}
	return err
}

// beginning fills buf from a file, or reads it to its end. One that its file system gives a size is
// not asked whether there is more.
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

// content sends the content of a file, of which the first n bytes have been read. If the file is
// shorter than it was, zero bytes follow, and whole is false.
func (o *outgoing) content(f *os.File, native string, n int, size int64, sum hash.Hash) (whole bool, err error) {
	whole = true
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
