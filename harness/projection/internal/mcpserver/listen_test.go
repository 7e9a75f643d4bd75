package mcpserver

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestStream: of the events of a server those are handed on that matter, in whatever pieces they
// come; with the second stream comes that all may have changed.
func TestStream(t *testing.T) {
	t.Parallel()
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	long := "data: " + strings.Repeat("x", maxMessage/2) + "\n"
	for text, want := range map[string]string{
		"":                                 "",
		"data: " + changed + "\n\n":        "data: " + changed + "\n\n",
		"data:" + changed + "\r\n\r\n":     "data: " + changed + "\n\n",
		"data: " + changed + "\n":          "", // the end is missing
		"event: x\ndata: " + ping + "\n\n": "",
		"event: x\n\nevent: message\ndata: " + ping + "\nid: 7\n\n":                                           "data: " + ping + "\n\n",
		": data: {}\ndata\nretry: 5\n\ndata: no\n\n":                                                          "",
		`data: {"jsonrpc":"2.0","id":1,"result":{}}` + "\n\n":                                                 "",
		`data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}` + "\n\ndata: " + ping + "\n\n": "data: " + ping + "\n\n",
		long + long + "\n": "", // too large, and the end
		"data: [" + strings.Repeat("1,", maxCost/valueBytes) + "1]\n\n": "",
	} {
		for name, reader := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader} {
			var out bytes.Buffer
			s := &stream{w: &out}
			err := s.read(reader(strings.NewReader(text)))
			if tooMuch := len(text) > 1<<20; tooMuch != (err != nil) || out.String() != want {
				t.Errorf("%.100q, %s: %q, %v, want %q", text, name, &out, err, want)
			}
			out.Reset()
			if err := s.read(strings.NewReader("")); err != nil || !strings.Contains(out.String(), notificationListChanged) {
				t.Errorf("the second stream: %q, %v", &out, err)
			}
		}
	}
}

// TestHasEvents: which answers are listened to, and after which there is another request.
func TestHasEvents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status     int
		kind       string
		has, again bool
	}{
		{200, "text/event-stream", true, true}, {200, "text/event-stream; charset=utf-8", true, true},
		{200, "text/html", false, false}, {200, "", false, false}, {204, "text/event-stream", false, false},
		{307, "text/event-stream", false, false}, {404, "application/json", false, false}, {405, "", false, false},
		{429, "", false, true}, {500, "text/event-stream", false, true}, {503, "text/html", false, true},
	} {
		answer := &client.HTTPResponse{Status: tt.status, Headers: []protocol.HTTPHeader{{Name: "content-type", Value: tt.kind}}}
		has, err := hasEvents(answer)
		rig.Is(t, has == tt.has && (err == nil) == tt.again, true, "%+v: %v, %v", tt, has, err)
	}
}

// endless repeats a text.
type endless string

func (e endless) Read(p []byte) (int, error) { return copy(p, e), nil }

// TestStreamFlood: a server that sends too much is listened to no more, nor is one whose SDK is
// gone.
func TestStreamFlood(t *testing.T) {
	t.Parallel()
	s := &stream{w: io.Discard}
	err := s.read(endless(": " + strings.Repeat("x", 20_000) + "\n"))
	rig.Is(t, err != nil && strings.Contains(err.Error(), "nobody has asked for"), true, "the error is %v", err)
	r, w := io.Pipe()
	gone := errors.New("gone")
	_ = r.CloseWithError(gone)
	s = &stream{w: w, begun: true}
	rig.Is(t, s.read(endless("\n")), gone, "the error")
}
