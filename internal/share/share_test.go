package share

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/test/rig"
)

// TestRule: one owner alone has half, the next one half of the rest, and so on. Large parts are taken
// whole or not at all, and what is given back is there for everybody.
func TestRule(t *testing.T) {
	t.Parallel()
	p := &Pool{What: "places", Max: 16}
	fill := func(owner string, n int64) (held int64) {
		for p.Take(owner, n) == nil {
			held += n
		}
		return held
	}
	var held []int64
	for owner := range 6 {
		held = append(held, fill(fmt.Sprint(owner), 1))
	}
	rig.Same(t, "held", []int64{8, 4, 2, 1, 1, 0}, held)
	rig.Says(t, p.Take("0", 1), "no more places: you have 8, which is your share of the agent's 16", "one more")
	rig.Says(t, p.Take("5", 1), "other clients of the agent have what one may have of its 16: try again later", "who has none")
	p.Give("0", 8)
	rig.Is(t, fill("1", 5), 0, "more for an owner who has four, of eight that are free, in parts of five")
	rig.Is(t, fill("new", 8), 8, "a large part for who has none")
	p.Give("new", 8)
	p.Most = 3
	rig.Is(t, fill("0", 1), 3, "held with a bound for one")
}

// TestWait: an owner waits for itself, in order, and for nobody else.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Pool{Max: 4}
		rig.Must(t, p.Take("a", 2))
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan int, 3)
		for i, n := range []int64{2, 1, 1} {
			go func() {
				if p.Wait(map[bool]context.Context{true: ctx, false: t.Context()}[i == 0], "a", n) == nil {
					got <- i
				}
			}()
			synctest.Wait()
		}
		rig.Must(t, p.Wait(t.Context(), "b", 1))
		p.Give("a", 1)
		synctest.Wait()
		rig.Is(t, len(got), 0, "those who overtake the first one")
		cancel() // then the first one waits no more
		synctest.Wait()
		rig.Is(t, <-got, 1, "the next one has it")
		p.Give("a", 1)
		rig.Is(t, <-got, 2, "and then the last one")
		rig.Is(t, p.Used(), 3, "is held")
	})
}
