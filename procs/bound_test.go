package procs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestBound: whatever the reads are, and whenever the rest is taken out, what is delivered is the head
// and a tail, and what is left out is counted.
func TestBound(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		most := 1 + random.IntN(12)
		b := newBound(uint64(most), 5, func(int) bool { return random.IntN(20) > 0 })
		var all, got []byte
		out := 0
		flush := func() {
			pieces, omitted := b.rest()
			got, out = append(got, bytes.Join(pieces, nil)...), out+int(omitted)
		}
		for range random.IntN(6) {
			data := []byte("abcdefghijklmnopqrstuvwxyz")[:random.IntN(27)]
			all, got = append(all, data...), append(got, b.take(data)...)
		}
		flush()
		rig.Is(t, len(got)+out, len(all), "%d of %d bytes", len(got), len(all))
		head := min(len(got), most-most/2)
		right := len(got) <= most && bytes.HasPrefix(all, got[:head]) && bytes.HasSuffix(all, got[head:])
		rig.Is(t, right, true, "%q has the head and the tail of %q, %d bytes of which may come", got, all, most)
		all, got = append(all, 'z'), append(got, b.take([]byte("z"))...)
		flush()
		rig.Is(t, len(got)+out, len(all), "%d of %d bytes", len(got), len(all))
	}
}

// TestBoundFlood: a tail that the budget has no room for gets shorter, and nothing is lost uncounted.
func TestBoundFlood(t *testing.T) {
	t.Parallel()
	const flood, room = 32 << 20, 1 << 20
	budget, got := &Budget{Max: room}, uint64(0)
	p := rig.Value(Start(Spec{
		Argv: []string{"head", "-c", "32M", "/dev/zero"}, Dir: "/", Env: os.Environ(), MaxOutput: 8 << 20, Budget: budget,
		Sink: func(e Event) { got += uint64(len(e.Data)) + e.Omitted },
	}))
	p.Begin()
	<-p.Done()
	rig.Is(t, got, uint64(flood), "bytes that came or were counted")
	rig.Is(t, budget.Used() <= room, true, "%d bytes of memory fit into the budget", budget.Used())
	rig.Must(t, p.Close())
	rig.Is(t, budget.Used(), int64(0), "bytes that are left")
}
