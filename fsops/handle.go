package fsops

import (
	"io/fs"
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// Limits of [Handles]; rpc.md 5.5.
const (
	MaxHandles     = 128     // open at once
	MaxHandleID    = 32      // bytes
	MaxBlockLength = 1 << 20 // bytes of one read or write
)

// Mode reports whether a handle reads or writes.
type Mode uint8

const (
	// ModeRead reads an existing regular file.
	ModeRead Mode = iota
	// ModeReplace writes a regular file, created or truncated at open.
	ModeReplace
)

// Handles are the files that one connection holds open, by the ids that the
// connection chose. The zero value is ready for use. All methods may run
// concurrently; CloseAll releases everything.
type Handles struct {
	mu     sync.Mutex
	open   map[string]*handle
	closed bool
}

// handle is one open file. A user of fd holds mu for reading. Closing waits for
// all users, because otherwise fd could become another file while they use it.
type handle struct {
	mode Mode
	mu   sync.RWMutex
	fd   int // -1 while opening and after close
}

// Open calls open, in this goroutine, and keeps the descriptor that open returns
// under id, until Close or CloseAll closes it. Open first checks, in this order,
// the length of id, that id is not in use, and the number of handles. A file that
// is not regular is an [InvalidError]; errors of open pass through.
func (h *Handles) Open(id string, mode Mode, open func() (fd int, err error)) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	f := &handle{mode: mode, fd: -1}
	if err := h.reserve(id, f); err != nil {
		return err
	}
	err := f.open(id, open)
	if err != nil {
		h.drop(id, f)
		return err
	}
	h.mu.Lock()
	gone := h.open[id] != f
	h.mu.Unlock()
	if gone { // closed while it was being opened
		f.close()
	}
	return nil
}

// open gives f its descriptor. At that time, calls for the same id wait for f.mu.
func (f *handle) open(id string, open func() (int, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fd, err := open()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = fstat(fd, &st); err == nil && !isRegular(&st) {
		err = invalidf("file handle %q is for what is not a regular file", id)
	}
	if err != nil {
		unix.Close(fd)
		return pathError("open", id, err)
	}
	f.fd = fd
	return nil
}

// Len returns how many files are open.
func (h *Handles) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open)
}

func checkHandleID(id string) error {
	if len(id) > MaxHandleID {
		return invalidf("file handle id of %d bytes is longer than %d", len(id), MaxHandleID)
	}
	return nil
}

func (h *Handles) reserve(id string, f *handle) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fs.ErrClosed
	}
	if h.open[id] != nil {
		return invalidf("file handle %q is open already", id)
	}
	if len(h.open) >= MaxHandles {
		return invalidf("file handle %q would be one more than %d", id, MaxHandles)
	}
	if h.open == nil {
		h.open = map[string]*handle{}
	}
	h.open[id] = f
	return nil
}

// ReadBlock reads length bytes (1 to [MaxBlockLength]) at offset, fewer only at
// the end of the file, which eof reports. The slice comes from alloc. An error
// of the system closes the handle; an offset over 2^63-1 (EINVAL) and a handle
// for writing (EBADF) are such errors.
func (h *Handles) ReadBlock(id string, offset, length uint64, alloc Alloc) (block []byte, eof bool, err error) {
	if err := checkHandleID(id); err != nil {
		return nil, false, err
	}
	if length < 1 || length > MaxBlockLength {
		return nil, false, invalidf("block length %d is not between 1 and %d", length, MaxBlockLength)
	}
	f, err := h.acquire(id)
	if err != nil {
		return nil, false, err
	}
	buf, err := alloc.get(int(length))
	if err != nil {
		f.mu.RUnlock()
		return nil, false, err
	}
	buf = buf[:length]
	n, err := f.pread(buf, offset)
	f.mu.RUnlock()
	if err != nil {
		h.drop(id, f)
		return nil, false, pathError("read", id, err)
	}
	return buf[:n], n < len(buf), nil
}

// WriteBlock writes 1 to [MaxBlockLength] bytes at offset; a gap before it
// reads as zero bytes. An error leaves the handle open. A handle for reading
// gives EBADF.
func (h *Handles) WriteBlock(id string, offset uint64, block []byte) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	if len(block) < 1 || len(block) > MaxBlockLength {
		return invalidf("block length %d is not between 1 and %d", len(block), MaxBlockLength)
	}
	if offset > math.MaxInt64-uint64(len(block)) {
		return invalidf("block of %d bytes at offset %d ends beyond %d", len(block), offset, int64(math.MaxInt64))
	}
	f, err := h.acquire(id)
	if err != nil {
		return err
	}
	defer f.mu.RUnlock()
	return pathError("write", id, f.pwrite(block, int64(offset)))
}

// Close closes a handle once the calls that use it are done. It is no error if
// the handle is not open.
func (h *Handles) Close(id string) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	h.mu.Lock()
	f := h.open[id]
	h.mu.Unlock()
	if f != nil {
		h.drop(id, f)
	}
	return nil
}

// CloseAll closes every handle. Later calls of Open fail with [fs.ErrClosed].
func (h *Handles) CloseAll() {
	h.mu.Lock()
	h.closed = true
	open := h.open
	h.open = nil
	h.mu.Unlock()
	for _, f := range open {
		f.close()
	}
}

// acquire returns an open handle with f.mu locked for reading, so that it
// cannot be closed; the caller unlocks f.mu.
func (h *Handles) acquire(id string) (*handle, error) {
	h.mu.Lock()
	f := h.open[id]
	h.mu.Unlock()
	if f != nil {
		f.mu.RLock()
		if f.fd >= 0 {
			return f, nil
		}
		f.mu.RUnlock()
	}
	return nil, UnknownHandleError{ID: id}
}

// drop closes f and frees id, unless id belongs to another handle by now.
func (h *Handles) drop(id string, f *handle) {
	h.mu.Lock()
	if h.open[id] == f {
		delete(h.open, id)
	}
	h.mu.Unlock()
	f.close()
}

func (f *handle) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd >= 0 {
		// The error is dropped, because WriteBlock has reported failed writes.
		_ = unix.Close(f.fd)
		f.fd = -1
	}
}

func (f *handle) pread(p []byte, offset uint64) (n int, err error) {
	if offset > math.MaxInt64 {
		return 0, unix.EINVAL
	}
	for n < len(p) {
		m, err := unix.Pread(f.fd, p[n:], int64(offset)+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

func (f *handle) pwrite(p []byte, offset int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(f.fd, p, offset)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}
