package procs

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxChunks bounds the chunks kept for one process, as the reference does
	// (rpc.md 4.8).
	maxChunks = 50_000
	// chunkCost is what a chunk costs besides its data, in bytes.
	chunkCost = 64
)

// Chunk is a piece of output. Data does not change as long as it is referenced,
// and must not be changed.
type Chunk struct {
	Seq    uint64
	Stream Stream
	AtMs   int64 // when it was read
	Data   []byte
	// Omitted is how many bytes of the stream were left out before Data.
	Omitted uint64
}

// Snapshot is the result of Read (rpc.md 4.8).
type Snapshot struct {
	Chunks []Chunk
	// NextSeq is the number of the next event. If maxBytes left out chunks, it
	// is the number of the first of them.
	NextSeq  uint64
	Exited   bool
	ExitCode int
	Closed   bool
	Ending
}

// log numbers the events of a process and keeps its newest output.
type log struct {
	retain int64 // bytes of data
	budget *Budget

	mu       sync.Mutex
	last     uint64  // the number of the newest event
	chunks   []Chunk // chunks[head:] are kept
	head     int
	bytes    int64  // of data in chunks
	cost     int64  // of memory in chunks
	lent     uint64 // a reader has chunks up to this number
	exited   bool
	exitCode int
	ending   Ending
	exitAt   time.Time
	closed   bool
	changed  chan struct{} // made by a reader that waits, closed by the next event

	// The mutex of budget guards these.
	among *list.List    // of ownLogs; nil: the log holds no output
	place *list.Element // in among
}

// add keeps ev and returns its number. It is called by one goroutine at a time.
func (l *log) add(ev Event) uint64 {
	l.mu.Lock()
	l.last++
	seq, before := l.last, l.cost
	switch ev.Kind {
	case Output:
		l.chunks = append(l.chunks, Chunk{Seq: seq, Stream: ev.Stream, AtMs: time.Now().UnixMilli(), Data: ev.Data, Omitted: ev.Omitted})
		l.bytes += int64(len(ev.Data))
		l.cost += costOf(ev.Data)
		for l.lenLocked() > 1 && (l.bytes > l.retain || l.lenLocked() > maxChunks) {
			// The sink has returned from the event of this chunk. If no reader
			// has the chunk either, its buffer can be used again.
			if c := l.dropLocked(); c.Seq > l.lent {
				reuse(c.Data)
			}
		}
	case Exited:
		l.exited, l.exitCode, l.ending, l.exitAt = true, ev.ExitCode, ev.Ending, time.Now()
	case Closed:
		l.closed = true
	}
	grown, cost := l.cost-before, l.cost
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	l.mu.Unlock()

	switch {
	case ev.Kind == Output:
		l.budget.charge(l, grown)
	case ev.Kind == Closed && cost > 0:
		l.budget.end(l)
	}
	return seq
}

// hold notes n bytes of memory of a tail ([bound]), which is given back if n is negative. It reports whether
// there is room for them.
func (l *log) hold(n int) bool { return l.budget.hold(l, int64(n)) }

func costOf(data []byte) int64 { return int64(cap(data)) + chunkCost }

// lenLocked returns the number of kept chunks.
func (l *log) lenLocked() int { return len(l.chunks) - l.head }

// dropLocked removes the oldest chunk.
func (l *log) dropLocked() Chunk {
	c := l.chunks[l.head]
	l.chunks[l.head] = Chunk{}
	l.head++
	l.bytes -= int64(len(c.Data))
	l.cost -= costOf(c.Data)
	if l.head*2 >= len(l.chunks) {
		n := copy(l.chunks, l.chunks[l.head:])
		clear(l.chunks[n:])
		l.chunks, l.head = l.chunks[:n], 0
	}
	return c
}

// shed drops the oldest chunks until n bytes of memory are freed. It reports
// how many bytes it freed, and whether nothing is left.
func (l *log) shed(n int64) (freed int64, empty bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.cost
	for l.lenLocked() > 0 && before-l.cost < n {
		l.dropLocked()
	}
	if l.lenLocked() == 0 {
		l.chunks = nil
	}
	return before - l.cost, l.lenLocked() == 0
}

// free drops everything, for good.
func (l *log) free() {
	l.mu.Lock()
	cost := l.cost
	l.chunks, l.head, l.bytes, l.cost = nil, 0, 0, 0
	l.mu.Unlock()
	l.budget.forget(l, cost)
}

// fromLocked returns the index of the first kept chunk that is newer than event
// number after.
func (l *log) fromLocked(after uint64) int {
	i, found := slices.BinarySearchFunc(l.chunks[l.head:], after, func(c Chunk, seq uint64) int {
		return cmp.Compare(c.Seq, seq)
	})
	if found {
		i++
	}
	return l.head + i
}

func (l *log) kept() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

func (l *log) read(after uint64, maxBytes *uint64) Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Snapshot{NextSeq: l.last + 1, Exited: l.exited, ExitCode: l.exitCode, Closed: l.closed, Ending: l.ending}
	chunks := l.chunks[l.fromLocked(after):]
	if len(chunks) == 0 {
		return s
	}
	if maxBytes != nil {
		n, total := 1, uint64(len(chunks[0].Data))
		for n < len(chunks) && total+uint64(len(chunks[n].Data)) <= *maxBytes {
			total += uint64(len(chunks[n].Data))
			n++
		}
		chunks = chunks[:n]
		s.NextSeq = chunks[n-1].Seq + 1
	}
	l.lent = max(l.lent, chunks[len(chunks)-1].Seq)
	s.Chunks = slices.Clone(chunks)
	return s
}

func (l *log) ready(after uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readyLocked(after)
}

// readyLocked reports whether a reader that has seen event number after need not
// wait.
func (l *log) readyLocked(after uint64) bool {
	return l.closed || l.exited && after < l.last || l.fromLocked(after) < len(l.chunks)
}

func (l *log) wait(ctx context.Context, after uint64) error {
	return l.await(ctx, func() bool { return l.readyLocked(after) })
}

// await returns when ready does, or ctx ends. It calls ready with the mutex, after each event.
func (l *log) await(ctx context.Context, ready func() bool) error {
	for {
		l.mu.Lock()
		if ready() {
			l.mu.Unlock()
			return nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *log) state() (exited bool, exitCode int, closed bool, nextSeq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exited, l.exitCode, l.closed, l.last + 1
}
