package protocol

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

// TestAppendJSON compares every hand-written encoder with encoding/json.
func TestAppendJSON(t *testing.T) {
	t.Parallel()
	tests := []Appender{
		&StartResult{}, &StartResult{ProcessID: "p\"\\", SandboxType: "linux", SandboxLayers: []string{"a", "b\n"}, Approval: "x"},
		&ReadResult{Chunks: []OutputChunk{}},
		&ReadResult{
			Chunks:  []OutputChunk{{Seq: 1, Stream: StreamStdout, Chunk: []byte("x")}, {Seq: math.MaxUint64, Stream: StreamPTY, Chunk: []byte{}}},
			NextSeq: math.MaxUint64, Exited: true, ExitCode: new(-1), Closed: true, Failure: new("f\"\xff"), SandboxDenied: true,
		},
		&WriteResult{Status: WriteStdinClosed},
		&OutputNotification{ProcessID: "p\u2028<&>", OutputChunk: OutputChunk{Seq: 7, Stream: StreamStderr, Chunk: []byte{0, 255}}},
		&ExitedNotification{ProcessID: "é", Seq: 8, ExitCode: math.MinInt32, SandboxDenied: true}, &ExitedNotification{},
		&ClosedNotification{ProcessID: "\x00\x7f", Seq: 9},
		&HTTPResponse{Status: 200, Headers: []HTTPHeader{}, BodyBase64: []byte{}},
		&HTTPResponse{Status: -1, Headers: []HTTPHeader{{Name: "a", Value: "\""}, {}}, BodyBase64: []byte("body")},
		&HTTPBodyDelta{RequestID: "r\t", Seq: 1, DeltaBase64: []byte("abcd"), Done: true, Error: new("e\\")},
		&HTTPBodyDelta{DeltaBase64: []byte{}},
		&ReadFileResult{Data: []byte{}}, &ReadFileResult{Data: []byte(strings.Repeat("0123456789", 100))},
		&FileMetadata{}, &FileMetadata{IsFile: true, Size: math.MaxUint64, CreatedAtMs: math.MinInt64, Mode: new(uint32(0)), Owner: "\"", LinkTarget: "a\xffb"},
		&GetMetadataManyResult{Files: []FileOrError{{Error: &ErrorObject{Message: "\"", Data: []byte("{}")}}, {Metadata: &FileMetadata{Type: TypeFifo}}}},
		&ReadDirectoryResult{Entries: []DirectoryEntry{}},
		&ReadDirectoryResult{Entries: []DirectoryEntry{{FileName: "a\xff\xfeb", IsDirectory: true}, {FileName: "\"", Size: new(uint64(1)), ModifiedAtMs: new(int64(-1)), Mode: new(uint32(0))}}},
		&ReadBlockResult{Chunk: []byte{}, EOF: true}, &ReadBlockResult{Chunk: []byte{1, 2, 3, 4}},
		&SocketData{SocketID: "s\"", Offset: math.MaxUint64, Chunk: []byte{0, 255}, EOF: true, Error: "e\n"}, &SocketData{Chunk: []byte{}},
		&SocketWriteParams{SocketID: "s", Offset: 1, Chunk: []byte{1}, EOF: true}, &SocketWriteParams{Chunk: []byte{}},
		&SocketReceived{}, &SocketReceived{math.MaxUint64},
		Empty{}, &Empty{},
	}
	for _, v := range tests {
		sameJSON(t, v)
	}
}

