package client

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	"github.com/execagent/execagent/protocol"
)

// Bounds of what waits for an earlier event of the same process (client.md
// 2.5).
const (
	maxPending      = 256
	maxPendingBytes = 1 << 20
)

// EventKind is the kind of an event of a process.
type EventKind int

// The kinds of event. Output may come before and after Exited; Closed is the
// last event.
const (
	Output EventKind = iota + 1
	Exited
	Closed
)

// Event is an event of a process. The events of a process are numbered from 1
// without gaps.
type Event struct {
	Kind EventKind
	Seq  uint64
	// Of Output: one of the protocol's streams, and the data read from it.
	Stream string
	Data   []byte
	// Of Exited: the code, 128+n after signal n, and whether a sandbox may have
	// been the reason.
	ExitCode      int
	SandboxDenied bool
	// Also of Exited, with Config.Refusals: what a sandbox has refused; nil: nothing is known.
	Refusals *protocol.Refusals
	// Also of Exited: whether the time of the process was up, and whether its memory was.
	protocol.Ending
	// Of Output: how many bytes of the stream were left out before Data, by MaxOutput. Data may be empty then.
	Omitted uint64
}

// order puts the events of a process in order. Events come as notifications, mostly
// in order, and in the answers of process/read, in whole ranges.
type order struct {
	last    uint64 // the event that was published last
	exited  bool   // Exited is among the published events
	closed  bool   // so is Closed
	pending map[uint64]Event
	bytes   int    // of the pending ones
	dropped uint64 // the greatest number that did not fit into hold
	// fresh: nothing was published yet, and early events that the server no
	// longer has are skipped.
	fresh   bool
	skipped uint64 // how many events were skipped
}

// hold keeps an event that comes before its turn. If there is no room, it notes
// the number instead, and the event must be read from the server again.
func (o *order) hold(e Event) {
	if _, known := o.pending[e.Seq]; known || e.Seq <= o.last {
		return
	}
	if len(o.pending) >= maxPending || o.bytes+len(e.Data) > maxPendingBytes {
		o.dropped = max(o.dropped, e.Seq)
		return
	}
	if o.pending == nil {
		o.pending = map[uint64]Event{}
	}
	o.pending[e.Seq] = e
	o.bytes += len(e.Data)
}

// publish notes that an event has been published.
func (o *order) publish(e Event) {
	o.last, o.fresh = e.Seq, false
	switch e.Kind {
	case Exited:
		o.exited = true
	case Closed:
		o.closed = true
	}
}

// next removes and returns the next event, if it is pending.
func (o *order) next() (Event, bool) {
	e, ok := o.pending[o.last+1]
	if ok {
		o.drop(e)
	}
	return e, ok
}

func (o *order) drop(e Event) {
	if e, ok := o.pending[e.Seq]; ok {
		delete(o.pending, e.Seq)
		o.bytes -= len(e.Data)
	}
}

// behind reports whether the server has announced more events than were published.
func (o *order) behind() bool { return o.dropped > o.last || len(o.pending) > 0 }

