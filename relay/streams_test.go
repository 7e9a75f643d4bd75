package relay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// anyInitiation is of a size that message 1 can have.
var anyInitiation = make([]byte, noise.InitiationSize)

// table returns streams with a websocket on which nothing is ever sent.
func table() *streams { return &streams{leg: &leg{}, up: true} }

// begin admits a handshake; its cancel sets the flag that is returned.
func begin(t *testing.T, s *streams, id string) (h *attempt, cancelled *bool) {
	t.Helper()
	cancelled = new(bool)
	h, err := s.admit([]byte(id), anyInitiation, func() { *cancelled = true })
	if err != nil {
		t.Fatalf("admit %q: %v", id, err)
	}
	return h, cancelled
}

func activate(t *testing.T, s *streams, id string) *member {
	t.Helper()
	h, _ := begin(t, s, id)
	m := &member{id: id, stream: &stream{}}
	if err := s.activate(h, m); err != nil {
		t.Fatalf("activate %q: %v", id, err)
	}
	s.released()
	return m
}

func TestStreamsLimits(t *testing.T) {
	t.Parallel()
	t.Run("pending", func(t *testing.T) {
		t.Parallel()
		s := table()
		for i := range maxPending {
			begin(t, s, fmt.Sprint(i))
		}
		if _, err := s.admit([]byte("one more"), anyInitiation, nil); err != errBusy {
			t.Errorf("33rd: got %v, want %v", err, errBusy)
		}
		// The place of a dropped handshake can be used at once, though the
		// goroutine of that handshake may not have ended yet. But the number of
		// such goroutines has a bound of its own.
		for i := range maxHandshakes - maxPending {
			if !s.disturb(fmt.Append(nil, i)) {
				t.Fatalf("handshake %d is gone", i)
			}
			begin(t, s, fmt.Sprint("again", i))
		}
		s.disturb([]byte("again0"))
		if _, err := s.admit([]byte("one more"), anyInitiation, nil); err != errBusy {
			t.Errorf("65th goroutine: got %v, want %v", err, errBusy)
		}
		s.released()
		begin(t, s, "one more")
	})
	t.Run("active", func(t *testing.T) {
		t.Parallel()
		s := table()
		late, _ := begin(t, s, "late")
		for i := range maxActive {
			activate(t, s, fmt.Sprint(i))
		}
		if _, err := s.admit([]byte("129th"), anyInitiation, nil); err != errFull {
			t.Errorf("129th handshake: got %v, want %v", err, errFull)
		}
		if err := s.activate(late, &member{id: "late"}); err != errFull {
			t.Errorf("129th stream: got %v, want %v", err, errFull)
		}
		if s.endedByPeer([]byte("7")) == nil {
			t.Error("stream 7 is gone")
		}
		activate(t, s, "129th")
	})
	t.Run("message 1", func(t *testing.T) {
		t.Parallel()
		s := table()
		for _, n := range []int{0, noise.InitiationSize - 1, noise.InitiationSize + wire.MaxAuthorization + 1} {
			if _, err := s.admit([]byte("id"), make([]byte, n), nil); err != noise.ErrInitiationSize {
				t.Errorf("%d bytes: got %v, want %v", n, err, noise.ErrInitiationSize)
			}
		}
		rig.Check(t, rig.Err(s.admit([]byte("id"), make([]byte, noise.InitiationSize+wire.MaxAuthorization), nil)))
	})
	t.Run("stream id", func(t *testing.T) {
		t.Parallel()
		s := table()
		begin(t, s, strings.Repeat("x", maxStreamID))
		if _, err := s.admit([]byte(strings.Repeat("x", maxStreamID+1)), anyInitiation, nil); err != errStreamID {
			t.Errorf("got %v, want %v", err, errStreamID)
		}
	})
}

func TestStreamsDrop(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		drop func(s *streams) error
	}{
		{"data or reset", func(s *streams) error { s.disturb([]byte("id")); return nil }},
		{"second handshake", func(s *streams) error {
			if _, err := s.admit([]byte("id"), anyInitiation, nil); err != errSecond {
				return fmt.Errorf("admit: got %v, want %v", err, errSecond)
			}
			return nil
		}},
		{"end of the websocket", func(s *streams) error { s.detach(); return nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := table()
			h, cancelled := begin(t, s, "id")
			rig.Check(t, tt.drop(s))
			if !*cancelled {
				t.Error("the validation goes on")
			}
			// The answer of the validation is ignored by now.
			if err := s.activate(h, &member{id: "id"}); err != errDropped {
				t.Errorf("activate: got %v, want %v", err, errDropped)
			}
			if s.fail(h) {
				t.Error("its failure is reported a second time")
			}
			if active, pending := s.find([]byte("id")); active != nil || pending {
				t.Errorf("find: got %v, %v; want nothing", active, pending)
			}
		})
	}
}

func TestStreamsReuseOfAnID(t *testing.T) {
	t.Parallel()
	s := table()
	first := activate(t, s, "id")
	if _, err := s.admit([]byte("id"), anyInitiation, nil); err != errActive {
		t.Errorf("admit: got %v, want %v", err, errActive)
	}
	if m, g := s.endedHere("id", first.stream); m != first || g != s.leg {
		t.Errorf("remove: got %v on %v", m, g)
	}
	second := activate(t, s, "id")
	if m, _ := s.endedHere("id", first.stream); m != nil {
		t.Error("the end of the first stream has removed the second")
	}
	if s.endedWithLeg(first) {
		t.Error("the first stream was forgotten instead of the second")
	}
	if got, _ := s.find([]byte("id")); got != second.stream {
		t.Errorf("find: got %p, want %p", got, second.stream)
	}
}

func TestStreamsWithoutAWebsocket(t *testing.T) {
	t.Parallel()
	s := table()
	lost := s.leg
	waits, ends := activate(t, s, "waits"), activate(t, s, "ends")
	rig.Is(t, len(s.detach()), 2, "detach: streams")
	if m, g := s.endedHere("ends", ends.stream); m != ends || g != nil {
		t.Errorf("remove: got %v on %v, want it without a websocket", m, g)
	}
	if s.linger(lost, func() {}) {
		t.Error("something lingers on a websocket that is gone")
	}
	if got := s.clear(&leg{}); got != nil {
		t.Errorf("another websocket's grace has ended %d streams", len(got))
	}
	if got := s.clear(lost); len(got) != 1 || got[0] != waits {
		t.Errorf("clear: got %v, want the stream that waits", got)
	}
	rig.Is(t, len(s.active), 0, "streams are left")
}

func TestLabel(t *testing.T) {
	t.Parallel()
	tests := []struct{ id, want string }{
		{"4faa9b06-fef2-463f-8e45-a01233809670", "4faa9b06-fef2-463f-8e45-a01233809670"},
		{"", ""},
		{" x", `" x"`},
		{"a\nlevel=ERROR", `"a\nlevel=ERROR"`},
		{"\x1b[31mé", `"\x1b[31m\u00e9"`},
		{`a"b`, `"a\"b"`},
		{strings.Repeat("y", 64), strings.Repeat("y", 64)},
		{strings.Repeat("y", 5000), strings.Repeat("y", 64) + "..."},
	}
	for _, tt := range tests {
		rig.Is(t, label([]byte(tt.id)), tt.want, "label(%.20q)", tt.id)
	}
}
