package agent

import (
	"runtime"
	"testing"
)

// TestSlowClient stops reading while its process writes: the process stands
// still, the agent's memory stays small, another client notices nothing, and
// nothing is lost once the slow one reads on (rpc.md 4.8).
func TestSlowClient(t *testing.T) {
	const written = 32 << 20
	r := newRig(t, Config{})
	slow, other := r.attach(""), r.attach("")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	slow.quiet()
	slow.listen(false)
	slow.must("process/start", sh("p", "exec head -c 33554432 /dev/zero"), nil)
	p := r.process(slow.session, "p")
	slow.standsStill(p)

	for range 300 {
		other.must("fs/getMetadata", object{"path": "file:///"}, nil)
	}
	other.must("process/start", sh("p", "echo quick"), nil)
	other.awaitNote("process/closed", "p")
	if _, _, _, next := p.State(); next != stuck {
		t.Errorf("the process of a client that does not read went on to event %d", next)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapInuse > before.HeapInuse+16<<20 {
		t.Errorf("a slow client made the heap grow from %d to %d MiB", before.HeapInuse>>20, after.HeapInuse>>20)
	}

	slow.listen(true)
	slow.awaitNote("process/closed", "p")
	if got, whole := slow.received(); got != written || !whole {
		t.Errorf("a client that paused got %d bytes, without a gap: %v; want %d, true", got, whole, written)
	}
}

// TestSlowClientVanishes loses the connection of a client that has stopped
// reading: its process goes on.
func TestSlowClientVanishes(t *testing.T) {
	r := newRig(t, Config{})
	slow := r.attach("")
	slow.listen(false)
	slow.must("process/start", sh("p", "head -c 4194304 /dev/zero; read x"), nil)
	p := r.process(slow.session, "p")
	slow.standsStill(p)
	slow.drop()
	next := r.attach(slow.session)
	next.quiet()
	next.must("process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("\n")}, nil)
	next.awaitNote("process/closed", "p")
}