// TestAppendNil pins that lists and bytes are never null on the wire.
func TestAppendNil(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		v    Appender
		want string
	}{
		{&ReadResult{}, `{"chunks":[],"nextSeq":0,"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}`},
		{&HTTPResponse{}, `{"status":0,"headers":[],"bodyBase64":""}`},
		{&HTTPBodyDelta{}, `{"requestId":"","seq":0,"deltaBase64":"","done":false,"error":null}`},
		{&ReadFileResult{}, `{"dataBase64":""}`},
		{&ReadDirectoryResult{}, `{"entries":[]}`},
		{&ReadBlockResult{}, `{"chunk":"","eof":false}`},
		{&SocketData{}, `{"socketId":"","offset":0,"chunk":""}`},
		{&SocketWriteParams{SocketID: "s"}, `{"socketId":"s","offset":0,"chunk":""}`},
		{&WalkResult{}, `{"entries":[],"errors":[],"truncated":false}`},
		{&WalkResult{
			Entries:   []WalkEntry{{"/a b", false}, {"/\xff\"", true}},
			Errors:    []WalkError{{"/c\\", "no \"\xff"}, {"/", ""}},
			Truncated: true,
		}, `{"entries":[{"path":"file:///a%20b","kind":"file"},{"path":"file:///%FF%22","kind":"directory"}],` +
			`"errors":[{"path":"file:///c%5C","message":"no \"` + "\ufffd" + `"},{"path":"file:///","message":""}],"truncated":true}`},
	} {
		rig.Is(t, string(tt.v.AppendJSON([]byte("x"))), "x"+tt.want, "%T", tt.v)
		rig.Check(t, contracttest.Valid(reflect.TypeOf(tt.v).Elem().Name(), []byte(tt.want)))
	}
}

// sameJSON checks that the JSON that v writes itself has the same value as the JSON
// that encoding/json makes of v.
func sameJSON(t rapid.TB, v Appender) {
	t.Helper()
	want, err := json.Marshal(v)
	rig.Must(t, err)
	got := v.AppendJSON([]byte("x"))
	rig.Is(t, got[0], 'x', "%T: what stood before", v)
	var a, b any
	rig.Must(t, json.Unmarshal(got[1:], &a), json.Unmarshal(want, &b))
	rig.Same(t, fmt.Sprintf("%T", v), b, a)
}

func TestAppendJSONRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOf(rapid.Byte())
		text := rapid.Map(bytes, func(b []byte) string { return string(b) })
		n := &OutputNotification{text.Draw(t, "id"), OutputChunk{Seq: rapid.Uint64().Draw(t, "seq"), Stream: StreamPTY, Chunk: bytes.Draw(t, "chunk")}}
		if n.Chunk != nil {
			sameJSON(t, n)
		}
		back := new(OutputNotification)
		m, err := Decode([]byte(inParams(string(n.AppendJSON(nil)))))
		rig.Must(t, err, UnmarshalParams(m.Params, back))
		rig.Is(t, back.Seq, n.Seq, "seq")
		rig.Is(t, string(back.Chunk), string(n.Chunk), "chunk")

		sameJSON(t, &ReadDirectoryResult{Entries: []DirectoryEntry{{FileName: text.Draw(t, "name"), IsFile: true}, {FileName: text.Draw(t, "name"), Type: text.Draw(t, "type")}}})
		sameJSON(t, &HTTPResponse{
			Headers: []HTTPHeader{{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")}}, BodyBase64: []byte(text.Draw(t, "body")),
		})
	})
}

func TestAppendString(t *testing.T) {
	t.Parallel()
	check := func(t rapid.TB, s string) {
		got := strictjson.AppendString(nil, s)
		var back, want string
		encoded, err := json.Marshal(s)
		rig.Must(t, err, json.Unmarshal(got, &back), json.Unmarshal(encoded, &want))
		rig.Is(t, back, want, "%q reads back as", s)
		m, err := Decode(append(append([]byte(`{"id":1,"method":`), got...), '}'))
		rig.Must(t, err)
		rig.Is(t, m.Method, want, "%q, decoded", s)
	}
	for c := range 0x180 {
		check(t, string(rune(c)))
		check(t, "abc"+string(rune(c))+"def")
		check(t, "abc"+string([]byte{byte(c)})+"def")
	}
	for _, s := range []string{"", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\u2028\u2029", "\ufffd", "😀", "a\xf0\x9f\x98", "<script>&"} {
		check(t, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.String().Draw(t, "s"))
		check(t, string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")))
	})
}

