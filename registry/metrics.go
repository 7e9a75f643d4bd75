package registry

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/registry/rendezvous"
)

// metrics count what the API and the rendezvous do, from the start on. No value has an id
// or a secret in it. The methods may run at once.
type metrics struct {
	rendezvous.Metrics

	version string
	limits  principal.Limits // of principals that have none of their own

	mu      sync.Mutex        // protects the field below
	answers map[answer]uint64 // few, since operations and statuses are
}

// answer is a kind of answers that are counted together.
type answer struct {
	operation string // register, validate, connect, environments or other
	status    int
}

func newMetrics(version string, defaults principal.Limits) *metrics {
	return &metrics{version: version, limits: defaults, answers: make(map[answer]uint64)}
}

// answered counts an answer.
func (m *metrics) answered(operation string, status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[answer{operation, status}]++
}

// write prints the metrics in the text format of Prometheus.
func (m *metrics) write(w io.Writer) error {
	var b strings.Builder
	family := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP registry_%s %s\n# TYPE registry_%s %s\n", name, help, name, kind)
	}
	family("build_info", "gauge", "What runs: the version is in the label.")
	fmt.Fprintf(&b, "registry_build_info{version=%q} 1\n", m.version)
	family("limit", "gauge", "Limits of a principal that has none of its own; negative: none.")
	for _, limit := range []struct {
		name  string
		value float64
	}{
		{"requests", m.limits.Requests}, {"request-burst", float64(m.limits.RequestBurst)}, {"connections", float64(m.limits.Connections)},
		{"streams", float64(m.limits.Streams)}, {"bytes", float64(m.limits.Bytes)},
	} {
		fmt.Fprintf(&b, "registry_limit{name=%q} %v\n", limit.name, strconv.FormatFloat(limit.value, 'f', -1, 64))
	}
	family("websockets", "gauge", "Open rendezvous websockets.")
	fmt.Fprintf(&b, "registry_websockets{role=\"executor\"} %d\n", m.Executors.Load())
	fmt.Fprintf(&b, "registry_websockets{role=\"harness\"} %d\n", m.Harnesses.Load())
	family("streams", "gauge", "Streams with a route.")
	fmt.Fprintf(&b, "registry_streams %d\n", m.Streams.Load())
	for _, c := range []struct {
		name, help string
		value      *atomic.Uint64
	}{
		{"frames_total", "Frames relayed.", &m.Frames},
		{"bytes_total", "Bytes relayed.", &m.Bytes},
		{"hop_frames_total", "Frames relayed from or to another process.", &m.HopFrames},
		{"hop_bytes_total", "Bytes relayed from or to another process.", &m.HopBytes},
		{"resets_total", "Resets sent by the rendezvous.", &m.Resets},
		{"dropped_frames_total", "Frames that had nowhere to go.", &m.Dropped},
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
	rejected := m.Rejected()
	for _, reason := range slices.Sorted(maps.Keys(rejected)) {
		fmt.Fprintf(&b, "registry_rejected_upgrades_total{reason=%q} %d\n", reason, rejected[reason])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
