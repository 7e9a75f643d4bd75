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

// MaxBufferedBody bounds the body that ReadBody accepts, in bytes.
const MaxBufferedBody = 512 << 20

// A Response is the final answer to a request.
type Response struct {
	Status int
	// Headers are sorted by name, and names are in lower case. Headers of the same name keep their
	// order. Values that are not visible ASCII are left out.
	Headers []Header
	// Body is the received body. Chunks are decoded, and so are gzip and zstd if the server has encoded
	// it so; Headers then says nothing of the encoding. It is never nil. The caller closes it. Read
	// returns io.EOF or a *BodyError.
	Body io.ReadCloser

	length int64 // announced length, -1 if unknown
}

func newResponse(ctx context.Context, cancel context.CancelFunc, resp *http.Response, room Room) *Response {
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		// The bytes after the headers belong to a protocol that we do not speak.
		resp.Body.Close()
		resp.Body = http.NoBody
	case http.StatusNoContent, http.StatusNotModified:
		// Neither has a body, even if its headers announce a length. With HTTP/2, net/http expects a body
		// of that length, and reading would fail.
		resp.Body.Close()
		resp.Body = http.NoBody
	}
	decode(ctx, resp, room)
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

// ReadBody reads the whole body and closes it. A body over MaxBufferedBody is a *BodyError, and so
// is a body that breaks. ReadBody reads into slices from alloc. alloc returns an empty slice with
// room for at least n bytes, or an error that ReadBody returns. If the body turns out to be longer
// than the slice, ReadBody calls alloc again, copies, and no longer uses the earlier slice.
func (r *Response) ReadBody(alloc func(n int) ([]byte, error)) ([]byte, error) {
	defer r.Body.Close()
	tooLong := &BodyError{Err: fmt.Errorf("over %d bytes", MaxBufferedBody)}
	if r.length > MaxBufferedBody {
		return nil, tooLong
	}
	// At first ReadBody allocates at most 1 MiB for the announced length, and the whole length only
	// after that megabyte has arrived. Otherwise a server could make this process allocate any amount
	// of memory by a header alone.
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
		// The slice is full. Often the body ends here, and then the slice need not grow.
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
	// net/http removes these two from the headers, but the caller gets them too.
	if len(resp.TransferEncoding) > 0 {
		fields["Transfer-Encoding"] = resp.TransferEncoding
	}
	if len(resp.Trailer) > 0 {
		fields["Trailer"] = []string{strings.ToLower(strings.Join(slices.Sorted(maps.Keys(resp.Trailer)), ", "))}
	}
	headers := make([]Header, 0, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !isToken(name) {
			continue // net/http accepts names here that it refuses in a request
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

// body converts the errors of a body to *BodyError. Close also ends the timer of the request.
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
	// With HTTP/2, net/http reports only that the context has ended; the cause
	// says whether a timeout or the caller ended it.
	if cause := b.cause(); cause != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		err = cause
	}
	return n, &BodyError{Err: err}
}

// Close first cancels the request and then closes the body. With HTTP/2, closing a body that was
// not read to its end sends a frame. Without the cancel, Close would wait for that frame on a
// connection that accepts no more data.
func (b *body) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
