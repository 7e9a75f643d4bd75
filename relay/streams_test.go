package relay

import (
	"fmt"
	"slices"
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
	rig.Must(t, err)
	return h, cancelled
}

func activate(t *testing.T, s *streams, id string) *member {
	t.Helper()
	h, _ := begin(t, s, id)
	m := &member{id: id, stream: &stream{}}
	rig.Must(t, s.activate(h, m))
	s.released()
	return m
}

func TestStreamsLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, s *streams){
		"pending": func(t *testing.T, s *streams) {
			for i := range maxPending {
				begin(t, s, fmt.Sprint(i))
			}
			rig.Is(t, rig.Err(s.admit([]byte("one more"), anyInitiation, nil)), errBusy, "33rd")
			// The place of a dropped handshake can be used at once, though the
			// goroutine of that handshake may not have ended yet. But the number of
			// such goroutines has a bound of its own.
			for i := range maxHandshakes - maxPending {
				rig.Is(t, s.disturb(fmt.Append(nil, i)), true, "handshake %d is there", i)
				begin(t, s, fmt.Sprint("again", i))
			}
			s.disturb([]byte("again0"))
			rig.Is(t, rig.Err(s.admit([]byte("one more"), anyInitiation, nil)), errBusy, "65th goroutine")
			s.released()
			begin(t, s, "one more")
		},
		"active": func(t *testing.T, s *streams) {
			late, _ := begin(t, s, "late")
			for i := range maxActive {
				activate(t, s, fmt.Sprint(i))
			}
			rig.Is(t, rig.Err(s.admit([]byte("129th"), anyInitiation, nil)), errFull, "129th handshake")
			rig.Is(t, s.activate(late, &member{id: "late"}), errFull, "129th stream")
			rig.Is(t, s.endedByPeer([]byte("7")) == nil, false, "stream 7 is gone")
			activate(t, s, "129th")
		},
		"message 1": func(t *testing.T, s *streams) {
			for _, n := range []int{0, noise.InitiationSize - 1, noise.InitiationSize + wire.MaxAuthorization + 1} {
				rig.Is(t, rig.Err(s.admit([]byte("id"), make([]byte, n), nil)), noise.ErrInitiationSize, "%d bytes", n)
			}
			rig.Check(t, rig.Err(s.admit([]byte("id"), make([]byte, noise.InitiationSize+wire.MaxAuthorization), nil)))
		},
		"stream id": func(t *testing.T, s *streams) {
			begin(t, s, strings.Repeat("x", maxStreamID))
			rig.Is(t, rig.Err(s.admit([]byte(strings.Repeat("x", maxStreamID+1)), anyInitiation, nil)), errStreamID, "a long stream id")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, table())
		})
	}
}

func TestStreamsDrop(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		drop func(s *streams) error
		want error
	}{
		{"data or reset", func(s *streams) error { s.disturb([]byte("id")); return nil }, nil},
		{"second handshake", func(s *streams) error { _, err := s.admit([]byte("id"), anyInitiation, nil); return err }, errSecond},
		{"end of the websocket", func(s *streams) error { s.detach(); return nil }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := table()
			h, cancelled := begin(t, s, "id")
			rig.Is(t, tt.drop(s), tt.want, "drop")
			rig.Is(t, *cancelled, true, "the validation is cancelled")
			// The answer of the validation is ignored by now.
			rig.Is(t, s.activate(h, &member{id: "id"}), errDropped, "activate")
			rig.Is(t, s.fail(h), false, "its failure is reported a second time")
			rig.Is(t, fmt.Sprint(s.find([]byte("id"))), "<nil> false", "find")
		})
	}
}

func TestStreamsReuseOfAnID(t *testing.T) {
	t.Parallel()
	s := table()
	first := activate(t, s, "id")
	rig.Is(t, rig.Err(s.admit([]byte("id"), anyInitiation, nil)), errActive, "admit")
	m, g := s.endedHere("id", first.stream)
	rig.Is(t, m == first && g == s.leg, true, "remove: got %v on %v, the stream on its websocket", m, g)
	second := activate(t, s, "id")
	m, _ = s.endedHere("id", first.stream)
	rig.Is(t, m, nil, "what the end of the first stream removes again")
	rig.Is(t, s.endedWithLeg(first), false, "the first stream was forgotten instead of the second")
	got, _ := s.find([]byte("id"))
	rig.Is(t, got, second.stream, "find")
}

func TestStreamsWithoutAWebsocket(t *testing.T) {
	t.Parallel()
	s := table()
	lost := s.leg
	waits, ends := activate(t, s, "waits"), activate(t, s, "ends")
	rig.Is(t, len(s.detach()), 2, "detach: streams")
	m, g := s.endedHere("ends", ends.stream)
	rig.Is(t, m == ends && g == nil, true, "remove: got %v on %v, the stream without a websocket", m, g)
	rig.Is(t, s.linger(lost, func() {}), false, "something lingers on a websocket that is gone")
	rig.Is(t, len(s.clear(&leg{})), 0, "streams that another websocket's grace has ended")
	rig.Is(t, slices.Equal(s.clear(lost), []*member{waits}), true, "clear gives the stream that waits")
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
