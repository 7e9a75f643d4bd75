package httpclient

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// acceptEncoding is sent with a request that has no Accept-Encoding of its own.
const acceptEncoding = "zstd,gzip"

const (
	// maxWindow bounds the window of a zstd body, in bytes. RFC 9659 allows no more. leastWindow is
	// what is taken at least, because a later frame may have a larger window than the first.
	maxWindow, leastWindow = 8 << 20, 2 << 20
	// streamWindow is less than the window of encoders that do not know how much will come.
	streamWindow = 64 << 10
	// besideWindow is about how many bytes a zstd decoder takes beside its window.
	besideWindow = 1 << 20
	// MaxRoom is the most that is taken for one body.
	MaxRoom = maxWindow + besideWindow
	// maxRest bounds the bytes behind a gzip member that are read, so that the connection can be used
	// again. They are dropped, as by the reference.
	maxRest = 2 << 10
)

// Room takes n bytes of memory, and may wait for them. release gives them back.
type Room func(ctx context.Context, n int64) (release func(), err error)

// decode makes an answer that is encoded with gzip or zstd one that is not: its body is decoded while
// it is read, and the headers about the encoded body go. The encoding has to be the whole value of
// the only Content-Encoding, in lower case (rpc.md 6). It does not matter what the request accepts,
// because some servers do not look.
func decode(ctx context.Context, resp *http.Response, room Room) {
	encodings := resp.Header["Content-Encoding"]
	if len(encodings) != 1 || encodings[0] != "gzip" && encodings[0] != "zstd" {
		return
	}
	resp.Header.Del("Content-Encoding")
	resp.Header.Del("Content-Length")
	if resp.Body == http.NoBody {
		return
	}
	resp.ContentLength = -1
	source := &source{ReadCloser: resp.Body}
	if room == nil {
		room = func(context.Context, int64) (func(), error) { return func() {}, nil }
	}
	resp.Body = &decoded{
		encoding: encodings[0], source: source, in: bufio.NewReader(source), release: func() {},
		room: func(n int64) (func(), error) { return room(ctx, n) },
	}
}

// source is an encoded body. It remembers the error that has ended it.
type source struct {
	io.ReadCloser
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// decoded is the decoded body. Bytes that the server has flushed are returned at once.
type decoded struct {
	encoding string
	source   *source
	in       *bufio.Reader
	decoder  io.Reader // nil until the first byte has come
	zstd     *zstd.Decoder
	room     func(n int64) (release func(), err error)
	release  func() // gives back what room has taken
	err      error
}

func (d *decoded) Read(p []byte) (n int, err error) {
	if d.err == nil && d.decoder == nil {
		d.err = d.begin()
	}
	if d.err != nil {
		return 0, d.err
	}
	n, err = d.decoder.Read(p)
	if n == 0 && err != nil && err != io.EOF && d.zstd != nil {
		// The last block may be there, and only what follows it is broken.
		if n, _ = d.zstd.Read(p); n > 0 {
			return n, nil // the error comes again
		}
	}
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		_, _ = io.CopyN(io.Discard, d.in, maxRest) // the body is whole, whatever comes here
	case d.source.err != nil && d.source.err != io.EOF:
		err = d.source.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("its %s data has no end", d.encoding)
	default:
		err = fmt.Errorf("decoding %s: %w", d.encoding, err)
	}
	d.err = err
	return n, err
}

// begin makes the decoder when the first byte has come. An empty body is empty when it is decoded,
// too.
func (d *decoded) begin() error {
	if _, err := d.in.Peek(1); err != nil {
		return err
	}
	if d.encoding == "gzip" {
		d.decoder = &gunzip{in: d.in}
		return nil
	}
	window := d.window()
	release, err := d.room(window + besideWindow)
	if err != nil {
		return err
	}
	d.release = release
	// With a concurrency of 1 there are no goroutines, and a block is decoded as soon as it is there.
	d.zstd, err = zstd.NewReader(d.in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(uint64(window)))
	d.decoder = d.zstd
	return err
}

// window returns the size of the largest window that the body may have: that of the first frame, if
// it looks like the frame of a stream. Some servers make a frame for each event, with a window that
// is just large enough. window waits for no more bytes than it needs. Errors are left to the decoder.
func (d *decoded) window() int64 {
	var h zstd.Header
	for n := 1; n <= zstd.HeaderMaxSize; n++ {
		head, err := d.in.Peek(n)
		if err == nil {
			err = h.Decode(head)
		}
		if err == io.ErrUnexpectedEOF && len(head) == n {
			continue
		}
		if err == nil && !h.Skippable && !h.HasFCS && h.WindowSize >= streamWindow {
			return int64(min(max(h.WindowSize, leastWindow), maxWindow))
		}
		break
	}
	return maxWindow
}

func (d *decoded) Close() error {
	err := d.source.Close()
	if d.zstd != nil {
		d.zstd.Close()
		d.zstd, d.decoder, d.err = nil, nil, http.ErrBodyReadAfterClose
	}
	d.release()
	d.release = func() {}
	return err
}

// gunzip reads the first member of gzip data (RFC 1952). Package compress/gzip does not return bytes
// after a partial flush, which some servers make after each event.
type gunzip struct {
	in    *bufio.Reader
	flate io.Reader
	sum   uint32 // of the bytes that were returned
	size  uint32
}

var errGzip = errors.New("this is no gzip data")

func (g *gunzip) Read(p []byte) (int, error) {
	if g.flate == nil {
		if err := g.header(); err != nil {
			return 0, noEOF(err)
		}
		g.flate = flate.NewReaderOpts(g.in, flate.WithPartialBlock())
	}
	n, err := g.flate.Read(p)
	g.sum = crc32.Update(g.sum, crc32.IEEETable, p[:n])
	g.size += uint32(n)
	if err == io.EOF && n > 0 {
		return n, nil // the end may come later
	}
	if err != io.EOF {
		return n, err
	}
	var end [8]byte
	if _, err := io.ReadFull(g.in, end[:]); err != nil {
		return n, noEOF(err)
	}
	if binary.LittleEndian.Uint32(end[:]) != g.sum || binary.LittleEndian.Uint32(end[4:]) != g.size {
		return n, errors.New("the checksum is wrong")
	}
	return n, io.EOF
}

// header skips the header of the member.
func (g *gunzip) header() error {
	const crc, extra, name, comment, reserved = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 7 << 5
	var head [10]byte
	if _, err := io.ReadFull(g.in, head[:]); err != nil {
		return err
	}
	flags := head[3]
	if head[0] != 0x1f || head[1] != 0x8b || head[2] != 8 || flags&reserved != 0 {
		return errGzip
	}
	if flags&extra != 0 {
		var size [2]byte
		if _, err := io.ReadFull(g.in, size[:]); err != nil {
			return err
		}
		if _, err := g.in.Discard(int(binary.LittleEndian.Uint16(size[:]))); err != nil {
			return err
		}
	}
	for _, text := range []byte{name, comment} {
		for end := flags&text == 0; !end; {
			c, err := g.in.ReadByte()
			if err != nil {
				return err
			}
			end = c == 0
		}
	}
	if flags&crc != 0 {
		_, err := g.in.Discard(2)
		return err
	}
	return nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
