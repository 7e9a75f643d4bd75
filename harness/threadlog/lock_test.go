package threadlog_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/test/rig"
)

// TestTwoOpeners: who comes second is refused, in the same program and in another one, until the
// first has closed the thread.
func TestTwoOpeners(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	refused := func(when, id string) {
		t.Helper()
		for _, store := range []*threadlog.Store{s, openIn(t, dir)} {
			rig.Is(t, rig.Err(store.Open(id)), threadlog.ErrInUse, "%s", when)
		}
		p := start(t, "hold", dir, id)
		p.say(t, "in use")
		rig.Must(t, p.Wait())
	}
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	refused("created", th.ID())
	rig.Must(t, th.Close())
	th = must[*threadlog.Thread](t)(s.Open(th.ID()))
	refused("opened", th.ID())
	note(t, th, "1")
	wantNotes(t, s, th.ID(), "1") // readers need no lock
	fork := must[*threadlog.Thread](t)(s.Fork(th.ID(), threadlog.AllTurns))
	refused("forked", fork.ID())
	rig.Must(t, fork.Close())
	rig.Must(t, s.SetName(th.ID(), "x"))
	rig.Must(t, s.Close())
	s = openIn(t, dir)
	refused("the folder closed", th.ID())
	rig.Must(t, th.Close())

	other := start(t, "hold", dir, th.ID())
	other.say(t, "open")
	refused("open in another program", th.ID())
	rig.Must(t, other.in.Close())
	rig.Must(t, other.Wait())
	rig.Must(t, must[*threadlog.Thread](t)(s.Open(th.ID())).Close())

	killed := start(t, "hold", dir, th.ID())
	killed.say(t, "open")
	rig.Must(t, killed.Process.Kill())
	_ = killed.Wait()
	rig.Must(t, must[*threadlog.Thread](t)(s.Open(th.ID())).Close())
}

// TestManyOpeners: of those who come at once, one at a time has the thread.
func TestManyOpeners(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	id := create(t, s)
	var group sync.WaitGroup
	const each = 10
	for i := range 8 {
		group.Go(func() {
			for n := 0; n < each; {
				th, err := s.Open(id)
				if errors.Is(err, threadlog.ErrInUse) {
					continue
				}
				if err == nil {
					err = errors.Join(th.Append("note", fmt.Sprintf("%d.%d", i, n)), th.Close())
				}
				if err != nil {
					t.Error(err)
					return
				}
				n++
			}
		})
	}
	group.Wait()
	rig.Is(t, len(notes(t, s, id)), 8*each, "notes were written")
}

// TestManyWriters: goroutines that share a thread, with readers beside them.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for n := range 50 {
				rig.Check(t, th.Append("note", fmt.Sprintf("%d.%d", i, n)))
			}
		})
		group.Go(func() {
			for range 5 {
				rig.Check(t, rig.Err(readAll(s, th.ID())))
				fork, err := s.Fork(th.ID(), threadlog.AllTurns)
				if err != nil {
					t.Error(err)
					return
				}
				rig.Check(t, rig.Err(readAll(s, fork.ID())))
				rig.Check(t, fork.Close())
			}
		})
	}
	group.Wait()
	rig.Must(t, th.Close())
	rig.Is(t, len(notes(t, s, th.ID())), 200, "notes were written")
}
