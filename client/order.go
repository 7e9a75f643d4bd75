package client

// Bounds of what waits for an earlier event of the same process (client.md
// 2.5).
const (
	maxPending      = 256
	maxPendingBytes = 1 << 20
)

// EventKind tells the events of a process apart.
type EventKind int

// The kinds of event. Output may come before and after Exited; Closed is the
// last event.
const (
	Output EventKind = iota + 1
	Exited
	Closed
)

// Event is something that a process did. Events of one process are numbered
// from 1 without gaps.
type Event struct {
	Kind EventKind
	Seq  uint64
	// Of Output: one of the protocol's streams, and what was read from it.
	Stream string
	Data   []byte
	// Of Exited: 128+n after signal n; and whether a sandbox may have been the
	// reason.
	ExitCode      int
	SandboxDenied bool
}

// order puts the events of one process in the order of their numbers.
type order struct {
	last    uint64 // the number of the event that next returned last
	pending map[uint64]Event
	bytes   int // of the pending ones
}

// add takes an event in, unless it is known already. It fails when too many events
// wait for an earlier one.
func (o *order) add(e Event) error {
	if _, known := o.pending[e.Seq]; known || e.Seq <= o.last {
		return nil
	}
	if e.Seq != o.last+1 && (len(o.pending) >= maxPending || o.bytes+len(e.Data) > maxPendingBytes) {
		return protocolErrorf("event %d of the process has come, event %d has not, and %d wait", e.Seq, o.last+1, len(o.pending)+1)
	}
	if o.pending == nil {
		o.pending = map[uint64]Event{}
	}
	o.pending[e.Seq] = e
	o.bytes += len(e.Data)
	return nil
}

// next returns the event whose turn it is, if it has come.
func (o *order) next() (Event, bool) {
	e, ok := o.pending[o.last+1]
	if ok {
		delete(o.pending, e.Seq)
		o.bytes -= len(e.Data)
		o.last++
	}
	return e, ok
}
