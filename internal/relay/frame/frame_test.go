package frame

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/test/rig"
)

// vectorFrames are what the frames of relay-frames.json mean.
var vectorFrames = map[string]Frame{
	"data seq 0":      {Body: Data, Payload: []byte{0xaa, 0xbb}},
	"data seq 300":    {Body: Data, Seq: 300, Payload: []byte{0xaa, 0xbb}},
	"ack":             {Body: Ack},
	"resume":          {Body: Resume},
	"reset":           {Body: Reset, Reason: []byte("noise_relay_protocol_error")},
	"heartbeat":       {Body: Heartbeat},
	"handshake":       {Body: Handshake, Payload: []byte{1, 2, 3}},
	"data with trace": {Body: Data, Payload: []byte{0xaa}},
}

func readVectors(t testing.TB) map[string][]byte {
	t.Helper()
	text := rig.Value(os.ReadFile(filepath.Join("testdata", "relay-frames.json")))
	var v struct {
		Frames []struct {
			Name  string `json:"name"`
			Frame string `json:"frame_hex"`
		} `json:"frames"`
	}
	rig.Must(t, json.Unmarshal(text, &v))
	out := map[string][]byte{}
	for _, f := range v.Frames {
		out[f.Name] = rig.Value(hex.DecodeString(f.Frame))
	}
	return out
}

