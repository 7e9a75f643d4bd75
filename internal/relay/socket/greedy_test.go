package socket

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// A peer that sends little else than headers and control frames loses its socket;
// one with as many messages does not.
func TestNoise(t *testing.T) {
	t.Parallel()
	fragment := func(payload string) []byte { return appendFrame(nil, 0x00, []byte(payload), true) }
	tests := []struct {
		name  string
		begin []byte
		piece []byte
		ends  bool
	}{
		{"pings", nil, appendFrame(nil, pingFrame, nil, true), true},
		{"long pings", nil, appendFrame(nil, pingFrame, make([]byte, 125), true), true},
		{"pongs", nil, appendFrame(nil, pongFrame, nil, true), true},
		{"small fragments", appendFrame(nil, 0x02, []byte("x"), true), fragment("x"), true},
		{"empty fragments", appendFrame(nil, 0x02, nil, true), fragment(""), true},
		{"empty fragments of a text", appendFrame(nil, 0x01, nil, true), fragment(""), true},
		{"small messages", nil, appendFrame(nil, binaryFrame, []byte("x"), true), false},
		{"empty messages", nil, appendFrame(nil, binaryFrame, nil, true), false},
		{"small texts", nil, appendFrame(nil, 0x81, []byte("x"), true), false},
		{"large messages in fragments", nil, append(appendFrame(nil, 0x02, make([]byte, 60_000), true), appendFrame(nil, 0x80, make([]byte, 60_000), true)...), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, s := rawTCP(t, Config{})
			ended := drainAll(s)
			go io.Copy(io.Discard, p.In) // pongs
			_, err := p.Write(tt.begin)
			// Four times what is allowed, whether that takes one second or ten.
			for sent := 0; err == nil && sent < 4*maxNoise; sent += len(tt.piece) * 100 {
				_, err = p.Write(bytes.Repeat(tt.piece, 100))
			}
			if !tt.ends {
				rig.Must(t, err)
				p.Close()
				rig.Is(t, <-ended, io.EOF, "its end")
				return
			}
			select {
			case err := <-ended:
				rig.Is(t, err, errNoise, "it ended by")
			case <-time.After(time.Minute):
				t.Error("it goes on")
			}
		})
	}
}

// Bytes that are no message are forgotten after a while, so that an idle socket
// lives.
func TestNoiseForgotten(t *testing.T) {
	t.Parallel()
	p, s := rawTCP(t, Config{})
	for range 10 {
		s.wire.since = time.Now().Add(-2 * noiseWindow)
		p.Write(bytes.Repeat(appendFrame(nil, pongFrame, nil, true), maxNoise/6-1000))
		p.send(t, binaryFrame, "message")
		m := rig.Value(s.Read())
		m.Release()
	}
}

// Messages above 1 KiB take turns. Smaller ones do not wait for them, and one that
// is stuck ends its socket. Each keeps its place until its socket's next Read or end.
func TestLarge(t *testing.T) {
	t.Parallel()
	large := make(chan struct{}, 1)
	stuck, first := rawTCP(t, Config{Large: large})
	next, second := rawTCP(t, Config{Large: large})
	read := func(s *Socket) <-chan int {
		length := make(chan int, 1)
		go func() {
			m, err := s.Read()
			if err != nil {
				length <- -1
				return
			}
			length <- len(m.Bytes)
			m.Release()
		}()
		return length
	}
	waits := func(length <-chan int) {
		t.Helper()
		select {
		case n := <-length:
			t.Errorf("another large message of %d bytes did not wait", n)
		case <-time.After(50 * time.Millisecond):
		}
	}
	stuck.send(t, 0x02, strings.Repeat("x", 5000)) // more is to come
	begun := read(first)
	for len(large) == 0 {
		time.Sleep(time.Millisecond)
	}
	next.send(t, binaryFrame, "small")
	rig.Is(t, <-read(second), 5, "bytes of a small message")
	next.send(t, binaryFrame, strings.Repeat("x", 5000))
	waiting := read(second)
	waits(waiting)
	stuck.send(t, 0x80, "x")
	rig.Is(t, <-begun, 5001, "bytes of the first message")
	waits(waiting) // the first one may still be in use
	small := read(first)
	rig.Is(t, <-waiting, 5000, "bytes of the second message")
	stuck.send(t, binaryFrame, "small")
	rig.Is(t, <-small, 5, "bytes of a small message")
	// A socket that ends gives its place back, and one that waits for a place can
	// be ended.
	next.send(t, binaryFrame, "small")
	<-read(second)
	stuck.send(t, 0x02, strings.Repeat("x", 5000))
	begun = read(first)
	for len(large) == 0 {
		time.Sleep(time.Millisecond)
	}
	next.send(t, binaryFrame, strings.Repeat("x", 5000))
	waiting = read(second)
	rig.Must(t, first.ws.SetReadDeadline(time.Now())) // as after messageTimeout
	rig.Is(t, <-begun, -1, "bytes of a message that never ends")
	rig.Is(t, <-waiting, 5000, "bytes of the next message")
	another, third := rawTCP(t, Config{Large: large})
	another.send(t, binaryFrame, strings.Repeat("x", 5000))
	waiting = read(third)
	waits(waiting)
	second.Close() // which has a place, and is not read
	rig.Is(t, <-waiting, 5000, "bytes of the message after that")
	last, fourth := rawTCP(t, Config{Large: large})
	last.send(t, binaryFrame, strings.Repeat("x", 5000))
	waiting = read(fourth)
	waits(waiting)
	fourth.Close()
	rig.Is(t, <-waiting, -1, "bytes read from a closed socket")
	third.Close()
	rig.Is(t, len(large), 0, "a place is still taken")
}

