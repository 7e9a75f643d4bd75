package mcpserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

const (
	// listenTimeout is how long one request for events lasts before the next request replaces it,
	// because the executor cannot be told that nobody listens any more.
	listenTimeout = 5 * time.Minute
	// eventBuffer is how much of a stream is read at once, in bytes.
	eventBuffer = 32 << 10
)

// listen answers the SDK's request for the events that a server sends besides its answers. With
// such an event, a server says that its tools have changed. The stream to the SDK is our own, and
// lasts as long as the session, because the SDK ends a session with its stream. The server's stream
// ends with each connection to the executor, and whenever the server or a proxy ends it.
func (h *httpLink) listen(r *http.Request) (*http.Response, error) {
	if err := h.begin(false); err != nil {
		return nil, err
	}
	ctx, cancel := during(r.Context(), h.life)
	events, w := io.Pipe()
	unhook := context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer h.end(false)
		defer cancel()
		defer unhook()
		h.follow(ctx, h.params(r), w)
		<-ctx.Done() // the SDK keeps its stream, even if there are no more events
		_ = w.CloseWithError(context.Cause(ctx))
	}()
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {eventStream}},
		ContentLength: -1,
		Body:          events,
		Request:       r,
	}, nil
}

const eventStream = "text/event-stream"

// announcement stands for all events that may have been missed while there was no stream.
var announcement = &jsonrpc.Request{Method: notificationListChanged}

// follow makes one request for events after the other, once the handshake is over. It returns when
// ctx ends, when the server has no events, or when the server sends too much that is no answer.
func (h *httpLink) follow(ctx context.Context, params protocol.HTTPRequestParams, w io.Writer) {
	select {
	case <-h.initialized:
	case <-ctx.Done():
		return
	}
	params.TimeoutMs = new(uint64(listenTimeout.Milliseconds()))
	s := &stream{w: w}
	for failures := 0; ; failures++ {
		begin := time.Now()
		if h.hear(ctx, params, s) != nil || h.client.Err() != nil {
			return
		}
		if time.Since(begin) >= maxPause {
			failures = 0
		}
		select {
		case <-time.After(pauseAfter(failures)):
		case <-ctx.Done():
			return
		}
	}
}

var errNoEvents = errors.New("the server has no events")

// hear makes one request for events and passes them on. The error says why there should be no
// further request.
func (h *httpLink) hear(ctx context.Context, params protocol.HTTPRequestParams, s *stream) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout+requestGrace)
	defer cancel()
	answer, err := h.client.HTTP(ctx, params)
	if err != nil {
		return nil // the next request may succeed
	}
	defer func() { _ = answer.Body.Close() }()
	if has, err := hasEvents(answer); !has {
		return err
	}
	return s.read(answer.Body)
}

// hasEvents reports whether an answer is a stream of events. If it is none and the error is nil, a
// later answer may be one.
func hasEvents(answer *client.HTTPResponse) (bool, error) {
	if answer.Status >= http.StatusInternalServerError || answer.Status == http.StatusTooManyRequests {
		return false, nil
	}
	for _, header := range answer.Headers {
		if strings.EqualFold(header.Name, "Content-Type") {
			kind, _, _ := mime.ParseMediaType(header.Value)
			if answer.Status == http.StatusOK && kind == eventStream {
				return true, nil
			}
		}
	}
	return false, errNoEvents // usually status 405
}

// stream reads the events of a server, and writes the events that the SDK needs.
type stream struct {
	w       io.Writer
	begun   bool // a stream was read before
	unasked allowance
}

// read reads one stream to its end. The error says why there should be no further stream.
func (s *stream) read(body io.Reader) error {
	if s.begun { // the tools may have changed meanwhile
		if err := s.write(announcement); err != nil {
			return err
		}
	}
	s.begun = true
	var l lines
	var e event
	buf := make([]byte, eventBuffer)
	for {
		n, failure := body.Read(buf)
		if !s.unasked.spend(n, time.Now()) {
			return fmt.Errorf("the server sends more than %d bytes that nobody has asked for", maxUnasked)
		}
		if err := l.add(buf[:n]); err != nil {
			return err
		}
		for {
			line, ok := l.next()
			if !ok {
				break
			}
			data, err := e.add(line)
			if err != nil {
				return err
			}
			if data == nil {
				continue
			}
			if err := s.take(data); err != nil {
				return err
			}
		}
		if failure != nil {
			return nil
		}
	}
}

// take decodes a message. It passes on the notification that the tools have changed. It also passes
// on requests, which the SDK refuses or, such as a ping, answers. It drops all other messages.
func (s *stream) take(data []byte) error {
	if costOf(data) > maxCost {
		return errCost
	}
	msg, err := jsonrpc.DecodeMessage(data)
	request, ok := msg.(*jsonrpc.Request)
	if err != nil || !ok || !request.IsCall() && request.Method != notificationListChanged {
		return nil
	}
	return s.write(request)
}

func (s *stream) write(msg jsonrpc.Message) error {
	text, err := jsonrpc.EncodeMessage(msg) // one line
	if err == nil {
		_, err = fmt.Fprintf(s.w, "data: %s\n\n", text)
	}
	return err
}

// event collects the lines of a server-sent event. The zero value has no lines.
type event struct {
	name string
	data []byte
}

// add takes the next line. With the last line of a message it returns the data of the message.
func (e *event) add(line []byte) ([]byte, error) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 {
		whole := *e
		*e = event{}
		if whole.name != "" && whole.name != "message" {
			return nil, nil
		}
		return whole.data, nil
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "event":
		e.name = string(value)
	case "data":
		if len(e.data)+len(value) >= maxMessage {
			return nil, errLine
		}
		if e.data != nil {
			e.data = append(e.data, '\n')
		}
		e.data = append(e.data, value...)
	}
	return nil, nil
}
