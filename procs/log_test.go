package procs

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// filled returns a log with "aa" as 1, "bbb" as 2, the exit as 3 and "c" as 4.
func filled() *log {
	l := &log{retain: DefaultRetainBytes}
	l.add(Event{Kind: Output, Stream: Stdout, Data: []byte("aa")})
	l.add(Event{Kind: Output, Stream: Stderr, Data: []byte("bbb")})
	l.add(Event{Kind: Exited, ExitCode: 9})
	l.add(Event{Kind: Output, Stream: Stdout, Data: []byte("c")})
	return l
}

func TestRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRead)
}

// testRead runs at a time that stands still.
func testRead(t *testing.T) {
	now := time.Now().UnixMilli()
	a := Chunk{1, Stdout, now, []byte("aa"), 0}
	b := Chunk{2, Stderr, now, []byte("bbb"), 0}
	c := Chunk{4, Stdout, now, []byte("c"), 0}
	for _, tt := range []struct {
		name     string
		after    uint64
		maxBytes *uint64
		want     []Chunk
		next     uint64
	}{
		{"all", 0, nil, []Chunk{a, b, c}, 5},
		{"after the first", 1, nil, []Chunk{b, c}, 5},
		{"after the second", 2, nil, []Chunk{c}, 5},
		{"after the exit", 3, nil, []Chunk{c}, 5},
		{"after the last", 4, nil, nil, 5},
		{"ahead", 1 << 63, nil, nil, 5},
		{"no budget gives one", 0, new(uint64(0)), []Chunk{a}, 2},
		{"never split", 0, new(uint64(4)), []Chunk{a}, 2},
		{"just enough", 0, new(uint64(5)), []Chunk{a, b}, 3},
		{"number after the last chunk", 1, new(uint64(4)), []Chunk{b, c}, 5},
		{"no chunk under a budget", 4, new(uint64(0)), nil, 5},
		{"huge budget", 0, new(^uint64(0)), []Chunk{a, b, c}, 5},
	} {
		want := Snapshot{Chunks: tt.want, NextSeq: tt.next, Exited: true, ExitCode: 9}
		rig.Same(t, tt.name, want, filled().read(tt.after, tt.maxBytes))
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		retain             int64
		events, size, kept int
	}{"bytes": {1000, 100, 300, 3}, "chunks": {DefaultRetainBytes, maxChunks + 10, 1, maxChunks}, "the newest always": {1, 2, 3, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &log{retain: tt.retain}
			for i := range tt.events {
				l.add(Event{Kind: Output, Data: bytes.Repeat([]byte{byte(i)}, tt.size)})
			}
			chunks := l.read(0, nil).Chunks
			rig.Is(t, len(chunks), tt.kept, "chunks that are kept")
			for i, c := range chunks { // the newest ones
				n := tt.events - tt.kept + i
				rig.Is(t, fmt.Sprint(c.Seq, c.Data[0]), fmt.Sprint(n+1, byte(n)), "number and data of chunk %d", i)
			}
		})
	}
}

// TestChunksStay: a chunk that a reader was given does not change, though the
// buffers of dropped chunks are used again.
func TestChunksStay(t *testing.T) {
	t.Parallel()
	p, _ := begin(t, Spec{Argv: sh(`exec awk 'BEGIN { for (i = 0; ; i++) print i }'`), RetainBytes: 128 << 10})
	type copied struct {
		chunk Chunk
		data  []byte
	}
	var kept []copied
	for after := uint64(0); len(kept) < 64; {
		rig.Must(t, p.Wait(t.Context(), after))
		s := p.Read(after, nil)
		for _, c := range s.Chunks {
			kept = append(kept, copied{c, bytes.Clone(c.Data)})
		}
		after = s.NextSeq - 1
	}
	// Every buffer gets used again.
	_, _, _, from := p.State()
	for next := from; next < from+200; _, _, _, next = p.State() {
		rig.Must(t, p.Wait(t.Context(), next-1))
	}
	for _, k := range kept {
		rig.Same(t, fmt.Sprintf("chunk %d changed after it was read", k.chunk.Seq), k.data, k.chunk.Data)
	}
}

// TestLogModel: a log answers as a plain list of all events does.
func TestLogModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const retain = 50
		l := &log{retain: retain, budget: &Budget{}}
		var all []Chunk
		for range rapid.IntRange(0, 200).Draw(t, "events") {
			data := bytes.Repeat([]byte("x"), rapid.IntRange(1, 30).Draw(t, "size"))
			all = append(all, Chunk{Seq: l.add(Event{Kind: Output, Data: data}), Data: data})
			kept, sum := len(all), 0
			for kept > 0 && (sum+len(all[kept-1].Data) <= retain || kept == len(all)) {
				kept--
				sum += len(all[kept].Data)
			}
			after := rapid.Uint64Range(0, uint64(len(all)+1)).Draw(t, "after")
			want := all[max(kept, min(int(after), len(all))):]
			got := l.read(after, nil)
			if len(got.Chunks) != len(want) || len(want) > 0 && got.Chunks[0].Seq != want[0].Seq {
				t.Fatalf("read(%d) of %d events: %d chunks, want %d", after, len(all), len(got.Chunks), len(want))
			}
			rig.Is(t, l.budget.Used(), l.cost, "bytes that the budget counts")
		}
		l.free()
		rig.Is(t, l.budget.Used(), 0, "bytes in use after the end")
	})
}
