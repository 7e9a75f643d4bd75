package rpc

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// model runs a sequence and keeps its own books, in the plainest way.
type model struct {
	t     *rapid.T
	s     sequence
	slots int
	all   []*ticket // not finished, in order of arrival
	past  map[*ticket]bool
}

// startAll starts what can start, and checks that it may.
func (m *model) startAll() {
	for t := m.s.next(); t != nil; t = m.s.next() {
		rig.Is(m.t, m.past[t], false, "%s started twice", m.label(t))
		m.past[t] = true
		m.mayStart(t)
	}
	m.check()
}

func (m *model) label(t *ticket) string {
	return fmt.Sprintf("request %d of queue %q %+v", slices.Index(m.all, t), t.queue, t.order)
}

// neighbours are the requests of t's queue that have not left it.
func (m *model) neighbours(t *ticket) (before, behind []*ticket) {
	for i, u := range m.all {
		if u == t || t.queue == "" || u.queue != t.queue || u.state == left {
			continue
		}
		if i < slices.Index(m.all, t) {
			before = append(before, u)
		} else {
			behind = append(behind, u)
		}
	}
	return before, behind
}

// mayStart checks the order: what may stand before a request that starts, and
// what may run beside it.
func (m *model) mayStart(t *ticket) {
	before, behind := m.neighbours(t)
	for _, u := range before {
		held := u.state == blocked || u.state == queued
		together := t.order.Shared && u.order.Shared && (m.past[u] || t.order.Urgent && u.state == ready)
		if !together && !(t.order.Urgent && held) {
			m.t.Fatalf("%s started before %s, which is in state %d", m.label(t), m.label(u), u.state)
		}
	}
	for _, u := range append(before, behind...) {
		if u.state == running && !(t.order.Shared && u.order.Shared) {
			m.t.Fatalf("%s started beside %s", m.label(t), m.label(u))
		}
	}
}

// check compares the sequence's books with a fresh count.
func (m *model) check() {
	var want [places]tally
	inSlots := 0
	for _, t := range m.all {
		before, behind := m.neighbours(t)
		place := parked
		switch t.state {
		case running:
			place = active
			if t.order.Urgent {
				place = passing
			} else {
				inSlots++
			}
		case blocked, left:
			place = waiting
		case ready:
			if m.s.slots > 0 || t.order.Urgent {
				m.t.Fatalf("%s does not start beside %d free slots", m.label(t), m.s.slots)
			}
		case queued:
			near := append(before, behind...)
			isBlocked := func(u *ticket) bool { return u.state == blocked }
			if slices.ContainsFunc(near, isBlocked) && !t.order.Urgent {
				place = waiting
			}
			passes := func(u *ticket) bool { return u.order.Urgent && u.state == running }
			if len(before) == 0 && !slices.ContainsFunc(behind, passes) {
				m.t.Fatalf("%s is first and does not start", m.label(t))
			}
		}
		want[place].requests++
		want[place].bytes += t.size
	}
	if inSlots+m.s.slots != m.slots || m.s.slots < 0 {
		m.t.Fatalf("%d requests run, %d of %d slots are free", inSlots, m.s.slots, m.slots)
	}
	for p := outside + 1; p < places; p++ {
		rig.Is(m.t, m.s.at[p], want[p], "place %d", p)
	}
}

func (m *model) in(states ...state) []*ticket {
	var out []*ticket
	for _, t := range m.all {
		if slices.Contains(states, t.state) {
			out = append(out, t)
		}
	}
	return out
}

func (m *model) finish(t *ticket) {
	m.all = slices.DeleteFunc(m.all, func(u *ticket) bool { return u == t })
	m.s.finish(t)
	m.startAll()
}

func TestSequenceProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 4).Draw(t, "slots")
		m := &model{t: t, slots: slots, s: sequence{slots: slots, queues: map[string]*queue{}}, past: map[*ticket]bool{}}
		pick := func(t *rapid.T, states ...state) *ticket {
			if some := m.in(states...); len(some) > 0 {
				return rapid.SampledFrom(some).Draw(t, "request")
			}
			t.Skip("none")
			return nil
		}
		suspend := func(to state) func(*rapid.T) {
			return func(t *rapid.T) {
				rig.Must(t, m.s.suspend(pick(t, running, blocked), to))
				m.startAll()
			}
		}
		enter := func(t *rapid.T) {
			k := &ticket{
				order: Order{Shared: rapid.Bool().Draw(t, "shared"), Urgent: rapid.IntRange(0, 3).Draw(t, "urgent") == 0},
				queue: rapid.SampledFrom([]string{"", "1", "1", "1", "2"}).Draw(t, "queue"),
				size:  rapid.IntRange(1, 9).Draw(t, "size"),
			}
			m.all = append(m.all, k)
			rig.Must(t, m.s.enter(k))
			m.startAll()
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter":  enter,
			"enter2": enter,
			"finish": func(t *rapid.T) { m.finish(pick(t, running, blocked, left)) },
			"block":  suspend(blocked),
			"leave":  suspend(left),
		})
		for len(m.all) > 0 {
			some := m.in(running, blocked, left)
			rig.Is(t, len(some) == 0, false, "%d requests are forgotten", len(m.all))
			m.finish(some[0])
		}
		atRest(t, &m.s, slots)
	})
}

