package duplex

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// TestServerLies: what a server may not say is an error, and changes nothing.
func TestServerLies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		lie  func(*Stream) error
	}{
		{"a gap", func(s *Stream) error { return s.Accept(6, []byte("x"), nil) }},
		{"a gap of nothing", func(s *Stream) error { return s.Accept(1<<64-1, nil, nil) }},
		{"more than the window", func(s *Stream) error { return s.Accept(5, make([]byte, 1000), nil) }},
		{"confirms what was not written", func(s *Stream) error { return s.Confirm(4, Out{Offset: 0, Bytes: make([]byte, 3)}) }},
		{"takes less than it was given", func(s *Stream) error { return s.Confirm(2, Out{Offset: 0, Bytes: make([]byte, 3)}) }},
		{"resumes beyond", func(s *Stream) error { _, err := s.Resume(4); return err }},
		{"behind the end", func(s *Stream) error {
			rig.Check(t, s.Accept(5, nil, io.EOF))
			return s.Accept(5, []byte("x"), nil)
		}},
	} {
		s := New(1000, 100)
		turn := rig.Value(s.Resume(0))
		rig.Must(t, rig.Err(s.Write([]byte("abc"))))
		rig.Must(t, s.Accept(0, []byte("hello"), nil))
		if o, ok := s.Next(turn, 9); !ok || string(o.Bytes) != "abc" {
			t.Fatalf("%q, %v", o.Bytes, ok)
		}
		s.Sent()
		rig.Is(t, tt.lie(s) != nil, true, "%s is an error", tt.name)
		rig.Is(t, s.Received(), 5, "%s: bytes have come", tt.name)
	}
}

// TestWindowStays: lost connections do not open the window: what nobody has read counts on.
func TestWindowStays(t *testing.T) {
	t.Parallel()
	s := New(1000, 100)
	rig.Must(t, s.Accept(0, make([]byte, 1000), nil))
	for range 3 {
		rig.Must(t, rig.Err(s.Resume(0)))
		rig.Is(t, s.Accept(1000, []byte("x"), nil) != nil, true, "a resume does not open the window")
	}
}

// TestAckAgain: after a lost connection the server hears again what was read, since it may not have
// heard it.
func TestAckAgain(t *testing.T) {
	t.Parallel()
	s := New(1000, 100)
	turn, _ := s.Resume(0)
	rig.Must(t, s.Accept(0, make([]byte, 600), nil))
	rig.Must(t, rig.Err(io.ReadFull(s, make([]byte, 600))))
	for range 3 {
		rig.Is(t, fmt.Sprint(s.AckDue(turn)), "600 true", "due")
		turn, _ = s.Resume(0)
	}
	// A few bytes are acknowledged too, a little later.
	rig.Is(t, fmt.Sprint(s.AckDue(turn)), "600 true", "due")
	rig.Must(t, s.Accept(600, []byte("x"), nil))
	rig.Must(t, rig.Err(s.Read(make([]byte, 1))))
	rig.Is(t, fmt.Sprint(s.AckDue(turn)), "601 true", "due")
	s.Halt(turn)
	rig.Is(t, fmt.Sprint(s.AckDue(turn)), "0 false", "due in a turn that is over")
}

// TestDeadlines: both directions heed theirs, and forget them.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := New(1000, 100)
	past := time.Now().Add(-time.Second)
	rig.Must(t, s.SetDeadline(past))
	rig.Is(t, rig.Err(s.Read(make([]byte, 1))), os.ErrDeadlineExceeded, "Read")
	for {
		if _, err := s.Write(make([]byte, 1<<20)); err != nil {
			rig.Is(t, err, os.ErrDeadlineExceeded, "Write")
			break
		}
	}
	rig.Must(t, errors.Join(s.SetReadDeadline(time.Time{}), s.SetWriteDeadline(time.Now().Add(time.Millisecond))))
	rig.Is(t, rig.Err(s.Write(make([]byte, 2<<20))), os.ErrDeadlineExceeded, "Write that waits")
	rig.Must(t, s.Accept(0, []byte("x"), nil))
	rig.Check(t, rig.Err(s.Read(make([]byte, 1))))
	s.Fail(io.ErrClosedPipe)
	rig.Is(t, rig.Err(s.Read(make([]byte, 1))), io.ErrClosedPipe, "after Fail")
	rig.Is(t, s.SetDeadline(past), io.ErrClosedPipe, "a deadline after Fail")
	rig.Is(t, s.Fail(io.EOF), false, "it fails twice")
}

// TestCarried: what is written arrives, in order and once, whatever the server has received when a
// turn ends.
func TestCarried(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		sent := make([]byte, random.IntN(3<<20))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		s := New(1000, 1+random.IntN(100_000))
		var writing sync.WaitGroup
		writing.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 70_001)
				if _, err := s.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			_ = s.CloseWrite()
		})
		var came []byte // by the server
		choose := rand.New(rand.NewPCG(7, uint64(len(sent))))
		for ended := false; !ended; {
			turn := rig.Value(s.Resume(uint64(len(came))))
			for range 1 + choose.IntN(20) {
				o, ok := s.Next(turn, 1+choose.IntN(100_000))
				if !ok {
					t.Fatal("nothing more comes")
				}
				if o.Offset != uint64(len(came)) {
					t.Fatalf("bytes from %d come after %d", o.Offset, len(came))
				}
				if lost := choose.IntN(5) == 0; lost {
					came = append(came, o.Bytes[:choose.IntN(len(o.Bytes)+1)]...)
					s.Sent()
					break
				}
				came = append(came, o.Bytes...)
				s.Sent()
				if choose.IntN(3) > 0 || o.EOF {
					rig.Must(t, s.Confirm(uint64(len(came)), o))
				}
				if ended = o.EOF; ended {
					break
				}
			}
		}
		writing.Wait()
		if !bytes.Equal(came, sent) {
			t.Fatalf("%d bytes have come of %d, or other ones", len(came), len(sent))
		}
		s.Flush(time.Minute) // returns at once
	})
}
