package client

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// log is what a server keeps of a process.
type log struct {
	events []Event // all, from 1 on
	done   int     // how many have happened
	first  int     // index of the first one whose output is kept
}

// read answers process/read as a server does.
func (l *log) read(after uint64) *protocol.ReadResult {
	r := &protocol.ReadResult{Chunks: []protocol.OutputChunk{}, NextSeq: uint64(l.done) + 1}
	for i, e := range l.events[:l.done] {
		switch e.Kind {
		case Output:
			if e.Seq > after && i >= l.first {
				r.Chunks = append(r.Chunks, protocol.OutputChunk{Seq: e.Seq, Stream: e.Stream, Chunk: e.Data})
			}
		case Exited:
			r.Exited, r.ExitCode, r.SandboxDenied = true, &e.ExitCode, e.SandboxDenied
		case Closed:
			r.Closed = true
		}
	}
	return r
}

// drawLog makes up a process: output with an exit somewhere, and mostly the end.
func drawLog(t *rapid.T) *log {
	n := rapid.IntRange(0, 120).Draw(t, "outputs")
	exit := rapid.IntRange(0, n).Draw(t, "exit")
	l := &log{}
	add := func(e Event) {
		e.Seq = uint64(len(l.events)) + 1
		l.events = append(l.events, e)
	}
	for i := range n {
		if i == exit {
			add(Event{Kind: Exited, ExitCode: 3, SandboxDenied: true})
		}
		add(Event{Kind: Output, Stream: protocol.StreamStdout, Data: []byte{byte(i)}})
	}
	if exit == n {
		add(Event{Kind: Exited, ExitCode: 3, SandboxDenied: true})
	}
	add(Event{Kind: Closed})
	return l
}

// taker takes events as a process handle does, without its queue.
type taker struct {
	order  order
	behind bool
	got    []Event
}

func (k *taker) accept(e Event) {
	if !k.behind && e.Seq == k.order.last+1 {
		k.order.publish(e)
		k.got = append(k.got, e)
		return
	}
	k.order.hold(e)
	k.behind = k.behind || k.order.behind()
}

func (k *taker) merge(r *protocol.ReadResult) error {
	events, err := k.order.merge(r)
	if err != nil {
		return err
	}
	for _, e := range events {
		k.order.publish(e)
		k.got = append(k.got, e)
	}
	for e, ok := k.order.next(); ok; e, ok = k.order.next() {
		k.order.publish(e)
		k.got = append(k.got, e)
	}
	k.behind = k.order.behind()
	return nil
}

// TestOrderIsTotal: notifications come in any order, repeat and get lost; connections
// end at any moment, and process/read fills what is missing. All events are published,
// in order, each once; or the server has forgotten some, and that is noticed.
func TestOrderIsTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawLog(t)
		var k taker
		for l.done < len(l.events) || k.behind || !k.order.closed {
			happens := rapid.IntRange(0, len(l.events)-l.done).Draw(t, "happens")
			sent := slices.Clone(l.events[l.done : l.done+happens])
			l.done += happens
			if rapid.Bool().Draw(t, "cut") {
				k.behind = true
				sent = sent[rapid.IntRange(0, len(sent)).Draw(t, "lost"):]
			}
			if len(sent) > 0 && rapid.Bool().Draw(t, "repeats") {
				sent = append(sent, sent[rapid.IntRange(0, len(sent)-1).Draw(t, "again")])
			}
			if len(sent) > 0 && rapid.Bool().Draw(t, "shuffled") {
				sent = rapid.Permutation(sent).Draw(t, "order")
			}
			for _, e := range sent {
				k.accept(e)
			}
			if rapid.IntRange(0, 9).Draw(t, "forgets") == 0 {
				l.first = rapid.IntRange(l.first, l.done).Draw(t, "first")
			}
			if !k.behind {
				continue
			}
			if err := k.merge(l.read(k.order.last)); err != nil {
				gap, ok := errors.AsType[*GapError](err)
				if !ok || int(gap.After) >= l.first {
					t.Fatalf("%v, and the server has all from index %d on", err, l.first)
				}
				return
			}
			if k.behind {
				t.Fatalf("still behind: %d of %d, pending %d", k.order.last, l.done, len(k.order.pending))
			}
		}
		for i, e := range k.got {
			want := l.events[i]
			if e.Seq != want.Seq || e.Kind != want.Kind || e.ExitCode != want.ExitCode || e.SandboxDenied != want.SandboxDenied || !slices.Equal(e.Data, want.Data) {
				t.Fatalf("event %d is %+v, want %+v", i+1, e, want)
			}
		}
		if len(k.got) != len(l.events) || len(k.order.pending) != 0 || k.order.bytes != 0 {
			t.Fatalf("got %d of %d events; %d and %d bytes are left", len(k.got), len(l.events), len(k.order.pending), k.order.bytes)
		}
	})
}

// TestOrderFromTheMiddle: whoever attaches gets what the server has kept, from one
// point on without a hole, and the exit in any case.
func TestOrderFromTheMiddle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawLog(t)
		l.done = rapid.IntRange(0, len(l.events)).Draw(t, "done")
		l.first = rapid.IntRange(0, l.done).Draw(t, "first")
		k := taker{order: order{fresh: true}, behind: true}
		rig.Must(t, k.merge(l.read(0)))
		for _, e := range l.events[l.done:] {
			k.accept(e)
		}
		if len(k.got)+int(k.order.skipped) != len(l.events) {
			t.Fatalf("got %d events and %d were skipped, of %d", len(k.got), k.order.skipped, len(l.events))
		}
		exits := 0
		for i, e := range k.got {
			if e.Seq != k.order.skipped+uint64(i)+1 {
				t.Fatalf("event %d comes as number %d", e.Seq, i+1)
			}
			if want := l.events[e.Seq-1]; e.Kind == Output && !slices.Equal(e.Data, want.Data) {
				t.Fatalf("event %d holds %d, want %d", e.Seq, e.Data, want.Data)
			}
			if e.Kind == Exited {
				exits++
			}
		}
		if exits != 1 || !k.order.exited || !k.order.closed {
			t.Fatalf("%d exits", exits)
		}
	})
}

