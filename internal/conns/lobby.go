// Package conns begins and ends the connections of a server.
//
// A [Lobby] bounds the connections of strangers: peers that have not yet shown that they may
// connect.
//
//	l := NewLobby(1024, time.Second)
//	...
//	if !l.Enter(conn, done) { // just accepted
//		conn.Close()
//		return
//	}
//	...
//	l.Leave(conn) // the peer has shown that it may connect, or conn has ended
//
// [Linger] makes the last bytes arrive at the peer of a connection that is about to be closed.
package conns

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// Lobby has seats for connections of strangers. If a newcomer comes and all
// seats are taken, the connection with the oldest seat is closed, once it has
// had the seat for a turn. So a newcomer waits for little more than a turn.
// Only if the server attends to all connections ([Lobby.Attend]), a newcomer
// waits until one of them leaves.
//
// The methods may be called at once, except Enter, which only the accepting
// goroutine may call.
type Lobby struct {
	turn  time.Duration
	seats chan struct{} // holds an element for each connection that has entered and not left

	mu sync.Mutex // protects the fields below
	// waiting has a guest for each connection that may be closed for a
	// newcomer, the oldest first. A connection is removed when it is closed for
	// a newcomer, when it is attended to, and when it leaves.
	waiting list.List
	places  map[net.Conn]*list.Element // the element of each of them in waiting
	closed  bool
}

// guest is an element of the list waiting.
type guest struct {
	conn  net.Conn
	since time.Time
}

// NewLobby returns a lobby with the given number of seats. A connection keeps its
// seat for a turn, however many newcomers come; with a turn of 0, the oldest
// connection is closed as soon as a newcomer finds no seat.
func NewLobby(seats int, turn time.Duration) *Lobby {
	return &Lobby{turn: turn, seats: make(chan struct{}, seats), places: map[net.Conn]*list.Element{}}
}

// Enter waits for a seat for conn. It returns false when done is closed, or if
// the lobby is already closed. The server closes done before it calls Close,
// because otherwise Enter would continue to wait while all seats are attended
// to. After true the caller must call Leave once, however conn ends.
func (l *Lobby) Enter(conn net.Conn, done <-chan struct{}) bool {
	for {
		select {
		case l.seats <- struct{}{}:
			return l.sit(conn)
		default:
		}
		over := l.closeOldest()
		select {
		case l.seats <- struct{}{}:
			return l.sit(conn)
		case <-over:
		case <-done:
			return false
		}
	}
}

// sit notes that conn has a seat. If the lobby is closed, it frees the seat and
// returns false.
func (l *Lobby) sit(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		<-l.seats
		return false
	}
	l.places[conn] = l.waiting.PushBack(guest{conn, time.Now()})
	return true
}

// Attend makes conn keep its seat: it is not closed for a newcomer any more. The
// server calls Attend when the peer has sent all that the server needs, so that
// from now on the server takes the time, not the peer.
func (l *Lobby) Attend(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(conn)
}

// Leave gives up the seat of conn. It is called exactly once for each connection
// that has entered: one more call would take another connection's seat away, or
// block.
func (l *Lobby) Leave(conn net.Conn) {
	l.mu.Lock()
	l.forgetLocked(conn)
	l.mu.Unlock()
	<-l.seats
}

// forgetLocked removes conn from the connections that may be closed for a newcomer.
func (l *Lobby) forgetLocked(conn net.Conn) {
	if place, ok := l.places[conn]; ok {
		l.waiting.Remove(place)
		delete(l.places, conn)
	}
}

// Close closes all connections that the server does not attend to, including
// accepted ones that are not served yet, and lets no more enter. It does not
// wait: the lobby is empty once all connections have left.
func (l *Lobby) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.places {
		_ = conn.Close()
	}
}

// Len returns how many seats are taken.
func (l *Lobby) Len() int { return len(l.seats) }

// closeOldest closes the oldest connection if its turn is over, so that its
// seat will be free soon. Otherwise it returns a channel that fires when the
// turn is over. The channel is nil if the caller must only wait for a seat: the
// oldest was closed now, or all connections with a seat were closed before or
// are attended to.
//
// The connection is closed before the mutex is unlocked. Leave needs the mutex
// too, so a connection that has left is never closed here.
func (l *Lobby) closeOldest() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.waiting.Front()
	if place == nil {
		return nil
	}
	oldest := place.Value.(guest)
	if left := l.turn - time.Since(oldest.since); left > 0 {
		return time.After(left)
	}
	l.forgetLocked(oldest.conn)
	// The goroutine that serves the connection gets an error from it, and calls
	// Leave.
	_ = oldest.conn.Close()
	return nil
}
