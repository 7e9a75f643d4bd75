package client

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestOrderIsTotal: whatever order the events come in, with whatever repeats, they
// are given out in that of their numbers, each once.
func TestOrderIsTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "n")
		var events []Event
		for i := range n {
			e := Event{Kind: Output, Seq: uint64(i + 1), Data: []byte{byte(i)}}
			for range rapid.IntRange(1, 3).Draw(t, "times") {
				events = append(events, e)
			}
		}
		events = rapid.Permutation(events).Draw(t, "events")
		var o order
		var got []uint64
		for _, e := range events {
			if err := o.add(e); err != nil {
				t.Fatalf("event %d: %v", e.Seq, err)
			}
			for e, ok := o.next(); ok; e, ok = o.next() {
				if int(e.Data[0]) != int(byte(e.Seq-1)) {
					t.Fatalf("event %d holds %d", e.Seq, e.Data[0])
				}
				got = append(got, e.Seq)
			}
		}
		if len(got) != n || !slices.IsSorted(got) {
			t.Fatalf("got %v, want 1 to %d", got, n)
		}
		if len(o.pending) != 0 || o.bytes != 0 {
			t.Fatalf("%d events and %d bytes are left", len(o.pending), o.bytes)
		}
	})
}

func TestOrderBounds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		events int // that wait for event 1
		size   int
		want   bool // one more is an error
	}{
		{"few", maxPending - 1, 1, false},
		{"many", maxPending, 1, true},
		{"large", 16, maxPendingBytes / 16, true},
		{"one too large", 0, maxPendingBytes + 1, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var o order
			for i := range tt.events {
				if err := o.add(Event{Seq: uint64(i + 2), Data: make([]byte, tt.size)}); err != nil {
					t.Fatal(err)
				}
			}
			more := Event{Seq: uint64(tt.events + 2), Data: make([]byte, tt.size)}
			if err := o.add(more); (err != nil) != tt.want {
				t.Errorf("one more gives %v, want an error: %v", err, tt.want)
			}
			if err := o.add(Event{Seq: 1, Data: make([]byte, tt.size)}); err != nil {
				t.Errorf("the one that is waited for gives %v", err)
			}
		})
	}
}
