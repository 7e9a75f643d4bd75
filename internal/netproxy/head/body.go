package head

import (
	"io"
	"strconv"

	"github.com/execagent/execagent/internal/buffer"
)

const (
	// copySize is the size of the buffer through which a body is copied, in bytes. So at most this
	// much of a body is in memory.
	copySize = 32 << 10
	// sparse is the length in bytes from which Move moves the rest of a body inside the kernel. Below
	// it, this does not pay.
	sparse = 256 << 10
)

// A Body is the body of the message whose head was read last.
type Body struct {
	r      *Reader
	length int64 // as in the head
	left   int64 // bytes of the body, or of the current chunk, that are still to be read
	begun  bool  // chunks only: a chunk was read, and its CRLF is still to be read
	done   bool
}

// Body returns the body of this length, which follows the head. The body has to be read to its end
// before the next head.
func (r *Reader) Body(length int64) *Body {
	return &Body{r: r, length: length, left: max(length, 0), done: length == 0}
}

// Done reports whether the body was read to its end, so that the next head follows.
func (b *Body) Done() bool { return b.done }

// Ahead takes the bytes of a body without chunks that were read ahead, so that they can be sent
// together with a head. The result is valid until the next read.
func (b *Body) Ahead() []byte {
	ahead := b.r.Buffered()
	ahead = ahead[:min(int64(len(ahead)), b.left)] // empty if the length is not known
	b.r.r += len(ahead)
	b.left -= int64(len(ahead))
	b.done = b.done || b.length >= 0 && b.left == 0
	return ahead
}

// Read reads the body without the lines between its chunks. It returns io.EOF at the end of the
// body, and io.ErrUnexpectedEOF if the connection ends earlier. Trailers (fields after the last
// chunk) are dropped.
func (b *Body) Read(p []byte) (int, error) {
	if b.done {
		return 0, io.EOF
	}
	if b.length == UntilClose {
		n, err := b.r.Read(p)
		b.done = err == io.EOF
		return n, err
	}
	if b.left == 0 { // the current chunk is complete
		if err := b.chunk(); err != nil {
			return 0, err
		}
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	b.done = b.left == 0 && b.length != Chunked
	if err == io.EOF && !b.done {
		err = io.ErrUnexpectedEOF
	}
	if n > 0 {
		err = nil // the next call returns the error again
	}
	return n, err
}

// chunk reads the line before the next chunk. After the last chunk it reads the trailers and
// returns io.EOF.
func (b *Body) chunk() error {
	if b.begun {
		if line, err := b.r.line(len(crlf)); err != nil {
			return err
		} else if len(line) > 0 {
			return MalformedError("a chunk is longer than its size")
		}
	}
	line, err := b.r.line(maxChunkLine)
	if err != nil {
		return err
	}
	b.begun = true
	if b.left, err = chunkSize(line); err != nil || b.left > 0 {
		return err
	}
	trailers, err := b.r.lines()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		_, err = parse(trailers, nil)
	}
	if err != nil {
		return err
	}
	b.done = true
	return io.EOF
}

// chunkSize returns the size in the line before a chunk: hexadecimal digits. Extensions after the
// digits are ignored.
func chunkSize(line []byte) (int64, error) {
	n, i := int64(0), 0
	for ; i < len(line); i++ {
		c := line[i]
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			if i == 0 || c != ';' || !isText(line[i:]) {
				return 0, MalformedError("the size of a chunk is no number")
			}
			return n, nil
		}
		if i == 15 {
			return 0, MalformedError("the size of a chunk is too large")
		}
		n = n<<4 | int64(c)
	}
	if i == 0 {
		return 0, MalformedError("the size of a chunk is missing")
	}
	return n, nil
}

// Forward copies the rest of the body to w, in chunks if chunked is true. It forwards a chunk as
// soon as bytes of it arrive, and a large chunk in parts. It returns nil only if the whole body was
// copied. An error of w is a [WriteError].
func (b *Body) Forward(w io.Writer, chunked bool) error {
	const margin = 16 // room for the size of a chunk
	buf := buffer.Get(copySize)
	buf = buf[:copySize]
	defer buffer.Recycle(buf)
	for !b.done {
		n, err := b.Read(buf[margin : len(buf)-len(crlf)])
		if n > 0 {
			out := buf[margin : margin+n]
			if chunked {
				size := strconv.AppendInt(buf[:0:margin], int64(n), 16)
				begin := margin - len(size) - len(crlf)
				copy(buf[begin:], size)
				copy(buf[margin-len(crlf):], crlf)
				out = append(buf[begin:margin+n], crlf...)
			}
			if _, err := w.Write(out); err != nil {
				return &WriteError{err}
			}
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	if chunked {
		if _, err := io.WriteString(w, "0\r\n\r\n"); err != nil {
			return &WriteError{err}
		}
	}
	return nil
}

// Move copies the rest of the body to a connection, without chunks. A long body is moved inside the
// kernel if both ends are TCP connections. Unlike the error of Forward, the error does not tell
// which of the two ends has failed.
func (b *Body) Move(w io.Writer) error {
	known := b.length != UntilClose
	if b.length == Chunked || known && b.left < sparse {
		return b.Forward(w, false)
	}
	ahead := b.Ahead()
	if !known {
		ahead = b.r.Buffered()
		b.r.r = b.r.w
	}
	if _, err := w.Write(ahead); err != nil {
		return &WriteError{err}
	}
	if !known {
		_, err := io.Copy(w, b.r.src)
		b.done = err == nil
		return err
	}
	n, err := io.Copy(w, &io.LimitedReader{R: b.r.src, N: b.left})
	b.left -= n
	b.done = b.left == 0
	if err == nil && !b.done {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// A WriteError is an error of the writer to which a body is copied.
type WriteError struct{ Err error }

func (e *WriteError) Error() string { return "passing a body on: " + e.Err.Error() }
func (e *WriteError) Unwrap() error { return e.Err }
