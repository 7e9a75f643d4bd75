package rendezvous

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Metrics count the work of a rendezvous from its start on. No value contains an id or a
// secret. The zero value is ready for use. All fields and methods may be used concurrently.
type Metrics struct {
	Executors atomic.Int64 // open websockets
	Harnesses atomic.Int64
	Streams   atomic.Int64 // routes of streams
	Waiting   atomic.Int64 // routes that wait for their harness

	Frames    atomic.Uint64 // read from websockets of this server
	Bytes     atomic.Uint64
	HopFrames atomic.Uint64 // sent to and received from other servers through NATS
	HopBytes  atomic.Uint64
	Resets    atomic.Uint64 // sent by the rendezvous itself
	Dropped   atomic.Uint64 // frames that could not be delivered
	Relieved  atomic.Uint64 // streams and websockets that were ended because memory was short

	mu       sync.Mutex
	rejected map[string]uint64 // upgrades by reason: a reject constant of this package or of ticket
}

// Refused counts an upgrade that was refused. The reason is the reason in the header of the
// answer.
func (m *Metrics) Refused(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rejected == nil {
		m.rejected = make(map[string]uint64)
	}
	m.rejected[reason]++
}

// Rejected returns the numbers of refused upgrades by reason. The map belongs to the caller.
func (m *Metrics) Rejected() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.rejected)
}