func TestVectors(t *testing.T) {
	t.Parallel()
	vectors := readVectors(t)
	rig.Is(t, len(vectors), len(vectorFrames), "vectors")
	for name, message := range vectors {
		want, ok := vectorFrames[name]
		rig.Is(t, ok, true, "the vector %q is known", name)
		want.StreamID = []byte("stream-1")
		got := Frame{Ack: 1, Body: Reset, Reason: []byte("from before")}
		if err := Decode(message, &got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rig.Same(t, fmt.Sprintf("%s means", name), want, got, cmpopts.EquateEmpty())
		if b := got.Append(nil); !bytes.Equal(b, message) && name != "data with trace" { // we pass no traces on
			t.Errorf("%s is encoded as\n\t%x, want\n\t%x", name, b, message)
		}
	}
}

// encode returns the frame of pb and, behind it, more fields.
func encode(t *testing.T, pb *relaypb.RelayMessageFrame, more ...byte) []byte {
	t.Helper()
	return append(rig.Value(proto.MarshalOptions{Deterministic: true}.Marshal(pb)), more...)
}

// TestDecode walks through the rules of remote.md section 5. The generated code
// makes its frames.
func TestDecode(t *testing.T) {
	t.Parallel()
	type body = relaypb.RelayMessageFrame_Data
	envelope := func(id string, version uint32) *relaypb.RelayMessageFrame {
		return &relaypb.RelayMessageFrame{Version: version, StreamId: id, Body: &body{
			Data: &relaypb.RelayData{SegmentCount: 1, Payload: []byte("p")}}}
	}
	data := func(index, count uint32, payload string) *relaypb.RelayMessageFrame {
		return &relaypb.RelayMessageFrame{Version: 1, StreamId: "s", Body: &body{
			Data: &relaypb.RelayData{Seq: 7, SegmentIndex: index, SegmentCount: count, Payload: []byte(payload)}}}
	}
	good := envelope("s", 1)
	goodFrame := Frame{StreamID: []byte("s"), Body: Data, Payload: []byte("p")}
	with := func(change func(*Frame)) Frame {
		f := goodFrame
		change(&f)
		return f
	}
	type test struct {
		name    string
		message []byte
		want    Frame
		err     error
	}
	tests := []test{
		{name: "good", message: encode(t, good), want: goodFrame},
		{name: "nothing", message: nil, err: errVersion},
		{name: "no protobuf", message: []byte("hello"), err: errWire},
		{name: "version 0", message: encode(t, envelope("s", 0)), err: errVersion},
		{name: "version 2", message: encode(t, envelope("s", 2)), err: errVersion},
		{name: "version 2^32+1", message: encode(t, good, 0x08, 0x81, 0x80, 0x80, 0x80, 0x10), want: goodFrame},
		{name: "version twice, the last counts", message: encode(t, envelope("s", 2), 0x08, 0x01), want: goodFrame},
		{name: "version twice, the last is wrong", message: encode(t, good, 0x08, 0x02), err: errVersion},
		{name: "no stream id", message: encode(t, envelope("", 1)), err: errStreamID},
		{name: "blank stream id", message: encode(t, envelope(" \t\n\u00a0\u2003\u3000", 1)), err: errStreamID},
		{name: "stream id of invisible letters", message: encode(t, envelope("\u200b", 1)),
			want: with(func(f *Frame) { f.StreamID = []byte("\u200b") })},
		{name: "stream id with blanks", message: encode(t, envelope(" s ", 1)),
			want: with(func(f *Frame) { f.StreamID = []byte(" s ") })},
		{name: "long stream id", message: encode(t, envelope(strings.Repeat("x", 5000), 1)),
			want: with(func(f *Frame) { f.StreamID = bytes.Repeat([]byte("x"), 5000) })},
		{name: "stream id not UTF-8", message: encode(t, good, 0x12, 1, 0xff), err: errText},
		{name: "stream id twice", message: encode(t, good, 0x12, 1, 'S'),
			want: with(func(f *Frame) { f.StreamID = []byte("S") })},
		{name: "acks", message: encode(t, good, 0x18, 99, 0x20, 0xff, 0xff, 0xff, 0xff, 0x0f),
			want: with(func(f *Frame) { f.Ack, f.AckBits = 99, 1<<32-1 })},
		{name: "traces", message: encode(t, good, 0x5a, 1, 't', 0x62, 0), want: goodFrame},
		{name: "traceparent not UTF-8", message: encode(t, good, 0x5a, 1, 0xff), err: errText},
		{name: "tracestate not UTF-8", message: encode(t, good, 0x62, 1, 0xff), err: errText},
		{name: "no body", message: []byte{0x08, 1, 0x12, 1, 's'}, err: errBody},
		{name: "segment 1", message: encode(t, data(1, 1, "p")), err: errSegment},
		{name: "of 0 segments", message: encode(t, data(0, 0, "p")), err: errSegment},
		{name: "of 2 segments", message: encode(t, data(0, 2, "p")), err: errSegment},
		{name: "no payload", message: encode(t, data(0, 1, "")), err: errPayload},
		{name: "data merged", message: encode(t, data(0, 2, "p"), 0x2a, 2, 0x18, 1),
			want: with(func(f *Frame) { f.Seq = 7 })},
		{name: "data replaced by ack and data", message: encode(t, data(0, 1, "p"), 0x32, 0, 0x2a, 5, 0x18, 1, 0x22, 1, 'q'),
			want: with(func(f *Frame) { f.Payload = []byte("q") })},
		{name: "data replaced, not merged", message: encode(t, data(0, 1, "p"), 0x32, 0, 0x2a, 3, 0x22, 1, 'q'), err: errSegment},
		{name: "data replaced by ack", message: encode(t, data(0, 1, "p"), 0x32, 0),
			want: Frame{StreamID: []byte("s"), Body: Ack}},
		{name: "ack with unknown fields", message: encode(t, good, 0x32, 2, 0x08, 1),
			want: Frame{StreamID: []byte("s"), Body: Ack}},
		{name: "resume", message: encode(t, good, 0x3a, 2, 0x08, 5),
			want: Frame{StreamID: []byte("s"), Body: Resume, NextSeq: 5}},
		{name: "resume merged", message: encode(t, good, 0x3a, 2, 0x08, 5, 0x3a, 0),
			want: Frame{StreamID: []byte("s"), Body: Resume, NextSeq: 5}},
		{name: "reset", message: encode(t, good, 0x42, 3, 0x0a, 1, 'r'),
			want: Frame{StreamID: []byte("s"), Body: Reset, Reason: []byte("r")}},
		{name: "reset without a reason", message: encode(t, good, 0x42, 0), err: errReason},
		{name: "reset with a blank reason", message: encode(t, good, 0x42, 3, 0x0a, 1, ' '),
			want: Frame{StreamID: []byte("s"), Body: Reset, Reason: []byte(" ")}},
		{name: "reason not UTF-8", message: encode(t, good, 0x42, 3, 0x0a, 1, 0xff), err: errText},
		{name: "heartbeat", message: encode(t, good, 0x4a, 0), want: Frame{StreamID: []byte("s"), Body: Heartbeat}},
		{name: "handshake", message: encode(t, good, 0x52, 3, 0x0a, 1, 0xff),
			want: Frame{StreamID: []byte("s"), Body: Handshake, Payload: []byte{0xff}}},
		{name: "handshake without payload", message: encode(t, good, 0x52, 0), err: errPayload},
		{name: "unknown fields", message: encode(t, good,
			0x68, 1, 0x71, 1, 2, 3, 4, 5, 6, 7, 8, 0x7a, 1, 0, 0x85, 1, 1, 2, 3, 4, 0x8b, 1, 0x08, 1, 0x8c, 1), want: goodFrame},
		{name: "unknown field in data", message: encode(t, good, 0x2a, 2, 0x28, 9), want: goodFrame},
		{name: "group that does not end", message: encode(t, good, 0x8b, 1), err: errWire},
		{name: "group that has not begun", message: encode(t, good, 0x8c, 1), err: errWire},
		{name: "largest field number", message: encode(t, good, 0xf8, 0xff, 0xff, 0xff, 0x0f, 1), want: goodFrame},
		{name: "larger field number", message: encode(t, good, 0x80, 0x80, 0x80, 0x80, 0x10, 1), err: errWire},
		{name: "larger field number in a body", message: encode(t, good, 0x32, 6, 0x80, 0x80, 0x80, 0x80, 0x10, 1), err: errWire},
		{name: "larger field number in a group", message: encode(t, good, 0x8b, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 0x8c, 1), err: errWire},
		{name: "field 0", message: encode(t, good, 0x00, 1), err: errWire},
		{name: "wire type 6", message: encode(t, good, 0x6e, 1), err: errWire},
		{name: "varint of 11 bytes", message: encode(t, good, append([]byte{0x18}, bytes.Repeat([]byte{0xff}, 10)...)...), err: errWire},
		{name: "length beyond the end", message: encode(t, good, 0x7a, 2, 0), err: errWire},
		{name: "body beyond the end", message: encode(t, good, 0x3a, 3, 0x08, 5), err: errWire},
		{name: "string beyond its body", message: encode(t, good, 0x42, 2, 0x0a, 1, 'r'), err: errWire},
	}
	// Every known field with another wire type, in a frame that is right otherwise.
	for num := numVersion; num <= numTracestate; num++ {
		typ, value := varintType, byte(1)
		if num == numVersion || num == numAck || num == numAckBits {
			typ, value = bytesType, 0
		}
		b := append(appendTag(nil, num, typ), value)
		tests = append(tests, test{name: "wire type of field", message: encode(t, good, b...), err: errType})
	}
	for _, b := range [][]byte{
		{0x2a, 2, 0x0a, 0}, {0x2a, 2, 0x12, 0}, {0x2a, 2, 0x1a, 0}, {0x2a, 2, 0x20, 0}, // data
		{0x3a, 2, 0x0a, 0}, {0x42, 2, 0x08, 0}, {0x52, 2, 0x08, 0}, // resume, reset, handshake
	} {
		tests = append(tests, test{name: "wire type in body", message: encode(t, good, b...), err: errType})
	}
	for _, tt := range tests {
		got := Frame{Ack: 5, Body: Handshake, Payload: []byte("from before")}
		err := Decode(tt.message, &got)
		rig.Is(t, err, tt.err, "%s (%x): error", tt.name, tt.message)
		if err != nil {
			continue
		}
		rig.Same(t, tt.name, tt.want, got, cmpopts.EquateEmpty())
	}
}

// TestTruncated: a frame that is cut anywhere is refused. (But for traces, the body
// comes last.)
func TestTruncated(t *testing.T) {
	t.Parallel()
	for name, message := range readVectors(t) {
		var whole Frame
		rig.Must(t, Decode(message, &whole))
		for n := range message {
			var f Frame
			rig.Is(t, Decode(message[:n], &f) == nil && name != "data with trace", false, "%s may be cut to %d bytes", name, n)
		}
	}
}

func TestAcknowledges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		frame Frame
		want  bool
	}{
		{Frame{Body: Data}, false},
		{Frame{Body: Heartbeat}, false},
		{Frame{Body: Resume}, false},
		{Frame{Body: Ack}, true},
		{Frame{Body: Data, Ack: 1}, true},
		{Frame{Body: Data, AckBits: 1}, true},
		{Frame{Body: Resume, Ack: 3}, true},
	} {
		rig.Is(t, tt.frame.Acknowledges(), tt.want, "%+v acknowledges", tt.frame)
	}
}

