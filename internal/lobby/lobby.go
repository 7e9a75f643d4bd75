// Package lobby bounds how many strangers are connected to a server: peers that
// have yet to show that they may be there.
//
//	l := lobby.New(1024, time.Second)
//	...
//	if !l.Enter(conn, done) { // just accepted
//		conn.Close()
//	}
//	...
//	l.Leave(conn) // it was let in, or has ended
package lobby

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// Lobby holds connections of strangers. A newcomer waits for none of them for
// long: when all seats are taken, the connection that has had its seat the
// longest is closed, once it has had it for a turn. Its methods may be called at
// once, but for Enter, which is for the one goroutine that accepts.
type Lobby struct {
	turn  time.Duration
	seats chan struct{} // holds an element for each connection that has not left

	mu      sync.Mutex // protects the fields below
	waiting list.List  // of guest, the oldest first; without those that were closed for a newcomer, and those that are attended to
	places  map[net.Conn]*list.Element
	closed  bool
}

type guest struct {
	conn  net.Conn
	since time.Time
}

// New returns a lobby for so many connections. Each may keep its seat for the
// turn, however many come: with 0 the oldest goes as soon as somebody comes.
func New(seats int, turn time.Duration) *Lobby {
	return &Lobby{turn: turn, seats: make(chan struct{}, seats), places: map[net.Conn]*list.Element{}}
}

// Enter finds a seat for conn, or reports false once the lobby or done, which is
// closed before it, is closed. Whoever has entered has to leave.
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

// Attend keeps the seat of conn but has it closed for no newcomer any more: it is
// the server that takes its time now.
func (l *Lobby) Attend(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(conn)
}

// Leave gives up the seat of conn, which has entered.
func (l *Lobby) Leave(conn net.Conn) {
	l.mu.Lock()
	l.forget(conn)
	l.mu.Unlock()
	<-l.seats
}

// forget needs the mutex.
func (l *Lobby) forget(conn net.Conn) {
	if place, ok := l.places[conn]; ok {
		l.waiting.Remove(place)
		delete(l.places, conn)
	}
}

// Close closes all connections that nobody attends to, also those that a server
// is yet to hear of. The lobby is empty when all have left.
func (l *Lobby) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.places {
		_ = conn.Close()
	}
}

// Len is how many seats are taken.
func (l *Lobby) Len() int { return len(l.seats) }

// closeOldest closes the oldest connection if its turn is over. The lock is held
// while closing, so a connection that has left is never closed. Else the channel tells when its turn is over. A nil channel never does: a seat is
// about to be free.
func (l *Lobby) closeOldest() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.waiting.Front()
	if place == nil {
		return nil // all are closed already and on their way out, or attended to
	}
	oldest := place.Value.(guest)
	if left := l.turn - time.Since(oldest.since); left > 0 {
		return time.After(left)
	}
	l.forget(oldest.conn)
	// Its goroutine meets the error and leaves.
	_ = oldest.conn.Close()
	return nil
}
