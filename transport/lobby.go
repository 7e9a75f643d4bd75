package transport

import (
	"container/list"
	"net"
	"sync"
)

// lobby holds the connections in their HTTP part. Nobody there has shown that
// they may be there, so a newcomer never waits for them: when all seats are
// taken, the connection that has had its seat the longest is closed.
type lobby struct {
	seats chan struct{} // holds an element for each connection that has not left

	mu      sync.Mutex // protects the fields below
	waiting list.List  // of net.Conn, the oldest first; without those that were closed for a newcomer
	places  map[net.Conn]*list.Element
	closed  bool
}

func newLobby(seats int) *lobby {
	return &lobby{seats: make(chan struct{}, seats), places: map[net.Conn]*list.Element{}}
}

// enter finds a seat for conn, or reports false once the lobby or done, which
// is closed before it, is closed.
func (l *lobby) enter(conn net.Conn, done <-chan struct{}) bool {
	select {
	case l.seats <- struct{}{}:
	default:
		l.closeOldest()
		select {
		case l.seats <- struct{}{}:
		case <-done:
			return false
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		<-l.seats
		return false
	}
	l.places[conn] = l.waiting.PushBack(conn)
	return true
}

// leave gives up the seat of conn.
func (l *lobby) leave(conn net.Conn) {
	l.mu.Lock()
	if place, ok := l.places[conn]; ok {
		l.waiting.Remove(place)
		delete(l.places, conn)
	}
	l.mu.Unlock()
	<-l.seats
}

// close closes all connections, also those that the HTTP server is yet to hear
// of. The lobby is empty when they have left.
func (l *lobby) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.places {
		_ = conn.Close()
	}
}

// closeOldest closes with the lock held: a connection that is about to be
// upgraded is either closed before or has left.
func (l *lobby) closeOldest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.waiting.Front()
	if place == nil {
		return // all are closed already and on their way out
	}
	conn := l.waiting.Remove(place).(net.Conn)
	delete(l.places, conn)
	// Its goroutine meets the error and leaves.
	_ = conn.Close()
}