func TestAppendMessages(t *testing.T) {
	t.Parallel()
	encoded := func(b []byte, err error) string { return fmt.Sprintf("%s %v", b, err) }
	for _, tt := range []struct{ got, want string }{
		{encoded(AppendRequest(nil, NumberID(1), "m/n", nil)), `{"id":1,"method":"m/n","params":{}} <nil>`},
		{encoded(AppendRequest([]byte("x"), stringID("a\""), "m\"", Empty{})), `x{"id":"a\"","method":"m\"","params":{}} <nil>`},
		{encoded(AppendNotification(nil, "m", map[string]int{"a": 1})), `{"method":"m","params":{"a":1}} <nil>`},
		{encoded(AppendNotification(nil, "m", nil)), `{"method":"m","params":{}} <nil>`},
		{encoded(AppendResult(nil, NumberID(-3), nil)), `{"id":-3,"result":null} <nil>`},
		{encoded(AppendResult(nil, stringID(""), json.RawMessage(`[1]`))), `{"id":"","result":[1]} <nil>`},
		{encoded(AppendResult(nil, NumberID(1), json.RawMessage(nil))), `{"id":1,"result":null} <nil>`},
		{encoded(AppendResult(nil, NumberID(1), StatusResult{"<&>\u2028"})), `{"id":1,"result":{"status":"<&>\u2028"}} <nil>`},
		{encoded(AppendResult(nil, NumberID(1), &WriteResult{WriteAccepted})), `{"id":1,"result":{"status":"accepted"}} <nil>`},
		{string(AppendError(nil, NoID, InvalidRequest("no \"%s\"\n", "x"))), `{"error":{"code":-32600,"message":"no \"x\"\n"},"id":-1}`},
		{string(AppendError(nil, NoID, &Error{Code: 1, Message: "m", Data: []byte(`{"reason":"r"}`)})), `{"error":{"code":1,"message":"m","data":{"reason":"r"}},"id":-1}`},
		{string(AppendError([]byte("x"), stringID("i"), &Error{})), `x{"error":{"code":0,"message":""},"id":"i"}`},
	} {
		rig.Is(t, tt.got, tt.want, "")
	}
	rig.Is(t, rig.Err(AppendResult(nil, NumberID(1), func() {})) != nil, true, "a function is refused")
	rig.Is(t, rig.Err(AppendResult(nil, NumberID(1), json.RawMessage{})) != nil, true, "no JSON at all is refused")
}

func TestSizeHint(t *testing.T) {
	t.Parallel()
	data := make([]byte, 1<<20)
	chunk := OutputChunk{Stream: StreamStdout, Chunk: data}
	tests := []interface {
		Appender
		SizeHint() int
	}{
		&ReadFileResult{Data: data}, &ReadBlockResult{Chunk: data}, &OutputNotification{ProcessID: "p", OutputChunk: chunk},
		&HTTPBodyDelta{RequestID: "r", DeltaBase64: data},
		&SocketData{SocketID: "s", Chunk: data}, &SocketWriteParams{SocketID: "s", Chunk: data},
		&HTTPResponse{Headers: make([]HTTPHeader, 3), BodyBase64: data}, &ReadResult{Chunks: []OutputChunk{chunk, chunk}},
		&ReadDirectoryResult{Entries: make([]DirectoryEntry, 1000)},
		&WalkResult{Entries: make([]WalkEntry, 1000), Errors: make([]WalkError, 10)},
	}
	for _, v := range tests {
		hint, n := v.SizeHint()+512, len(v.AppendJSON(nil))
		rig.Is(t, hint >= n && hint <= 2*n+4096, true, "%T: hint %d for %d bytes", v, hint, n)
	}
}
