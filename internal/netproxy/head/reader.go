package head

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"

	"github.com/execagent/execagent/internal/buffer"
)

const (
	// maxHead bounds a head in bytes: its first line, its fields and the empty line.
	maxHead = 128 << 10
	// maxFields bounds the number of fields of a head.
	maxFields = 1024
	// maxNamed bounds the names in the Connection fields of a head.
	maxNamed = 64
	// usualFields is the number of fields for which a reader keeps memory between two heads.
	usualFields = 64
	// maxChunkLine bounds the line before a chunk, in bytes: its size, and extensions that are
	// dropped.
	maxChunkLine = 1 << 10

	// room is the first size of a reader's buffer, in bytes. Most heads fit.
	room = 4 << 10
)

var (
	// ErrTooLarge is the error of a head that is longer than maxHead, has too many fields, or
	// needs more room than the heads of all readers may have.
	ErrTooLarge = errors.New("reading a head: too large")
	// ErrVersion is the error of a message of another version than HTTP/1, such as the preface of
	// HTTP/2.
	ErrVersion = errors.New("reading a head: not HTTP/1")
)

// A MalformedError says what is wrong with a message. Its text never quotes the message.
type MalformedError string

func (e MalformedError) Error() string { return "reading a message: " + string(e) }

// A Reader reads the messages of one direction of one connection. Its methods must be called from
// one goroutine at a time.
type Reader struct {
	src io.Reader
	buf []byte // buf[r:w] was read from src and is not yet taken
	r   int
	w   int

	fields []Field // fields of the last head; the next head uses the memory again
	shared *Room   // limit for buffers that are larger than room; nil: no limit
}

// NewReader returns a reader of src. The caller frees its memory with Release.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Within makes the reader share the limit for heads that are larger than usual, and returns the
// reader.
func (r *Reader) Within(shared *Room) *Reader {
	r.shared = shared
	return r
}

// Reset makes the reader continue with src. Bytes that were read ahead are dropped.
func (r *Reader) Reset(src io.Reader) {
	r.Release()
	r.src = src
}

// A Room limits the memory that the buffers of many readers use together, beyond the first room
// bytes of each.
type Room struct{ left atomic.Int64 }

// NewRoom returns a Room of so many bytes.
func NewRoom(bytes int64) *Room {
	m := &Room{}
	m.left.Store(bytes)
	return m
}

// take takes bytes from the room, and reports whether there were enough. A negative number gives
// bytes back.
func (m *Room) take(bytes int) bool {
	if m == nil || m.left.Add(-int64(bytes)) >= 0 || bytes <= 0 {
		return true
	}
	m.left.Add(int64(bytes))
	return false
}

// Release frees the reader's memory, including the bytes that were read ahead ([Reader.Buffered]).
func (r *Reader) Release() {
	if r.buf != nil {
		r.shared.take(room - len(r.buf))
		buffer.Recycle(r.buf)
	}
	r.buf, r.r, r.w, r.fields = nil, 0, 0, nil
}

// Trim frees the buffer between two messages if a large head has enlarged it.
func (r *Reader) Trim() {
	if len(r.buf) > room && r.r == r.w {
		r.Release()
	}
}

// Buffered returns the bytes that were read ahead and not yet taken. The result is valid until the
// next call.
func (r *Reader) Buffered() []byte { return r.buf[r.r:r.w] }

// Wait waits until a byte can be taken.
func (r *Reader) Wait() error {
	if r.r < r.w {
		return nil
	}
	r.Trim()
	r.r, r.w = 0, 0
	return r.fill()
}

// Read takes bytes: first those that were read ahead, then bytes of the connection.
func (r *Reader) Read(p []byte) (int, error) {
	if r.r == r.w {
		return r.src.Read(p)
	}
	n := copy(p, r.buf[r.r:r.w])
	r.r += n
	return n, nil
}

// fill reads at least one more byte. It enlarges a full buffer, up to maxHead and within the shared
// room.
func (r *Reader) fill() error {
	if r.w == len(r.buf) {
		if r.r > 0 {
			r.w = copy(r.buf, r.buf[r.r:r.w])
			r.r = 0
		} else {
			if r.w >= maxHead {
				return ErrTooLarge
			}
			size := max(room, 2*len(r.buf))
			if len(r.buf) > 0 && !r.shared.take(size-len(r.buf)) {
				return ErrTooLarge
			}
			larger := buffer.Get(size)[:size]
			copy(larger, r.buf[:r.w])
			if r.buf != nil {
				buffer.Recycle(r.buf)
			}
			r.buf = larger
		}
	}
	for range 100 {
		n, err := r.src.Read(r.buf[r.w:])
		r.w += n
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// lines takes a head: lines that end with CRLF, up to and including an empty line. It returns the
// lines without the empty line. It returns io.EOF only if the stream ends before the first byte.
func (r *Reader) lines() ([]byte, error) {
	line, scanned := 0, 0 // both relative to r.r: the begin of the current line, and the end of the bytes without a line end
	for {
		i := bytes.IndexByte(r.buf[r.r+scanned:r.w], '\n')
		if i < 0 {
			if scanned = r.w - r.r; scanned >= maxHead {
				return nil, ErrTooLarge
			}
			if err := r.fill(); err != nil {
				if err == io.EOF && r.r < r.w {
					err = io.ErrUnexpectedEOF
				}
				return nil, err
			}
			continue
		}
		scanned += i + 1
		text := r.buf[r.r+line : r.r+scanned]
		if !bytes.HasSuffix(text, crlf) {
			return nil, MalformedError("a line ends without CR")
		}
		if len(text) > len(crlf) {
			line = scanned
			continue
		}
		head := r.buf[r.r : r.r+line]
		r.r += scanned
		return head, nil
	}
}

// line takes one line of at most limit bytes, and returns it without its CRLF. The result is valid
// until the next call.
func (r *Reader) line(limit int) ([]byte, error) {
	for {
		if i := bytes.IndexByte(r.buf[r.r:r.w], '\n'); i >= 0 && i <= limit {
			line := r.buf[r.r : r.r+i]
			r.r += i + 1
			if i == 0 || line[i-1] != '\r' {
				return nil, MalformedError("a line ends without CR")
			}
			return line[:i-1], nil
		}
		if r.w-r.r > limit {
			return nil, MalformedError("a line between chunks is too long")
		}
		if err := r.fill(); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}