// TestMergeRefuses: a server that contradicts itself is not believed.
func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	code := 0
	chunks := func(numbers ...uint64) (all []protocol.OutputChunk) {
		for _, n := range numbers {
			all = append(all, protocol.OutputChunk{Seq: n, Stream: protocol.StreamStdout, Chunk: []byte("x")})
		}
		return all
	}
	for _, tt := range []struct {
		name    string
		pending []Event
		result  protocol.ReadResult
		want    string
	}{
		{"no next number", nil, protocol.ReadResult{}, "nextSeq 0"},
		{"a failure", nil, protocol.ReadResult{NextSeq: 2, Failure: new("gone")}, "process failed: gone"},
		{"a chunk beyond the end", nil, protocol.ReadResult{NextSeq: 2, Chunks: chunks(2)}, "chunk 2 after 0, up to 1"},
		{"a chunk twice", nil, protocol.ReadResult{NextSeq: 3, Chunks: chunks(1, 1)}, "chunk 1 after 1"},
		{"a hole", nil, protocol.ReadResult{NextSeq: 4, Chunks: chunks(1, 3)}, "no longer retained while recovering through sequence 3"},
		{"a hole of any size", nil, protocol.ReadResult{NextSeq: 1 << 63}, "no longer retained"},
		{"two holes and one exit", nil, protocol.ReadResult{NextSeq: 6, Chunks: chunks(1, 3, 5), Exited: true, ExitCode: &code}, "no longer retained"},
		{"an exit without a number", nil, protocol.ReadResult{NextSeq: 2, Chunks: chunks(1), Exited: true, ExitCode: &code}, "no longer retained"},
		{"an exit without a code", nil, protocol.ReadResult{NextSeq: 2, Exited: true}, "without its code"},
		{"closed at an output", nil, protocol.ReadResult{NextSeq: 2, Chunks: chunks(1), Closed: true}, "contradicts itself about the end"},
		{"closed, and not", []Event{{Kind: Closed, Seq: 2}}, protocol.ReadResult{NextSeq: 4, Chunks: chunks(1, 3)}, "contradicts itself about the end"},
		{"an output that was the exit", []Event{{Kind: Exited, Seq: 2}}, protocol.ReadResult{NextSeq: 3, Chunks: chunks(1, 2)}, "event 2 of the process is output"},
	} {
		var o order
		for _, e := range tt.pending {
			o.hold(e)
		}
		_, err := o.merge(&tt.result)
		rig.Is(t, err != nil && strings.Contains(err.Error(), tt.want), true, "%s: %v, want %q", tt.name, err, tt.want)
		rig.Is(t, o.last != 0 || len(o.pending) != len(tt.pending), false, "%s: the order has changed: %+v", tt.name, o)
	}
}

// TestMergeFailure: what the answer about a failed process has, and what was pending, comes before
// the error, up to the first gap.
func TestMergeFailure(t *testing.T) {
	t.Parallel()
	o := order{last: 1}
	o.hold(Event{Kind: Exited, Seq: 3})
	o.hold(Event{Kind: Output, Seq: 6})
	chunks := []protocol.OutputChunk{{Seq: 2, Stream: protocol.StreamStdout, Chunk: []byte("x")}, {Seq: 4, Stream: protocol.StreamStderr, Chunk: []byte("y")}}
	events, err := o.merge(&protocol.ReadResult{NextSeq: 7, Chunks: chunks, Failure: new("gone")})
	rig.Says(t, err, "process failed: gone", "a failure")
	want := []Event{{Kind: Output, Seq: 2, Stream: protocol.StreamStdout, Data: []byte("x")}, {Kind: Exited, Seq: 3}, {Kind: Output, Seq: 4, Stream: protocol.StreamStderr, Data: []byte("y")}}
	rig.Same(t, "events", want, events)
	rig.Is(t, len(o.pending), 1, "events are pending")
}

func TestHoldBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		events int // that wait for event 1
		size   int
		full   bool // one more finds no room
	}{
		{"few", maxPending - 1, 1, false},
		{"many", maxPending, 1, true},
		{"large", 16, maxPendingBytes / 16, true},
		{"one too large", 0, maxPendingBytes + 1, true},
	} {
		var o order
		for i := range tt.events {
			o.hold(Event{Seq: uint64(i + 2), Data: make([]byte, tt.size)})
		}
		rig.Is(t, o.dropped, 0, "%s: an event that found no room", tt.name)
		more := Event{Seq: uint64(tt.events + 2), Data: make([]byte, tt.size)}
		o.hold(more)
		rig.Is(t, o.dropped == more.Seq, tt.full, "%s: event %d found no room", tt.name, more.Seq)
	}
}

// BenchmarkMerge merges a million events at once and in two halves: the time for each
// is the same.
func BenchmarkMerge(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(map[int]string{10_000: "10k", 1_000_000: "1M"}[n], func(b *testing.B) {
			r := &protocol.ReadResult{NextSeq: uint64(n) + 1}
			for i := range n {
				r.Chunks = append(r.Chunks, protocol.OutputChunk{Seq: uint64(i) + 1, Stream: protocol.StreamStdout, Chunk: []byte("x")})
			}
			for b.Loop() {
				var o order
				events, err := o.merge(r)
				rig.Must(b, err)
				rig.Is(b, len(events), n, "events")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/event")
		})
	}
}
