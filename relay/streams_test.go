package relay

import (
	"fmt"
	"os"
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
func table() *streams {
	s := newStreams()
	s.leg, s.up = &leg{}, true
	return s
}

// begin admits a handshake; its cancel sets the flag that is returned.
func begin(t *testing.T, s *streams, id string) (h *attempt, cancelled *bool) {
	t.Helper()
	cancelled = new(bool)
	return rig.Value(s.admit([]byte(id), anyInitiation, func() { *cancelled = true })), cancelled
}

func activate(t *testing.T, s *streams, id string) *member {
	t.Helper()
	return rig.Value(activateFor(t, s, id, id))
}

// activateFor makes a stream of an owner, whose key has another handshake.
func activateFor(t *testing.T, s *streams, id, owner string) (*member, error) {
	t.Helper()
	h, _ := begin(t, s, id)
	rig.Must(t, s.validate(h, owner))
	m := &member{id: id, owner: owner, stream: &stream{}}
	err := s.activate(h, m)
	s.released()
	return m, err
}

func TestStreamsLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, s *streams){
		"pending": func(t *testing.T, s *streams) {
			for i := range maxPending {
				h, _ := begin(t, s, fmt.Sprint(i))
				rig.Must(t, s.validate(h, fmt.Sprint("key of ", i)))
			}
			h, _ := begin(t, s, "one more")
			rig.Is(t, s.validate(h, "key"), errBusy, "33rd")
			// The place of a dropped handshake can be used at once, though the
			// goroutine of that handshake may not have ended yet. But the number of
			// such goroutines has a bound of its own.
			rig.Is(t, s.disturb([]byte("0")), true, "handshake 0 is there")
			rig.Check(t, s.validate(h, "key"))
			for i := range maxHandshakes - maxPending - 1 {
				begin(t, s, fmt.Sprint("again", i))
			}
			s.disturb([]byte("again0"))
			rig.Is(t, rig.Err(s.admit([]byte("65th"), anyInitiation, nil)), errBusy, "65th goroutine")
			s.released()
			begin(t, s, "65th")
			s.detach()
			rig.Is(t, s.validations.Used(), 0, "validations that are counted after all were dropped")
		},
		"shares": func(t *testing.T, s *streams) {
			for i := range maxPending / 2 {
				h, _ := begin(t, s, fmt.Sprint("h", i))
				rig.Must(t, s.validate(h, "a"))
			}
			h, _ := begin(t, s, "17th")
			rig.Is(t, s.validate(h, "a"), errBusy, "17th handshake of one key")
			rig.Check(t, s.validate(h, "b"))
			s.detach()
			s = table()
			for i := range maxActive / 2 {
				rig.Must(t, rig.Err(activateFor(t, s, fmt.Sprint(i), "a")))
			}
			rig.Is(t, rig.Err(activateFor(t, s, "65th", "a")), errFull, "65th stream of one principal")
			rig.Is(t, s.validations.Used(), 0, "validations that are counted after all have ended")
			m := activate(t, s, "b")
			s.endedByPeer([]byte("0"))
			rig.Check(t, rig.Err(activateFor(t, s, "65th", "a")))
			rig.Is(t, s.endedWithLeg(m), true, "the stream of b is there")
			s.clear(nil)
			rig.Is(t, s.places.Used(), 0, "places that are taken after the end")
			// agent.TestShares leaves these rows of the table of pools to this test.
			page := string(rig.Value(os.ReadFile("../docs/limits.md")))
			for _, row := range []string{
				fmt.Sprintf("\n| streams through a registry | %d | half | reset", maxActive),
				fmt.Sprintf("\n| handshakes of such streams that the registry is asked about | %d | half | reset", maxPending),
			} {
				rig.Is(t, strings.Contains(page, row), true, "docs/limits.md has %q", row)
			}
		},
		"active": func(t *testing.T, s *streams) {
			late, _ := begin(t, s, "late")
			for i := range maxActive {
				activate(t, s, fmt.Sprint(i))
			}
			rig.Is(t, rig.Err(s.admit([]byte("129th"), anyInitiation, nil)), errFull, "129th handshake")
			rig.Is(t, s.activate(late, &member{id: "late", owner: "late"}), errFull, "129th stream")
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
		s := table()
		h, cancelled := begin(t, s, "id")
		rig.Is(t, tt.drop(s), tt.want, "%s: drop", tt.name)
		rig.Is(t, *cancelled, true, "%s: the validation is cancelled", tt.name)
		// The answer of the validation is ignored by now.
		rig.Is(t, s.activate(h, &member{id: "id"}), errDropped, "%s: activate", tt.name)
		rig.Is(t, s.fail(h), false, "its failure is reported a second time after %s", tt.name)
		rig.Is(t, fmt.Sprint(s.find([]byte("id"))), "<nil> false", "%s: find", tt.name)
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
