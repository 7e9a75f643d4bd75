package mcpserver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// restarting is a server over scripted links.
type restarting struct {
	*Server

	mu    sync.Mutex // guards what follows
	links []*scripted
	at    []time.Duration // when each start was made
	tools string          // what the next start answers
	told  []string
}

func newRestarting(t *testing.T, restarts int) *restarting {
	r := &restarting{tools: `{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`}
	begin := time.Now()
	r.Server = startOver(func() link {
		r.mu.Lock()
		defer r.mu.Unlock()
		l := newScripted(map[string]string{"initialize": hello, "tools/list": r.tools})
		r.links = append(r.links, l)
		r.at = append(r.at, time.Since(begin))
		return l
	}, Config{Restarts: restarts, Notify: func(s Status) {
		text := string(s.State)
		if s.Err != nil {
			text += ": " + s.Err.Error()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, text)
	}}, Spec{Name: "x"})
	t.Cleanup(r.Close)
	return r
}

// answer sets what starts from now on tell of their tools.
func (r *restarting) answer(tools string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tools = tools
}

// starts are when the server was started so far, and told what was told of it.
func (r *restarting) starts() (at []time.Duration, told []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at), slices.Clone(r.told)
}

func (r *restarting) wantStarts(t *testing.T, want int) {
	t.Helper()
	at, told := r.starts()
	rig.Is(t, len(at) == want, true, "the starts were at %v, want %d; told: %q", at, want, told)
}

// pass lets time go by, and waits until all that is due has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// die ends the session of the last start.
func (r *restarting) die(n int) {
	synctest.Wait()
	r.mu.Lock()
	last := r.links[len(r.links)-1]
	r.mu.Unlock()
	last.cut(fmt.Errorf("death %d", n))
	synctest.Wait()
}

// TestRestarts: a server that dies after it was ready is started again by itself, later each
// time, so often and no more; one that was ready for long begins anew.
func TestRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, 3)
		for n := range 4 {
			r.die(n)
			s := r.Status()
			rig.Is(t, s.State == Failed && s.Err != nil && r.Tools() == nil, true, "the status is %+v, the tools %+v", s, r.Tools())
			pass(maxPause)
		}
		pass(24 * time.Hour)
		want := []string{
			"starting", "ready", "failed: death 0", "starting", "ready", "failed: death 1",
			"starting", "ready", "failed: death 2", "starting", "ready", "failed: death 3",
		}
		at, told := r.starts()
		rig.Same(t, "told", want, told)
		after := []time.Duration{0, time.Second, maxPause + 2*time.Second, 2*maxPause + 4*time.Second}
		rig.Same(t, "starts", after, at)

		// Somebody asks: all is as it was at the beginning, and again after a long time.
		rig.Is(t, r.Restart(), true, "a server that has failed is started")
		rig.Is(t, r.Restart(), false, "it is started once more")
		rig.Check(t, r.Wait(t.Context()))
		rig.Is(t, len(r.Tools()), 1, "tools")
		rig.Is(t, r.Restart(), false, "a server that is ready is started")
		for n := range 6 {
			if n == 3 {
				pass(steady)
			}
			r.die(n)
			pass(maxPause)
		}
		rig.Is(t, r.Status().State, Ready, "the status")
		r.die(6)
		pass(24 * time.Hour)
		r.wantStarts(t, 4+1+6)
	})
}

// TestRestartsStarting: a server that was never ready is not started again by itself; one that
// was, and then cannot be started, is, so often and no more.
func TestRestartsStarting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, 3)
		synctest.Wait()
		r.answer("5")
		r.die(0)
		pass(24 * time.Hour)
		r.wantStarts(t, 1+3)
		rig.Is(t, r.Restart(), true, "a server that has failed is started")
		pass(24 * time.Hour)
		r.wantStarts(t, 1+3+1)
		rig.Is(t, r.Wait(t.Context()) != nil, true, "the server fails, and is %+v", r.Status())
	})
}

// TestNoRestarts: nothing is started by itself where nobody has said so.
func TestNoRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, 0)
		r.die(0)
		pass(24 * time.Hour)
		r.wantStarts(t, 1)
	})
}

// TestRestartSooner: who asks while a start is about to come by itself gets one, and not two; so
// does who asks just then.
func TestRestartSooner(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, firstPause} {
		synctest.Test(t, func(t *testing.T) {
			r := newRestarting(t, 1)
			r.die(0)
			time.Sleep(after)
			r.Restart()
			rig.Check(t, r.Wait(t.Context()))
			pass(24 * time.Hour)
			r.wantStarts(t, 2)
			rig.Is(t, r.Status().State, Ready, "the status")
		})
	}
}

// TestCloseFailed: a server that has failed, waits for its next start or was just asked for one
// is closed at once, is not started any more, and nobody waits for it.
func TestCloseFailed(t *testing.T) {
	t.Parallel()
	for _, restarts := range []int{0, 1} {
		for _, ask := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRestarting(t, restarts)
				r.die(0)
				if ask {
					r.Restart()
				}
				r.Close()
				rig.Is(t, r.Wait(context.Background()), ErrClosed, "the error")
				at, _ := r.starts()
				rig.Is(t, len(at) <= 2 && (ask || len(at) == 1), true, "the starts were at %v", at)
				rig.Is(t, r.Restart(), false, "a closed server is started")
			})
		}
	}
}
