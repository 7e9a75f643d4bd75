package socket

import (
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// An unanswered ping ends the socket after 60 s, and is the only one.
func TestNoPong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := rawPipe(t, Config{})
		start := time.Now()
		reading := drainAll(s)
		rig.Is(t, fmt.Sprint(p.frame()), fmt.Sprint(pingFrame, "", nil), "the first frame")
		rig.Is(t, time.Since(start), 30*time.Second, "it came after")
		_, _, err := p.frame()
		rig.Is(t, err, io.EOF, "after the ping")
		rig.Is(t, time.Since(start), 90*time.Second, "ended after")
		rig.Is(t, <-reading, errNoPong, "Read")
		rig.Is(t, s.Err(), errNoPong, "Err")
		<-s.Done()
	})
}

// A ping every 30 s when each is answered, and none while one is open.
func TestPings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := rawPipe(t, Config{})
		start := time.Now()
		drainAll(s)
		ping := func(want time.Duration) {
			t.Helper()
			rig.Is(t, fmt.Sprint(p.frame()), fmt.Sprint(pingFrame, "", nil), "the next frame")
			rig.Is(t, time.Since(start), want, "it came after")
		}
		ping(30 * time.Second)
		time.Sleep(29 * time.Second)
		p.send(t, pongFrame, "")
		ping(60 * time.Second)
		time.Sleep(59 * time.Second) // the ping that was due at 90 s is left out
		p.send(t, pongFrame, "anything")
		ping(120 * time.Second)
		p.send(t, pongFrame, "")
		ping(150 * time.Second)
	})
}

// Both ends keep each other up, idle or busy, for as long as they like.
func TestHeartbeats(t *testing.T) {
	bubble(t, func(t *testing.T) {
		client, server := pipePair(t, Config{}, Config{})
		drainAll(client)
		drainAll(server)
		time.Sleep(10 * time.Minute)
		lane := server.NewLane(0)
		for range 6000 {
			rig.Must(t, lane.Send(sized(recordSize)))
			time.Sleep(100 * time.Millisecond)
		}
		rig.Check(t, client.Err(), server.Err())
	})
}

// An answer counts even if it lies unread because our own reader is held up.
func TestHeldReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := rawPipe(t, Config{})
		go func() {
			if first, _, err := p.frame(); first == pingFrame && err == nil {
				_, _ = p.Write(appendFrame(nil, pongFrame, nil, true))
			}
			_, _ = io.Copy(io.Discard, p.In)
		}()
		time.Sleep(100 * time.Second)
		rig.Must(t, s.Err())
		reading := drainAll(s)
		synctest.Wait()
		rig.Is(t, s.beat.asked.IsZero(), true, "the pong was seen")
		s.Close()
		<-reading
	})
}

// A peer that takes nothing ends the socket after 60 s.
func TestStuckWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, s := rawPipe(t, Config{})
		start := time.Now()
		reading := drainAll(s)
		waiting := make(chan error, 1)
		other := s.NewLane(1)
		go func() {
			synctest.Wait()
			other.TrySend(message("waits"))
			waiting <- other.Send(message("blocks"))
		}()
		rig.Is(t, s.NewLane(0).Send(sized(100)), os.ErrDeadlineExceeded, "Send")
		rig.Is(t, time.Since(start), 60*time.Second, "it ended after")
		rig.Is(t, <-waiting, os.ErrDeadlineExceeded, "a sender that waited")
		rig.Is(t, <-reading, os.ErrDeadlineExceeded, "Read")
	})
}

// Pings of the peer are answered, and a peer that sends many and reads nothing
// makes nothing pile up.
func TestAnswersPings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := rawPipe(t, Config{})
		drainAll(s)
		p.send(t, pingFrame, "one")
		rig.Is(t, fmt.Sprint(p.frame()), fmt.Sprint(pongFrame, "one", nil), "the answer to the first ping")
		for range 1000 {
			p.send(t, pingFrame, "flood")
		}
		p.send(t, pingFrame, "last")
		var got []string
		for len(got) == 0 || got[len(got)-1] != "last" {
			first, payload, err := p.frame()
			rig.Must(t, err)
			rig.Is(t, first, pongFrame, "the first byte of an answer")
			got = append(got, payload)
		}
		rig.Is(t, len(got) <= 3, true, "pongs that waited: %v, at most %v", len(got), 3)
	})
}
