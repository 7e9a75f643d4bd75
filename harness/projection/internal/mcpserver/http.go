package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxBody bounds the body of one answer, in bytes. An event stream may have notifications
	// before the answer.
	maxBody = 32 << 20
	// requestTimeout bounds requests that have no other bound: answers to requests of the server.
	requestTimeout = 30 * time.Second
	// requestGrace is how much later the executor's timeout of a request is than ours, so that the
	// error is ours.
	requestGrace = 5 * time.Second
)

// httpLink is a server that the executor sends HTTP requests to. It is the
// [http.RoundTripper] of the SDK's transport.
type httpLink struct {
	mcp.StreamableClientTransport
	client  *client.Client
	headers []protocol.HTTPHeader

	life   context.Context // ends with the session
	cancel context.CancelCauseFunc

	initialized chan struct{} // closed when the server knows that the handshake is over
	once        sync.Once     // closes it

	open  sync.WaitGroup // requests, until the bodies of their answers are closed
	mu    sync.Mutex     // guards the fields below
	over  bool           // no request begins any more
	asked int            // answers to requests of the server that are being sent
}

func newHTTPLink(c *client.Client, spec *Spec) *httpLink {
	h := &httpLink{client: c, headers: spec.Headers, initialized: make(chan struct{})}
	h.life, h.cancel = context.WithCancelCause(context.Background())
	h.StreamableClientTransport = mcp.StreamableClientTransport{
		Endpoint: spec.URL,
		HTTPClient: &http.Client{
			Transport: h,
			// A redirect is an answer like any other. Only the executor could follow it, and is
			// asked not to.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		MaxEventSize: maxMessage,
	}
	return h
}

func (h *httpLink) cut(err error) { h.cancel(err) }

func (h *httpLink) shut() {
	h.cut(ErrClosed)
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	h.open.Wait()
}

// begin counts a request, unless the link is shut. Requests that are answers to requests of the
// server are bounded, because each of them has a goroutine of the SDK.
func (h *httpLink) begin(answer bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return ErrClosed
	}
	if answer {
		if err := context.Cause(h.life); err != nil {
			return err
		}
		if h.asked == maxAsked {
			h.cut(errAsked)
			return errAsked
		}
		h.asked++
	}
	h.open.Add(1)
	return nil
}

// end ends a request that has begun.
func (h *httpLink) end(answer bool) {
	h.mu.Lock()
	if answer {
		h.asked--
	}
	h.mu.Unlock()
	h.open.Done()
}

// RoundTrip makes the executor send a request (capabilities.md 6.2). The executor itself ends the
// request after a timeout, because it cannot be told that nobody needs the answer any more.
func (h *httpLink) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return h.listen(r)
	}
	params := h.params(r)
	answers, last := false, false // last: the last message of the handshake
	if r.Body != nil {
		data, err := io.ReadAll(r.Body) // our own body, from memory
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		params.BodyBase64 = data
		msg, err := jsonrpc.DecodeMessage(data)
		_, isResponse := msg.(*jsonrpc.Response)
		answers = err == nil && isResponse
		request, isRequest := msg.(*jsonrpc.Request)
		last = err == nil && isRequest && request.Method == notificationInitialized
	}
	limit := requestTimeout
	if deadline, ok := r.Context().Deadline(); ok {
		limit = max(time.Until(deadline), time.Millisecond)
	}
	params.TimeoutMs = new(uint64((limit + requestGrace).Milliseconds()))

	if err := h.begin(answers); err != nil {
		return nil, err
	}
	life := h.life
	if r.Method == http.MethodDelete { // the last request, after the session
		life = context.Background()
	}
	ctx, expire := context.WithTimeout(r.Context(), limit)
	ctx, cancel := during(ctx, life)
	done := func() {
		cancel()
		expire()
		h.end(answers)
	}
	answer, err := h.client.HTTP(ctx, params)
	if err != nil {
		done()
		return nil, err
	}
	if last {
		h.once.Do(func() { close(h.initialized) })
	}
	b := &body{ReadCloser: answer.Body, left: maxBody, close: done}
	// The SDK closes the bodies that it has read. This closes the bodies that it abandons.
	context.AfterFunc(ctx, func() { _ = b.Close() })
	response := &http.Response{
		Status:     fmt.Sprintf("%d %s", answer.Status, http.StatusText(answer.Status)),
		StatusCode: answer.Status,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{},
		ContentLength: -1,
		Body:          b,
		Request:       r,
	}
	for _, header := range answer.Headers {
		response.Header.Add(header.Name, header.Value)
	}
	return response, nil
}

// params returns the parameters of a request, without its body and its timeout.
func (h *httpLink) params(r *http.Request) protocol.HTTPRequestParams {
	params := protocol.HTTPRequestParams{
		Method: r.Method, URL: r.URL.String(), RedirectPolicy: protocol.RedirectStop, Headers: slices.Clone(h.headers),
	}
	for name, values := range r.Header {
		for _, value := range values {
			params.Headers = append(params.Headers, protocol.HTTPHeader{Name: strings.ToLower(name), Value: value})
		}
	}
	return params
}

// body is the body of an answer. Its size is bounded.
type body struct {
	io.ReadCloser
	left  int
	count counter
	close func()
	once  sync.Once
}

var errBody = errors.New("an answer of the server is too large")

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errBody
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	if b.count.add(p[:n]); b.count.values > maxCost/valueBytes {
		return 0, errCost
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.close)
	return err
}
