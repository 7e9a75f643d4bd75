package conns

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// enter lets a new connection enter. If it has entered, a goroutine calls Leave
// once the connection is closed, as that of a server does; closed is closed
// afterwards.
func enter(l *Lobby, done <-chan struct{}) (conn net.Conn, closed <-chan struct{}, ok bool) {
	conn, other := net.Pipe()
	gone := make(chan struct{})
	if !l.Enter(conn, done) {
		return nil, nil, false
	}
	go func() {
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1))
		other.Close()
		l.Leave(conn)
	}()
	return conn, gone, true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestTurn: a newcomer takes the seat of the oldest connection as soon as the
// turn of that connection is over, and no sooner.
func TestTurn(t *testing.T) {
	t.Parallel()
	for _, turn := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLobby(3, turn)
			begin := time.Now()
			var gone []<-chan struct{}
			come := func() {
				_, closed, ok := enter(l, nil)
				rig.Is(t, ok, true, "let in")
				gone = append(gone, closed)
			}
			for range 3 {
				come()
				time.Sleep(turn / 10)
			}
			for i := range 3 {
				come()
				synctest.Wait()
				rig.Is(t, time.Since(begin), turn+time.Duration(i)*turn/10, "newcomer %d was let in after", i)
				for j := range gone {
					rig.Is(t, isClosed(gone[j]), j <= i, "connection %d is closed with newcomer %d", j, i)
				}
			}
			l.Close()
			synctest.Wait()
			rig.Is(t, l.Len()+len(l.places)+l.waiting.Len(), 0, "seats that are taken in the end")
			_, _, ok := enter(l, nil)
			rig.Is(t, ok, false, "let in after Close")
		})
	}
}

// TestAttended: a connection that is attended to keeps its seat, and a newcomer
// waits.
func TestAttended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLobby(2, time.Second)
		first, firstGone, _ := enter(l, nil)
		_, secondGone, _ := enter(l, nil)
		l.Attend(first)
		time.Sleep(time.Hour)
		third, _, ok := enter(l, nil)
		synctest.Wait() // the second frees its seat before secondGone is closed
		rig.Is(t, fmt.Sprint(ok, isClosed(firstGone), isClosed(secondGone)), "true false true", "let in, first closed, second closed")
		l.Attend(third)
		// All are attended to: the next one waits until one leaves, or done is
		// closed.
		done := make(chan struct{})
		entered := make(chan bool)
		var fourth net.Conn
		go func() {
			var ok bool
			fourth, _, ok = enter(l, done)
			entered <- ok
		}()
		time.Sleep(time.Hour)
		select {
		case <-entered:
			t.Fatal("let in without a seat")
		default:
		}
		first.Close() // and leaves
		rig.Is(t, <-entered, true, "let in when there was a seat")
		l.Attend(fourth)
		go func() {
			_, _, ok := enter(l, done)
			entered <- ok
		}()
		close(done)
		rig.Is(t, <-entered, false, "let in at the end")
		// Close does not close connections that are attended to.
		l.Close()
		synctest.Wait()
		rig.Is(t, l.Len(), 2, "seats are taken")
		third.Close()
		fourth.Close()
		synctest.Wait()
		rig.Is(t, l.Len(), 0, "seats are taken in the end")
	})
}
