// Package queue holds items that arrived for a consumer until the consumer takes them, within
// bounds.
package queue

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/execagent/execagent/internal/buffer"
)

// Bounds of a queue, in bytes of data and in items (client.md 3.1). The reader of the connection
// waits while a queue is full.
const (
	maxQueued = 1 << 20
	maxItems  = 256
)

// Queue holds items until its consumer takes them. Both the consumer and a full queue's producer
// wait on a channel, changed, which is closed at every change. The zero value is ready for use.
type Queue[T any] struct {
	mu      sync.Mutex
	items   []queued[T]
	head    int // index of the first item
	bytes   int
	drop    func(T) bool  // set by Discard; nil drops nothing
	err     error         // the error that follows the items
	changed chan struct{} // closed at the next change; nil while nobody waits
}

type queued[T any] struct {
	item  T
	bytes int
}

// wakeLocked wakes all goroutines that wait for a change.
func (q *Queue[T]) wakeLocked() {
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// changeLocked returns a channel that is closed at the next change.
func (q *Queue[T]) changeLocked() <-chan struct{} {
	if q.changed == nil {
		q.changed = make(chan struct{})
	}
	return q.changed
}

// Put appends an item that has this many bytes of data. It waits while the queue is full. It
// returns false if ctx ended before there was room; the item is not in the queue then. If the queue
// has failed, or drops the item, Put returns true at once.
func (q *Queue[T]) Put(ctx context.Context, item T, bytes int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && (q.drop == nil || !q.drop(item)) && q.fullLocked(bytes, 1) {
		if !q.waitLocked(ctx) {
			return false
		}
	}
	q.pushLocked(item, bytes)
	return true
}

// Push appends an item without waiting.
func (q *Queue[T]) Push(item T, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pushLocked(item, bytes)
}

func (q *Queue[T]) pushLocked(item T, bytes int) {
	if q.err != nil || q.drop != nil && q.drop(item) {
		return
	}
	q.compactLocked()
	q.items = append(q.items, queued[T]{item, bytes})
	q.bytes += bytes
	q.wakeLocked()
}

// fullLocked reports whether there is no room for an item of this many bytes, in a queue of times
// times the usual size. An empty queue has room for any item.
func (q *Queue[T]) fullLocked(bytes, times int) bool {
	n := len(q.items) - q.head
	return n > 0 && (n >= times*maxItems || q.bytes+bytes > times*maxQueued)
}

// Overfull reports whether the queue holds twice its usual size. Nothing should be pushed to it
// then.
func (q *Queue[T]) Overfull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err == nil && q.fullLocked(0, 2)
}

// WaitForRoom waits until the queue has room again, or has failed. It returns false if ctx ended
// first.
func (q *Queue[T]) WaitForRoom(ctx context.Context) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && q.fullLocked(0, 1) {
		if !q.waitLocked(ctx) {
			return false
		}
	}
	return true
}

// waitLocked waits for a change, without the lock. It returns false if ctx ended first.
func (q *Queue[T]) waitLocked(ctx context.Context) bool {
	change := q.changeLocked()
	q.mu.Unlock()
	defer q.mu.Lock()
	select {
	case <-change:
		return true
	case <-ctx.Done():
		return false
	}
}

// compactLocked moves the items to the front of their array if it is full and more
// than half of it is free again.
func (q *Queue[T]) compactLocked() {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
}

// Take removes the first item, and waits while there is none. After the last item
// it returns the error of Fail.
func (q *Queue[T]) Take(ctx context.Context) (item T, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.head < len(q.items) {
			first := q.items[q.head]
			q.items[q.head] = queued[T]{}
			if q.head++; q.head == len(q.items) {
				q.items, q.head = q.items[:0], 0
			}
			q.bytes -= first.bytes
			q.wakeLocked()
			return first.item, nil
		}
		if q.err != nil {
			return item, q.err
		}
		if !q.waitLocked(ctx) {
			return item, context.Cause(ctx)
		}
	}
}

// Held returns the number of waiting items, and the number of their bytes.
func (q *Queue[T]) Held() (items, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) - q.head, q.bytes
}

// Fail ends the queue. The items in it can still be taken. Only the first call has an effect.
func (q *Queue[T]) Fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
		q.wakeLocked()
	}
}

// Discard drops the items for which drop returns true: those in the queue, and later ones.
func (q *Queue[T]) Discard(drop func(T) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop = drop
	var kept []queued[T]
	q.bytes = 0
	for _, item := range q.items[q.head:] {
		if !drop(item.item) {
			kept = append(kept, item)
			q.bytes += item.bytes
		}
	}
	q.items, q.head = kept, 0
	q.wakeLocked()
}

// Stream is a reader for a queue of bytes.
type Stream struct {
	Queue[[]byte]

	reading sync.Mutex // guards the fields below
	piece   []byte     // the piece that was taken last
	rest    []byte     // the unread part of piece
}

// nextLocked takes the next piece. Nobody has kept the last piece, so its memory is recycled.
func (s *Stream) nextLocked() (err error) {
	Recycle(s.piece)
	s.piece, err = s.Take(context.Background())
	s.rest = s.piece
	return err
}

// Read waits for bytes, and ends with the error of Fail.
func (s *Stream) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.rest) == 0 {
		if err := s.nextLocked(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// WriteTo writes all bytes until the end.
func (s *Stream) WriteTo(w io.Writer) (n int64, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		if len(s.rest) > 0 {
			m, err := w.Write(s.rest)
			s.rest = s.rest[m:]
			n += int64(m)
			if err != nil {
				return n, err
			}
		}
		if err := s.nextLocked(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// smallest is the length of the smallest slice that comes from the pool, in bytes. The pool is not
// worth its cost for smaller slices.
const smallest = 1 << 10

// Keep copies output out of its message. A consumer that knows that nobody has kept the copy
// returns the memory with [Recycle].
func Keep(output []byte) []byte {
	if len(output) < smallest {
		return bytes.Clone(output)
	}
	return append(buffer.Get(len(output)), output...)
}

// Recycle returns the memory of output to the pool.
func Recycle(output []byte) {
	if len(output) >= smallest {
		buffer.Recycle(output)
	}
}
