package environment_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/test/rig"
)

// registry says of the executors of a network whether they are the same.
type registry struct {
	mu    sync.Mutex
	same  bool
	err   error
	asked int
}

func (r *registry) answer(context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.same, r.err
}

func (r *registry) says(same bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.same, r.err = same, err
}

func TestRefresh(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n, r := newNetwork(t), &registry{same: true}
		n.same = r.answer
		e := get(t, n.set(one(server)), "a")
		first := connected(t, e)
		refresh := func(want error) {
			t.Helper()
			rig.Is(t, e.Refresh(t.Context()), want, "Refresh")
		}
		now := func() *client.Client {
			t.Helper()
			return connected(t, e)
		}
		// The same executor, or nobody knows: nothing happens.
		refresh(nil)
		unknown := errors.New("the registry is away")
		r.says(false, unknown)
		refresh(unknown)
		rig.Is(t, now(), first, "the client")
		rig.Check(t, first.Err())
		n.dialled(1)

		// Another one.
		r.says(false, nil)
		refresh(nil)
		second := now()
		rig.Is(t, second != first, true, "the client is another one")
		rig.Is(t, first.Err(), client.ErrReplaced, "the first client")
		rig.Is(t, rig.Err(first.Status(t.Context())), client.ErrReplaced, "a call of the old one")
		n.dialled(2)
		state(t, e, environment.Ready, "")

		// One that is not there yet. The next call tries again.
		n.refuse(errRefused)
		rig.Is(t, text(e.Refresh(t.Context())), refused, "Refresh gives")
		rig.Is(t, second.Err(), client.ErrReplaced, "the client was kept")
		n.refuse(nil)
		third := now()

		// A client that has failed is no use, whoever is there. Nobody is asked.
		asked := r.asked
		n.cut()
		<-third.Done()
		synctest.Wait()
		refresh(nil)
		rig.Is(t, r.asked, asked, "times asked")
		rig.Is(t, now() != third, true, "the client is another one")

		// An executor that is not well.
		r.says(true, nil)
		n.mu.Lock()
		n.status = ""
		n.mu.Unlock()
		rig.Is(t, e.Refresh(t.Context()), context.DeadlineExceeded, "an executor that does not answer")
	})
}

// TestRefreshWhileConnecting: the attempt that is under way gives way to another one, also for
// those who wait for it, and its client is never seen.
func TestRefreshWhileConnecting(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		n.same = (&registry{}).answer
		open := n.hold()
		e := get(t, n.set(one(server)), "a")
		for i := range 3 {
			var waiting sync.WaitGroup
			got := make([]*client.Client, 10)
			for i := range got {
				waiting.Go(func() {
					var err error
					got[i], err = e.Client(t.Context())
					rig.Check(t, err)
				})
			}
			synctest.Wait()
			waiting.Go(func() {
				rig.Check(t, e.Refresh(t.Context()))
			})
			synctest.Wait()
			n.aborts(i + 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			rig.Is(t, e.Refresh(ctx), context.DeadlineExceeded, "beside another one, Refresh")
			cancel()
			open()
			waiting.Wait()
			for _, c := range got {
				rig.Is(t, c != got[0] || c.Err() != nil, false, "not all get the same client, %v", c.Err())
			}
			// Next time it is a reconnect.
			n.cut()
			<-got[0].Done()
			synctest.Wait()
			open = n.hold()
		}
		open()
	})
}

// TestRefreshOfOthers: where there is nothing to replace, Refresh connects, or tells why not.
func TestRefreshOfOthers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(program))
		e := get(t, s, "a")
		rig.Check(t, e.Refresh(t.Context()))
		n.dialled(1)
		rig.Check(t, e.Refresh(t.Context()))
		n.dialled(1)
		n.cut()
		synctest.Wait()
		rig.Is(t, e.Refresh(t.Context()) != nil, true, "a program does not run twice")
		n.dialled(1)
		pending := rig.Value(s.Provision("later", environment.Skills{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rig.Is(t, pending.Refresh(ctx), context.DeadlineExceeded, "of one that is being made")
		_ = s.Close()
		rig.Is(t, e.Refresh(t.Context()), environment.ErrClosed, "after Close")
	})
}

// TestProvisionedOffline: the executor of an environment that is being made may take minutes to
// appear at its registry.
func TestProvisionedOffline(t *testing.T) {
	noise := environment.Noise{RegistryURL: "https://registry.example", EnvironmentID: "e", AuthToken: "t"}
	for _, tt := range []struct {
		name   string
		late   time.Duration
		appear bool
	}{{"in time", 4 * time.Minute, true}, {"too late", 6 * time.Minute, false}} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork(t)
				n.noise = true
				s := n.set(one(server))
				e := rig.Value(s.Provision("later", environment.Skills{}))
				n.refuse(errRefused)
				rig.Must(t, e.Ready(noise))
				begun := time.Now()
				time.AfterFunc(tt.late, func() { n.refuse(nil) })
				_, err := e.Client(t.Context())
				if tt.appear != (err == nil) || !tt.appear && time.Since(begun) != 5*time.Minute {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}
