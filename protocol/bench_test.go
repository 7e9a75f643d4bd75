package protocol

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

// smallRequest and bigWrite are the usual request and the usual large one: 64
// KiB for a process's stdin.
func smallRequest() []byte {
	return []byte(`{"id":17,"method":"process/read","params":{"processId":"p-17","afterSeq":41,"maxBytes":65536,"waitMs":1000}}`)
}

func bigWrite() []byte {
	msg := []byte(`{"id":18,"method":"process/write","params":{"processId":"p-17","writeId":"w-18","chunk":`)
	msg = strictjson.AppendBase64(msg, bytes.Repeat([]byte("0123456789abcdef"), 4096))
	return append(msg, "}}"...)
}

func BenchmarkDecode(b *testing.B) {
	start := inParams(`{"processId":"p","argv":["/bin/sh","-c","echo hello"],"cwd":"file:///srv/w","env":{"PATH":"/usr/bin:/bin",
		"HOME":"/root","LANG":"C.UTF-8"},"tty":false,"pipeStdin":true,"sandbox":` + string(contracttest.Full("Sandbox")) + `}`)
	for _, bb := range []struct {
		name string
		msg  []byte
	}{{"small", smallRequest()}, {"start", []byte(start)}, {"write", bigWrite()}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.msg)))
			for b.Loop() {
				rig.Must(b, rig.Err(Decode(bb.msg)))
			}
		})
	}
}

func BenchmarkUnmarshalParams(b *testing.B) {
	for _, bb := range []struct {
		name string
		msg  []byte
		make func() strictjson.Unmarshaler
	}{
		{"small", smallRequest(), func() strictjson.Unmarshaler { return new(ReadParams) }},
		{"sandbox", []byte(inParams(`{"path":"file:///a","sandbox":` + string(contracttest.Full("Sandbox")) + `}`)), func() strictjson.Unmarshaler { return new(PathParams) }},
		{"write", bigWrite(), func() strictjson.Unmarshaler { return new(WriteParams) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			m, err := Decode(bb.msg)
			rig.Must(b, err)
			b.ReportAllocs()
			b.SetBytes(int64(len(m.Params)))
			params := make([]byte, len(m.Params))
			for b.Loop() {
				copy(params, m.Params) // reading base64 in place overwrites its text
				rig.Must(b, UnmarshalParams(params, bb.make()))
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	walk := &WalkResult{}
	for i := range 10_000 {
		walk.Entries = append(walk.Entries, WalkEntry{Path: fmt.Sprintf("/srv/project/src/dir%d/file%d.go", i/20, i), Directory: i%20 == 0})
	}
	block := &ReadBlockResult{Chunk: make([]byte, 1<<20)}
	chunk := &OutputNotification{ProcessID: "p-17", OutputChunk: OutputChunk{Seq: 5, Stream: StreamStdout, Chunk: make([]byte, 64<<10)}}
	for _, bb := range []struct {
		name   string
		append func(dst []byte) ([]byte, error)
	}{
		{"status", func(dst []byte) ([]byte, error) { return AppendResult(dst, NumberID(1), StatusResult{StatusReady}) }},
		{"write", func(dst []byte) ([]byte, error) {
			return AppendResult(dst, NumberID(1), &WriteResult{WriteAccepted})
		}},
		{"block1M", func(dst []byte) ([]byte, error) {
			return AppendResult(dst, NumberID(1), block)
		}},
		{"output64K", func(dst []byte) ([]byte, error) { return AppendNotification(dst, MethodProcessOutput, chunk) }},
		{"walk10k", func(dst []byte) ([]byte, error) { return AppendResult(dst, NumberID(1), walk) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				var err error
				buf, err = bb.append(buf[:0])
				rig.Must(b, err)
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}
