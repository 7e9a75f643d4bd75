package httpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// MaxBufferedBody bounds the body that ReadBody takes, in bytes.
const MaxBufferedBody = 512 << 20

// Response is the final answer to a request.
type Response struct {
	Status int
	// Headers are sorted by name, which is in lower case; those of the same
	// name keep their order. Values that are not visible ASCII are left out.
	Headers []Header
	// Body is what came over the wire, without any decoding but that of chunks.
	// It is never nil; the caller closes it. Read returns io.EOF or a
	// *BodyError.
	Body io.ReadCloser

	length int64 // as announced, -1 if unknown
}

func newResponse(ctx context.Context, cancel context.CancelFunc, resp *http.Response) *Response {
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols: // what follows is of a protocol that nobody here speaks
		resp.Body.Close()
		resp.Body = http.NoBody
	case http.StatusNoContent, http.StatusNotModified: // with HTTP/2 net/http misses the body that a length announces
		resp.Body.Close()
		resp.Body = http.NoBody
	}
	length := resp.ContentLength
	if resp.Body == http.NoBody {
		length = 0 // an answer to HEAD announces a length and sends nothing
	}
	return &Response{
		Status:  resp.StatusCode,
		Headers: responseHeaders(resp),
		Body:    &body{cancel: cancel, cause: func() error { return context.Cause(ctx) }, ReadCloser: resp.Body},
		length:  length,
	}
}

// ReadBody reads the whole body and closes it. A body over MaxBufferedBody is a
// *BodyError, and so is one that breaks. The slice comes from alloc, which
// returns an empty one with room for at least n bytes, or why there is none.
// alloc is called again when a body turns out to be longer; the slice before is
// not used from then on.
func (r *Response) ReadBody(alloc func(n int) ([]byte, error)) ([]byte, error) {
	defer r.Body.Close()
	tooLong := &BodyError{Err: fmt.Errorf("over %d bytes", MaxBufferedBody)}
	if r.length > MaxBufferedBody {
		return nil, tooLong
	}
	// The announced length is believed up to one megabyte, and beyond that once
	// the megabyte has come: else a server could have any amount of memory
	// taken by a header.
	const first = 1 << 20
	body, err := alloc(int(min(max(r.length, bytes.MinRead), first)))
	if err != nil {
		return nil, err
	}
	for {
		for len(body) < cap(body) {
			n, err := r.Body.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if err == io.EOF {
				return body, nil
			}
			if err != nil {
				return nil, err
			}
		}
		// Full: often the body ends here, and then the slice need not grow.
		var more [1]byte
		switch _, err := io.ReadFull(r.Body, more[:]); {
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, err
		case len(body) >= MaxBufferedBody:
			return nil, tooLong
		}
		size := min(2*len(body), MaxBufferedBody)
		if int(r.length) > len(body) {
			size = int(r.length)
		}
		larger, err := alloc(size)
		if err != nil {
			return nil, err
		}
		body = append(append(larger, body...), more[0])
	}
}

func responseHeaders(resp *http.Response) []Header {
	fields := resp.Header
	// net/http takes these two out of the headers. They go back, as they came.
	if len(resp.TransferEncoding) > 0 {
		fields["Transfer-Encoding"] = resp.TransferEncoding
	}
	if len(resp.Trailer) > 0 {
		fields["Trailer"] = []string{strings.ToLower(strings.Join(slices.Sorted(maps.Keys(resp.Trailer)), ", "))}
	}
	headers := make([]Header, 0, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !isToken(name) {
			continue // net/http lets names pass that no request could have
		}
		for _, value := range fields[name] {
			if isVisible(value) {
				headers = append(headers, Header{Name: strings.ToLower(name), Value: value})
			}
		}
	}
	return headers
}

// isVisible reports whether a value is visible ASCII, blanks and tabs.
func isVisible(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return true
}

// body gives the errors of a body their type. Closing it ends the timer of the
// request, too.
type body struct {
	cancel context.CancelFunc
	cause  func() error // why the request's context has ended
	io.ReadCloser
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	// With HTTP/2 net/http says that the context has ended, and not why.
	if cause := b.cause(); cause != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		err = cause
	}
	return n, &BodyError{Err: err}
}

// Close cancels the request before it closes the body: with HTTP/2 closing a
// body that was not read to its end sends a frame, and Close would wait for a
// connection that takes nothing more.
func (b *body) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