// TestPieceProperties: while large requests have no memory to wait, a stream gets its pieces in
// order and without a hole, in whatever order the refused ones come again.
func TestPieceProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := NewBudget(0)
		s := sequence{slots: 4, queues: map[string]*queue{}, intake: NewIntake(b, 0, nil)}
		strict := rapid.Bool().Draw(t, "strict")
		var sent, applied [2]int // pieces of the two streams
		var refused [2][]int
		var running []*ticket
		end := func(k *ticket, err error) {
			stream, piece := int(k.piece.stream-1), int(k.piece.name)
			if err == nil {
				applied[stream]++
				rig.Is(t, piece, applied[stream], "the next piece of stream %d", stream)
			} else {
				refused[stream] = append(refused[stream], piece)
				slices.Sort(refused[stream])
			}
			s.release(k)
			s.finish(k)
		}
		start := func() {
			for k := s.next(); k != nil; k = s.next() {
				if k.refused != nil {
					end(k, k.refused)
				} else {
					running = append(running, k)
				}
			}
		}
		send := func(stream, number, memory int) {
			k := &ticket{queue: strconv.Itoa(stream), memory: memory, piece: piece{uint64(stream + 1), uint64(number)}}
			if strict {
				k.queue = "all"
			}
			b.takeLocked(s.intake, memory)
			if err := s.enter(k); err != nil {
				end(k, err)
			}
			start()
		}
		again := func(stream, i, memory int) {
			piece := refused[stream][i]
			refused[stream] = slices.Delete(refused[stream], i, i+1)
			send(stream, piece, memory)
		}
		memory := rapid.SampledFrom([]int{1, ownSuspended + 1})
		pick := func(t *rapid.T, n int) int {
			if n == 0 {
				t.Skip("none")
			}
			return rapid.IntRange(0, n-1).Draw(t, "which")
		}
		finish := func(i int) {
			k := running[i]
			running = slices.Delete(running, i, i+1)
			end(k, nil)
			start()
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				stream := rapid.IntRange(0, 1).Draw(t, "stream")
				sent[stream]++
				send(stream, sent[stream], memory.Draw(t, "memory"))
			},
			"send again": func(t *rapid.T) {
				stream := rapid.IntRange(0, 1).Draw(t, "stream")
				again(stream, pick(t, len(refused[stream])), memory.Draw(t, "memory"))
			},
			"finish": func(t *rapid.T) { finish(pick(t, len(running))) },
			"block": func(t *rapid.T) {
				k := running[pick(t, len(running))]
				if err := s.suspend(k, blocked); err != nil {
					running = slices.DeleteFunc(running, func(u *ticket) bool { return u == k })
					end(k, err)
				}
				start()
			},
		})
		for stream := range refused {
			for tries := sent[stream]; len(running) > 0 || len(refused[stream]) > 0; {
				if len(running) > 0 {
					finish(0)
				} else if tries--; tries >= 0 {
					again(stream, 0, 1)
				} else {
					t.Fatalf("stream %d takes nothing: %v are missing", stream, refused[stream])
				}
			}
		}
		rig.Is(t, applied, sent, "pieces that were applied in the end")
		atRest(t, &s, 4)
		rig.Is(t, b.idle() && s.lacks == 0 && len(s.missing) == 0, true, "all is given back, and nothing is missing")
	})
}

// TestRefusedBeginning: a request that begins a stream and fails does not make the stream forget what it
// lacks. Pieces that wait behind the request are refused.
func TestRefusedBeginning(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{true, false} {
		s := sequence{slots: 4, queues: map[string]*queue{}, intake: NewIntake(NewBudget(0), 0, nil)}
		enter := func(name uint64) (*ticket, error) {
			k := &ticket{queue: "1", piece: piece{1, name}}
			return k, s.enter(k)
		}
		s.lack(piece{1, 1}, false)
		beginning := rig.Value(enter(0))
		rig.Is(t, s.next(), beginning, "what runs")
		second, third := rig.Value(enter(2)), rig.Value(enter(3))
		beginning.failed = fails
		s.finish(beginning)
		if !fails {
			rig.Is(t, s.next() == second && second.refused == nil && s.lacks == 0, true, "after the beginning the stream takes its pieces")
			continue
		}
		for s.next() != nil {
		}
		rig.Is(t, second.refused != nil && third.refused != nil, true, "pieces behind what failed are refused")
		for name := range uint64(3) {
			_, err := enter(name + 1)
			rig.Is(t, err, nil, "piece %d, in its turn", name+1)
		}
		rig.Is(t, s.lacks, 0, "missing pieces")
	}
}
