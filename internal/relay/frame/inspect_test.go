package frame

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/test/rig"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	id := bytes.Repeat([]byte("x"), MaxStreamID+1)
	resume := func(id []byte) []byte { return (&Frame{StreamID: id, Body: Resume}).Append(nil) }
	data := func(size int) []byte {
		f := &Frame{StreamID: []byte("s"), Body: Data, Payload: make([]byte, size)}
		return f.Append(nil)
	}
	room := MaxMessage - len(data(MaxMessage)) + MaxMessage
	for _, tt := range []struct {
		name    string
		message []byte
		want    bool
	}{
		{"resume", resume([]byte("s")), true},
		{"longest stream id", resume(id[:MaxStreamID]), true},
		{"longer stream id", resume(id), false},
		{"largest message", data(room), true},
		{"larger message", data(room + 1), false},
		{"nothing", nil, false},
		{"cut", resume([]byte("s"))[:3], false},
	} {
		_, ok := Inspect(tt.message)
		rig.Is(t, ok, tt.want, "%s of %d bytes", tt.name, len(tt.message))
	}
}

// FuzzInspect: a message that Inspect accepts is a frame of the same stream for a
// second decoder too. Else a harness could send a frame that the executor takes for
// one of another harness's stream.
func FuzzInspect(f *testing.F) {
	for _, fr := range []Frame{
		{StreamID: []byte("a"), Body: Resume},
		{StreamID: []byte("b"), Body: Handshake, Payload: []byte("hello")},
		{StreamID: []byte("c"), Ack: 4, Body: Data, Seq: 3, Payload: []byte("d")},
		{StreamID: []byte("e"), Body: Reset, Reason: []byte("f")},
	} {
		b := fr.Append(nil)
		f.Add(b)
		f.Add(append(b, 0x12, 1, 'x')) // another stream id at the end
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := Inspect(b)
		if !ok {
			return
		}
		var want relaypb.RelayMessageFrame
		rig.Must(t, proto.Unmarshal(b, &want))
		if string(got.StreamID) != want.GetStreamId() || len(got.StreamID) > MaxStreamID {
			t.Fatalf("stream %q, want %q", got.StreamID, want.GetStreamId())
		}
		rig.Is(t, got.Body == Reset, want.GetReset_() != nil, "body %d of %v is a reset", got.Body, &want)
	})
}
