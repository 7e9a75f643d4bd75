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

// Lobby has seats for connections of strangers. When all are taken, the
// connection that has had its seat the longest is closed for a newcomer, once
// it has had the seat for a turn: so a newcomer never waits for long. The
// methods may be called at once, but for Enter, which only the goroutine that
// accepts may call.
type Lobby struct {
	turn  time.Duration
	seats chan struct{} // holds an element for each connection that has not left

	mu sync.Mutex // protects the fields below
	// waiting is of guest, the oldest first. A connection leaves it when it is
	// closed for a newcomer and when it is attended to.
	waiting list.List
	places  map[net.Conn]*list.Element
	closed  bool
}

type guest struct {
	conn  net.Conn
	since time.Time
}

// New returns a lobby with so many seats. A connection may keep its seat for
// the turn, however many come; with a turn of 0 the oldest goes as soon as
// somebody comes.
func New(seats int, turn time.Duration) *Lobby {
	return &Lobby{turn: turn, seats: make(chan struct{}, seats), places: map[net.Conn]*list.Element{}}
}

// Enter waits for a seat for conn. It returns false when done is closed, which
// has to happen before Close, and when the lobby is closed already. Whatever
// has entered has to leave.
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

// Attend keeps the seat of conn, which no newcomer can have closed from now on:
// it is the server that takes its time now.
func (l *Lobby) Attend(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(conn)
}

// Leave gives up the seat of conn, which has entered.
func (l *Lobby) Leave(conn net.Conn) {
	l.mu.Lock()
	l.forgetLocked(conn)
	l.mu.Unlock()
	<-l.seats
}

// forgetLocked takes conn out of those that a newcomer may have closed.
func (l *Lobby) forgetLocked(conn net.Conn) {
	if place, ok := l.places[conn]; ok {
		l.waiting.Remove(place)
		delete(l.places, conn)
	}
}

// Close closes all connections that nobody attends to, also those that the
// server has accepted and not yet served. The lobby is empty when all have
// left.
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

// closeOldest closes the oldest connection if its turn is over. Else it returns
// a channel that tells when the turn is over. It returns a nil channel when a
// seat is about to be free, or all are attended to: then only a seat can be
// waited for.
//
// It closes the connection before it unlocks, so it never closes one that has
// left.
func (l *Lobby) closeOldest() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.waiting.Front()
	if place == nil {
		return nil // all seats are of connections closed already or attended to
	}
	oldest := place.Value.(guest)
	if left := l.turn - time.Since(oldest.since); left > 0 {
		return time.After(left)
	}
	l.forgetLocked(oldest.conn)
	// Its goroutine meets the error and leaves.
	_ = oldest.conn.Close()
	return nil
}
