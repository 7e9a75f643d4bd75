package relay

// fifo is a queue that frees its memory when it has run empty, except for a few
// items. The zero value is empty.
type fifo[T any] struct {
	items []T // those before head are zero
	head  int
}

// smallFifo is how many items an empty queue keeps room for.
const smallFifo = 8

func (q *fifo[T]) len() int { return len(q.items) - q.head }

// at returns the item with index i; the first item has index 0. The pointer is
// valid until the next push.
func (q *fifo[T]) at(i int) *T { return &q.items[q.head+i] }

func (q *fifo[T]) push(item T) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

// pop removes the first item; there must be one.
func (q *fifo[T]) pop() T {
	var zero T
	item := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > smallFifo {
			q.items = nil
		}
	}
	return item
}