// The messages that wait in lanes of many sockets are bounded together: beyond the
// bound a lane in which something waits takes no more, and an empty lane only a
// little.
func TestBudget(t *testing.T) {
	t.Parallel()
	all := NewBudget(3<<20, nil)
	mine, other := NewBudget(1<<20, all), NewBudget(10<<20, all)
	var lanes []*Lane
	for range 4 {
		from, _ := pair(t, Config{}, Config{}) // which does not read
		for range 2 {
			l := from.NewLane(10 << 20)
			l.Share(mine)
			lanes = append(lanes, l)
		}
	}
	fill := func(l *Lane) (n int) {
		for ; l.TrySend(sized(60_000)); n++ {
			if n > 1000 {
				t.Fatal("there is no end")
			}
		}
		return n
	}
	for _, l := range lanes {
		fill(l)
	}
	// One message may go beyond the bound.
	used := func(b *Budget, least int64) {
		t.Helper()
		n := b.used.Load()
		rig.Is(t, min(max(n, least), least+70_000), n, "bytes that are used, of a little more than %d", least)
	}
	used(mine, 1<<20)
	rig.Is(t, all.used.Load(), mine.used.Load(), "bytes of all")
	from, to := pair(t, Config{}, Config{})
	l := from.NewLane(10 << 20)
	l.Share(mine)
	// Of an empty lane, what the kernel takes at once does not wait at all.
	for n := 0; l.TrySend(sized(4096)); n++ {
		if n > 10_000 {
			t.Fatal("there is no end")
		}
	}
	rig.Is(t, fill(l), 0, "large messages are taken")
	blocked := make(chan error, 1)
	go func() { blocked <- l.Send(sized(60_000)) }()
	// Another budget with the same parent has room of its own.
	from2, _ := pair(t, Config{}, Config{})
	others := from2.NewLane(10 << 20)
	others.Share(other)
	fill(others)
	used(all, 3<<20)
	l.Close()
	rig.Is(t, <-blocked, errLaneClosed, "the sender that waits")
	// Messages that were read are given back, and those of a socket that has ended.
	drainAll(to)
	rig.Must(t, from.Flush(t.Context()))
	for _, l := range append(lanes, others) {
		l.socket.Close()
	}
	rig.Is(t, fmt.Sprint(mine.used.Load(), all.used.Load()), "0 0", "bytes that are used in the end")
}

// A sender that waits for the budget alone goes on when others have given back what
// they had of it.
func TestBudgetIsFree(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := rawPipe(t, Config{})
		go io.Copy(io.Discard, p.In)
		b := NewBudget(1<<20, nil)
		l := s.NewLane(0)
		l.Share(b)
		b.Take(1 << 20)
		sent := make(chan error, 1)
		go func() { sent <- l.Send(sized(60_000)) }()
		synctest.Wait()
		rig.Is(t, len(sent), 0, "messages that did not wait")
		b.Give(1 << 20)
		rig.Must(t, <-sent)
	})
}

// A message that is being written counts in its budget until the network has taken
// it, or the socket has ended.
func TestBudgetOfWrites(t *testing.T) {
	t.Parallel()
	p, s := rawPipe(t, Config{})
	b := NewBudget(1<<20, nil)
	l := s.NewLane(0)
	l.Share(b)
	written := func() {
		t.Helper()
		for range 2 {
			rig.Is(t, l.TrySend(sized(60_000)), true, "TrySend")
		}
		rig.Must(t, rig.Err(p.In.ReadByte())) // by now the first one is being written
		rig.Is(t, b.Used() >= 120_000, true, "bytes counted of two messages: %v, at least %v", b.Used(), 120_000)
	}
	written()
	go io.Copy(io.Discard, p.In)
	rig.Must(t, s.Flush(t.Context()))
	rig.Is(t, b.Used(), 0, "bytes are counted of what was written")
	p, s = rawPipe(t, Config{})
	l = s.NewLane(0)
	l.Share(b)
	written()
	s.Close()
	rig.Is(t, b.Used(), 0, "bytes are counted of a socket that has ended")
}
