package registry

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// metrics count what a server does since it started. No value has an id or a
// secret in it.
type metrics struct {
	executors atomic.Int64 // open websockets
	harnesses atomic.Int64
	streams   atomic.Int64 // routes of streams

	frames    atomic.Uint64 // relayed by this server, in both directions
	bytes     atomic.Uint64
	hopFrames atomic.Uint64 // of them from or to another process, through NATS
	hopBytes  atomic.Uint64
	resets    atomic.Uint64 // sent by the rendezvous itself
	dropped   atomic.Uint64 // frames that had nowhere to go

	mu       sync.Mutex
	answers  map[answer]uint64 // by fixed operations and statuses: bounded
	rejected map[string]uint64 // upgrades by reason: one of the reject constants
}

// answer is what a request came to.
type answer struct {
	operation string // register, validate, connect or other
	status    int
}

func newMetrics() *metrics {
	return &metrics{answers: make(map[answer]uint64), rejected: make(map[string]uint64)}
}

func (m *metrics) answered(operation string, status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[answer{operation, status}]++
}

// refused counts an upgrade that was refused with a reject reason.
func (m *metrics) refused(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rejected[reason]++
}

// write prints the metrics in the text format of Prometheus.
func (m *metrics) write(w io.Writer) error {
	var b strings.Builder
	family := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP registry_%s %s\n# TYPE registry_%s %s\n", name, help, name, kind)
	}
	family("websockets", "gauge", "Open rendezvous websockets.")
	fmt.Fprintf(&b, "registry_websockets{role=\"executor\"} %d\n", m.executors.Load())
	fmt.Fprintf(&b, "registry_websockets{role=\"harness\"} %d\n", m.harnesses.Load())
	family("streams", "gauge", "Streams with a route.")
	fmt.Fprintf(&b, "registry_streams %d\n", m.streams.Load())
	for _, c := range []struct {
		name, help string
		value      *atomic.Uint64
	}{
		{"frames_total", "Frames relayed.", &m.frames},
		{"bytes_total", "Bytes relayed.", &m.bytes},
		{"hop_frames_total", "Frames relayed from or to another process.", &m.hopFrames},
		{"hop_bytes_total", "Bytes relayed from or to another process.", &m.hopBytes},
		{"resets_total", "Resets sent by the rendezvous.", &m.resets},
		{"dropped_frames_total", "Frames that had nowhere to go.", &m.dropped},
	} {
		family(c.name, "counter", c.help)
		fmt.Fprintf(&b, "registry_%s %d\n", c.name, c.value.Load())
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	family("requests_total", "counter", "Requests answered.")
	for _, a := range slices.SortedFunc(maps.Keys(m.answers), func(a, b answer) int {
		if c := strings.Compare(a.operation, b.operation); c != 0 {
			return c
		}
		return a.status - b.status
	}) {
		fmt.Fprintf(&b, "registry_requests_total{operation=%q,status=\"%d\"} %d\n", a.operation, a.status, m.answers[a])
	}
	family("rejected_upgrades_total", "counter", "Rendezvous upgrades refused.")
	for _, reason := range slices.Sorted(maps.Keys(m.rejected)) {
		fmt.Fprintf(&b, "registry_rejected_upgrades_total{reason=%q} %d\n", reason, m.rejected[reason])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
