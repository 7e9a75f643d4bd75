package protocol

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// TestResultParts: parts of any size are together the message that AppendResult
// makes, and as long as AppendResultParts has said; none is much larger than the
// buffer.
func TestResultParts(t *testing.T) {
	t.Parallel()
	data := func(t *rapid.T) []byte {
		n := rapid.OneOf(rapid.IntRange(0, 9), rapid.IntRange(0, 3000)).Draw(t, "bytes")
		return bytes.Repeat([]byte{0xfb, 1, 2, 3, 4, 5, 6}, n/7+1)[:n]
	}
	rapid.Check(t, func(t *rapid.T) {
		var result Streamed
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			result = &ReadFileResult{Data: data(t)}
		case 1:
			result = &ReadBlockResult{Chunk: data(t), EOF: true}
		case 2:
			r := &ReadResult{NextSeq: 7, Exited: true, ExitCode: new(3)}
			for seq := range rapid.Uint64Range(0, 20).Draw(t, "chunks") {
				r.Chunks = append(r.Chunks, OutputChunk{Seq: seq, Stream: "stdout", Chunk: data(t)})
			}
			result = r
		default:
			result = &HTTPResponse{Status: 200, Headers: []HTTPHeader{{Name: "a", Value: "b\"c"}}, BodyBase64: data(t)}
		}
		id := stringID("an id")
		want, err := AppendResult(nil, id, result)
		rig.Must(t, err)
		room := rapid.IntRange(1, 700).Draw(t, "buffer")
		size, parts := AppendResultParts(make([]byte, 0, room), id, result)
		var got []byte
		for part := range parts {
			const names = 200 // JSON between the bytes
			rig.Is(t, len(part) <= max(room, minPart)+names, true, "a part of %d bytes, the buffer has %d", len(part), room)
			got = append(got, part...)
		}
		rig.Is(t, string(got), string(want), "parts")
		rig.Is(t, size, len(want), "bytes said")
	})
}

// TestResultPartsEnd: no further part is made after the caller has stopped.
func TestResultPartsEnd(t *testing.T) {
	t.Parallel()
	taken := 0
	_, parts := AppendResultParts(make([]byte, 0, 64), NumberID(1), &ReadFileResult{Data: make([]byte, 10_000)})
	for range parts {
		if taken++; taken == 3 {
			break
		}
	}
	rig.Is(t, taken, 3, "parts")
}