// merge takes the answer to a process/read after the last event, and returns the
// events to publish now, in order: all up to the number before NextSeq (client.md
// 2.5). A result that contradicts earlier events, or has gaps, is an error and
// changes nothing. If the process has failed, the events are what came before the
// error. The time is proportional to the size of the result.
func (o *order) merge(r *protocol.ReadResult) ([]Event, error) {
	switch {
	case r.Failure != nil:
		return o.beside(r), protocolErrorf("process failed: %.1024s", *r.Failure)
	case r.NextSeq == 0:
		return nil, protocolErrorf("process/read answered with nextSeq 0")
	}
	target := r.NextSeq - 1
	if o.closed || target <= o.last {
		return nil, nil
	}
	known, err := o.known(r, target)
	if err != nil {
		return nil, err
	}
	// The result has no number for Exited. It is the missing number.
	exit := r.Exited && !o.exited && !slices.ContainsFunc(known, func(e Event) bool { return e.Kind == Exited })
	if exit && r.ExitCode == nil {
		return nil, protocolErrorf("process/read answered that the process has exited, without its code")
	}
	gap := &GapError{After: o.last, Through: target}
	events := make([]Event, 0, len(known)+1)
	last, skipped := o.last, uint64(0)
	fill := func(before uint64) bool {
		missing := before - last - 1
		if o.fresh && len(events) == 0 && missing > 0 {
			// The exit may be among the skipped events. It is better reported late
			// than never.
			skipped = missing
			if exit && !holed(known, before, target) {
				skipped--
			}
			missing -= skipped
			last += skipped
		}
		if missing == 1 && exit {
			last++
			events = append(events, Event{Kind: Exited, Seq: last, ExitCode: *r.ExitCode, SandboxDenied: r.SandboxDenied, Refusals: r.Refusals, Ending: r.Ending})
			exit, missing = false, 0
		}
		return missing == 0
	}
	for _, e := range known {
		if !fill(e.Seq) {
			return nil, gap
		}
		if e.Kind == Exited {
			e.SandboxDenied, e.Refusals = e.SandboxDenied || r.SandboxDenied, cmp.Or(e.Refusals, r.Refusals)
		}
		events = append(events, e)
		last = e.Seq
	}
	if !fill(target+1) || exit {
		return nil, gap
	}
	for _, e := range known {
		o.drop(e)
	}
	if skipped > 0 {
		o.last, o.skipped, o.fresh = o.last+skipped, skipped, false
	}
	return events, nil
}

// beside returns the events that a result about a failed process has, and those that were
// pending, as far as they follow the published ones.
func (o *order) beside(r *protocol.ReadResult) []Event {
	if o.closed || r.NextSeq == 0 {
		return nil
	}
	known, err := o.known(r, r.NextSeq-1)
	if err != nil {
		return nil
	}
	n := 0
	for ; n < len(known) && known[n].Kind != Closed && known[n].Seq == o.last+uint64(n)+1; n++ {
		o.drop(known[n])
	}
	return known[:n]
}

// known returns the events up to target that are pending or in r, in order.
func (o *order) known(r *protocol.ReadResult, target uint64) ([]Event, error) {
	pending := slices.Collect(maps.Values(o.pending))
	sort.Slice(pending, func(i, j int) bool { return pending[i].Seq < pending[j].Seq })
	known := make([]Event, 0, len(r.Chunks)+len(pending)+1)
	last := uint64(0)
	for i := range r.Chunks {
		chunk := &r.Chunks[i]
		if chunk.Seq <= last || chunk.Seq > target {
			return nil, protocolErrorf("process/read answered with chunk %d after %d, up to %d", chunk.Seq, last, target)
		}
		if !chunk.Known() {
			return nil, protocolErrorf("process/read answered with output of the stream %.64q", chunk.Stream)
		}
		last = chunk.Seq
		for len(pending) > 0 && pending[0].Seq < chunk.Seq {
			known = append(known, pending[0])
			pending = pending[1:]
		}
		if len(pending) > 0 && pending[0].Seq == chunk.Seq {
			if pending[0].Kind != Output {
				return nil, protocolErrorf("event %d of the process is output, and it is not", chunk.Seq)
			}
			pending = pending[1:]
		}
		if chunk.Seq > o.last {
			known = append(known, Event{Kind: Output, Seq: chunk.Seq, Stream: chunk.Stream, Data: chunk.Chunk, Omitted: chunk.Omitted})
		}
	}
	for _, e := range pending {
		if e.Seq <= target {
			known = append(known, e)
		}
	}
	at := len(known) - 1
	switch ended := at >= 0 && known[at].Kind == Closed; {
	case slices.ContainsFunc(known[:max(at, 0)], func(e Event) bool { return e.Kind == Closed }),
		ended && (!r.Closed || known[at].Seq != target),
		r.Closed && !ended && at >= 0 && known[at].Seq == target:
		return nil, protocolErrorf("the server contradicts itself about the end of the process at %d", target)
	case r.Closed && !ended:
		known = append(known, Event{Kind: Closed, Seq: target})
	}
	return known, nil
}

// holed reports whether a number between from and target is missing among the events.
func holed(events []Event, from, target uint64) bool {
	for _, e := range events {
		if e.Seq != from {
			return true
		}
		from++
	}
	return from <= target
}
