package rpc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// orders are the kinds of request in the scripts of TestSequence.
var orders = map[byte]Order{'x': {}, 's': {Shared: true}, 'u': {Urgent: true}, 'v': {Urgent: true, Shared: true}}

// script drives a sequence by steps such as
//
//	+a x1 > a   request a enters queue 1, exclusive, and starts at once
//	+b s-  >    request b enters no queue and does not start
//	-a > b      a is done, which lets b start
//	a block >   a calls Block; leave likewise
type script struct {
	t       *testing.T
	s       sequence
	tickets map[string]*ticket
}

func (c *script) step(step string) {
	c.t.Helper()
	what, want, ok := strings.Cut(step, ">")
	words := strings.Fields(what)
	if !ok || len(words) == 0 {
		c.t.Fatalf("bad step %q", step)
	}
	name := words[0][1:]
	switch {
	case words[0][0] == '+':
		t := &ticket{order: orders[words[1][0]], queue: strings.Trim(words[1][1:], "-"), size: 10}
		c.tickets[name] = t
		if err := c.s.enter(t); err != nil {
			c.t.Fatalf("%s: %v", step, err)
		}
	case words[0][0] == '-':
		c.s.finish(c.tickets[name])
	case words[1] == "block" || words[1] == "leave":
		to := blocked
		if words[1] == "leave" {
			to = left
		}
		if err := c.s.suspend(c.tickets[words[0]], to); err != nil {
			c.t.Fatalf("%s: %v", step, err)
		}
	default:
		c.t.Fatalf("bad step %q", step)
	}
	var started []string
	for t := c.s.next(); t != nil; t = c.s.next() {
		for name, u := range c.tickets {
			if u == t {
				started = append(started, name)
			}
		}
	}
	if got, want := strings.Join(started, " "), strings.TrimSpace(want); got != want {
		c.t.Fatalf("%s: started %q, want %q", step, got, want)
	}
}

func TestSequence(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/sequence.txt", "sequence", 3) {
		slots := rig.Value(strconv.Atoi(row[1]))
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			c := &script{t: t, s: sequence{slots: slots, queues: map[string]*queue{}}, tickets: map[string]*ticket{}}
			for step := range strings.SplitSeq(row[2], ";") {
				c.step(step)
			}
			atRest(t, &c.s, slots)
		})
	}
}

// atRest checks that a sequence without requests has forgotten all of them.
func atRest(t interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}, s *sequence, slots int) {
	t.Helper()
	if s.slots != slots || len(s.queues) != 0 || len(s.ready) != 0 || s.full() {
		t.Errorf("at rest: %d of %d slots, %d queues, %d ready, full %v", s.slots, slots, len(s.queues), len(s.ready), s.full())
	}
	for p := range places {
		rig.Is(t, s.at[p], tally{}, "at rest, place %d", p)
	}
}

func enterAll(t *testing.T, s *sequence, n int, order Order, queue string, size int) []*ticket {
	t.Helper()
	var out []*ticket
	for range n {
		k := &ticket{order: order, queue: queue, size: size}
		rig.Must(t, s.enter(k))
		for s.next() != nil {
		}
		out = append(out, k)
	}
	return out
}

func TestSequenceFull(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		order  Order
		queue  string
		size   int
		slots  int
		before int // requests that do not fill it
	}{
		{"without slots", Order{}, "", 1, 5, 5 + maxParked - 1},
		{"behind one that runs", Order{}, "q", 1, 5, 1 + maxParked - 1},
		{"urgent ones that run", Order{Urgent: true}, "", 1, 5, maxParked - 1},
		{"large ones that run", Order{}, "", maxHeldBytes / 4, 64, 3},
		{"large urgent ones", Order{Urgent: true}, "", maxHeldBytes / 4, 64, 3},
		{"large ones that are parked", Order{}, "q", maxParkedBytes / 4, 64, 1 + 3},
	}
	for _, tt := range tests {
		s := &sequence{slots: tt.slots, queues: map[string]*queue{}}
		all := enterAll(t, s, tt.before, tt.order, tt.queue, tt.size)
		rig.Is(t, s.full(), false, "%s: full with %d requests", tt.name, tt.before)
		all = append(all, enterAll(t, s, 1, tt.order, tt.queue, tt.size)...)
		rig.Is(t, s.full(), true, "%s: full with %d requests", tt.name, tt.before+1)
		for _, k := range all {
			s.finish(k)
			for s.next() != nil {
			}
		}
		atRest(t, s, tt.slots)
	}
}

func TestSequenceWaitingLimits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		size int
		n    int // requests that may wait
	}{
		{"number", 1, maxWaiting},
		{"bytes", maxWaitingBytes / 8, 8},
	}
	for _, tt := range tests {
		for _, to := range []state{blocked, left} {
			t.Run(fmt.Sprintf("%s, suspended %d", tt.name, to), func(t *testing.T) {
				t.Parallel()
				s := &sequence{slots: 1, queues: map[string]*queue{}}
				var all []*ticket
				for i := range tt.n {
					k := enterAll(t, s, 1, Order{}, fmt.Sprint(i), tt.size)[0]
					rig.Must(t, s.suspend(k, to))
					all = append(all, k)
				}
				last := enterAll(t, s, 1, Order{}, "last", tt.size)[0]
				err := s.suspend(last, to)
				if e, ok := err.(*protocol.Error); !ok || e.Code != protocol.CodeInvalidRequest {
					t.Errorf("one more: %v, want code %d", err, protocol.CodeInvalidRequest)
				}
				rig.Is(t, s.full(), false, "waiting requests stop the reading")
				for _, k := range append(all, last) {
					s.finish(k)
				}
				atRest(t, s, 1)
			})
		}
		t.Run(tt.name+", behind a blocked one", func(t *testing.T) {
			t.Parallel()
			s := &sequence{slots: 1, queues: map[string]*queue{}}
			all := enterAll(t, s, 1, Order{}, "q", tt.size)
			rig.Must(t, s.suspend(all[0], blocked))
			all = append(all, enterAll(t, s, tt.n-1, Order{}, "q", tt.size)...)
			rig.Is(t, s.enter(&ticket{queue: "q", size: tt.size}) == nil, false, "one more was let in")
			all = slices.Insert(all, 1, enterAll(t, s, 1, Order{Urgent: true}, "q", 1)...)
			for _, k := range all {
				s.finish(k)
				for s.next() != nil {
				}
			}
			atRest(t, s, 1)
		})
	}
}
