package agent

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/httpclient"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

const (
	// maxBodyDelta is the most bytes of a streamed body in one notification.
	maxBodyDelta = 256 << 10
	// maxStreams is how many bodies one connection may stream at once.
	maxStreams = 1024
)

// streamedResponse sends the body after the answer. Other requests run at the
// same time, even in strict order, because this one was answered.
type streamedResponse struct {
	protocol.HTTPResponse
	stream func()
}

func (r *streamedResponse) Sent() { r.stream() }

func (c *connection) httpRequest(ctx context.Context, p protocol.HTTPRequestParams) (any, error) {
	if c.agent.cfg.offline() {
		return nil, errOffline
	}
	if err := rpc.Leave(ctx); err != nil {
		return nil, err
	}
	req := &httpclient.Request{
		Method:          p.Method,
		URL:             p.URL,
		Body:            p.BodyBase64,
		FollowRedirects: p.RedirectPolicy == protocol.RedirectFollow,
		Room:            func(ctx context.Context, n int64) (func(), error) { return c.agent.decoders.Decoder(ctx, c.owner, n) },
	}
	for _, h := range p.Headers {
		req.Headers = append(req.Headers, httpclient.Header(h))
	}
	if p.TimeoutMs != nil {
		req.Timeout = new(milliseconds(*p.TimeoutMs))
	}
	release, err := takeDescriptors(c.owner, 1)
	if err != nil {
		return nil, err
	}
	if p.StreamResponse {
		if err := c.beginStream(p.RequestID); err != nil {
			release()
			return nil, err
		}
	}
	resp, err := c.http.Do(ctx, req)
	if err != nil {
		release()
		c.agent.short.Note(c.agent.cfg.Logger, "a request fails", err)
		if p.StreamResponse {
			c.endStream(p.RequestID)
		}
		return nil, httpError(err)
	}
	answer := protocol.HTTPResponse{Status: resp.Status, Headers: []protocol.HTTPHeader{}}
	for _, h := range resp.Headers {
		answer.Headers = append(answer.Headers, protocol.HTTPHeader(h))
	}
	if p.StreamResponse {
		return &streamedResponse{answer, func() {
			c.notifiers.Go(func() {
				defer release()
				c.streamBody(p.RequestID, resp.Body)
			})
		}}, nil
	}
	defer release()
	buffered := &bufferedResponse{HTTPResponse: answer, share: c.share(c.bodies)}
	if buffered.BodyBase64, err = resp.ReadBody(buffered.alloc); err != nil {
		buffered.Sent()
		return nil, httpError(err)
	}
	return buffered, nil
}

// bufferedResponse gives back its buffer and its share of memory when it has
// been sent.
type bufferedResponse struct {
	protocol.HTTPResponse
	share answers.Share
}

func (r *bufferedResponse) Sent() {
	buffer.Recycle(r.BodyBase64)
	r.share.Release()
}

// alloc returns a buffer for n bytes of a body, instead of the earlier buffer. It
// first gives back the earlier buffer's share of memory.
func (r *bufferedResponse) alloc(n int) ([]byte, error) {
	r.share.Release()
	if n >= answers.Least {
		if err := r.share.Body(int64(n)); err != nil {
			return nil, err
		}
	}
	return buffer.Get(n), nil
}

// httpConfig says what the requests of clients may use.
func (a *Agent) httpConfig() httpclient.Config {
	cfg := httpclient.Config{Env: a.host.lookup, Denied: procs.Denied, Bound: a.networks.Allows, Proxy: httpclient.ProxyFromEnv(a.host.lookup)}
	if a.cfg.RequireNetworkEnforcement {
		cfg.Admit = func(ctx context.Context, address, host, method, path string) (httpclient.Dial, error) {
			addrs, err := a.admit(ctx, address, host, method, path)
			return func(ctx context.Context) (net.Conn, error) { return netproxy.Dial(ctx, addrs) }, err
		}
	}
	return cfg
}

func httpError(err error) error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*httpclient.ParamError](err); ok {
		return protocol.InvalidParams("%v", e)
	}
	return caused(protocol.Errorf(protocol.CodeInternal, "%v", err), err)
}

// beginStream claims a request id for a streamed body.
func (c *connection) beginStream(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[id] {
		return protocol.InvalidParams("requestId: %.256s is already streaming a response", id)
	}
	if len(c.streams) >= maxStreams {
		return protocol.InvalidRequest("requestId: %.256s would be one more than %d streamed responses at once", id, maxStreams)
	}
	c.streams[id] = true
	return nil
}

func (c *connection) endStream(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, id)
}

// streamBody sends a body as notifications, as it comes in and at most
// maxBodyDelta at once. It ends early when the connection does.
func (c *connection) streamBody(id string, body io.ReadCloser) {
	defer body.Close()
	delta := protocol.HTTPBodyDelta{RequestID: id}
	buf := buffer.Get(maxBodyDelta)[:maxBodyDelta]
	defer buffer.Recycle(buf)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			delta.Seq++
			delta.DeltaBase64 = buf[:n]
			if c.peer.Notify(protocol.MethodHTTPBodyDelta, &delta) != nil {
				c.endStream(id)
				return
			}
		}
		if err == nil {
			continue
		}
		if err != io.EOF {
			delta.Error = new(err.Error())
		}
		break
	}
	delta.Seq++
	delta.DeltaBase64, delta.Done = nil, true
	// The client may use the id again once it has the last frame, so the id
	// becomes free before that frame is sent.
	c.endStream(id)
	_ = c.peer.Notify(protocol.MethodHTTPBodyDelta, &delta)
}