// TestDataHeader: header and payload together are a data frame, and the
// header needs no more room than promised.
func TestDataHeader(t *testing.T) {
	t.Parallel()
	id := []byte("4faa9b06-fef2-463f-8e45-a01233809670")
	for _, size := range []int{1, 16, 127, 128, 16383, 16384, 61456, MaxMessage} {
		for _, n := range []uint32{0, 1, 127, 128, 1<<32 - 1} {
			payload := make([]byte, size)
			h := DataHeader{StreamID: id, Ack: n, AckBits: n, Seq: n, PayloadSize: size}
			header := h.Append(nil)
			rig.Is(t, min(len(header), len(id)+MaxDataHeader), len(header), "bytes of the header of %d, numbers %d", size, n)
			f := Frame{StreamID: id, Ack: n, AckBits: n, Body: Data, Seq: n, Payload: payload}
			all := append(header, payload...)
			got := string(f.Append([]byte("before")))
			rig.Is(t, got == "before"+string(all), true, "Append makes the same of %d bytes, numbers %d", size, n)
			var back Frame
			rig.Must(t, Decode(all, &back))
			rig.Is(t, same(&f, &back), true, "%d bytes, numbers %d, come back as the same frame", size, n)
		}
	}
}

// TestAllocations: reading and making a frame allocates nothing.
func TestAllocations(t *testing.T) {
	var f Frame
	message := readVectors(t)["data with trace"]
	buf := make([]byte, 0, 128)
	for name, do := range map[string]func(){
		"Decode": func() {
			rig.Must(t, Decode(message, &f))
		},
		"Decode of nonsense": func() {
			rig.Is(t, Decode(message[:len(message)-1], &f) == nil, false, "a cut message is decoded")
		},
		"DataHeader.Append": func() {
			h := DataHeader{StreamID: message[:36], Ack: 1 << 31, AckBits: 1 << 31, Seq: 1 << 31, PayloadSize: 61456}
			h.Append(buf)
		},
		"Frame.Append": func() { f.Append(buf) },
	} {
		rig.Is(t, testing.AllocsPerRun(100, do), 0, "allocations of %s", name)
	}
}

func BenchmarkDecode(b *testing.B) {
	f := Frame{StreamID: []byte("4faa9b06-fef2-463f-8e45-a01233809670"), Ack: 1000, Body: Data, Seq: 1000, Payload: make([]byte, 4096)}
	message := f.Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, Decode(message, &f))
	}
}

func BenchmarkDataHeader(b *testing.B) {
	id, buf := []byte("4faa9b06-fef2-463f-8e45-a01233809670"), make([]byte, 0, 128)
	b.ReportAllocs()
	for b.Loop() {
		h := DataHeader{StreamID: id, Ack: 1000, Seq: 1000, PayloadSize: 61456}
		h.Append(buf)
	}
}
