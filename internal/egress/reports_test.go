package egress

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// listener is a client that is told verdicts, while it is there.
type listener struct {
	mu     sync.Mutex
	away   bool
	stuck  chan struct{} // not nil: it does not read until that is closed
	heard  []string
	begins int
}

func (l *listener) tell(d *protocol.PolicyDecision) bool {
	l.mu.Lock()
	l.begins++
	stuck := l.stuck
	l.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		return false
	}
	l.heard = append(l.heard, d.Host+d.Timestamp)
	return true
}

// want fails unless the client has heard exactly that.
func (l *listener) want(t *testing.T, what string, heard ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	rig.Same(t, what+": heard", heard, l.heard)
	l.heard = nil
}

func (l *listener) set(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

func of(host, at string) protocol.PolicyDecision {
	return protocol.PolicyDecision{Host: host, Timestamp: at, Client: "c" + at}
}

// TestReports: a client that is there hears everything in order; one that comes hears what was
// kept, each verdict once, as it was last.
func TestReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := new(listener)
		r := &Reports{Tell: l.tell}
		for _, host := range []string{"a", "a", "b"} {
			r.add(of(host, "1"))
		}
		l.want(t, "attached", "a1", "a1", "b1")

		l.set(true)
		for i, host := range []string{"a", "b", "a", "c", "a"} {
			r.add(of(host, fmt.Sprint(i)))
			synctest.Wait()
		}
		l.want(t, "detached")
		r.Flush() // nobody is there: it does not wait
		l.set(false)
		r.Resume()
		l.want(t, "attached again", "b1", "c3", "a4")
		r.add(of("d", "5"))
		l.want(t, "later", "d5")
		r.Close()
		r.add(of("e", "6"))
		l.want(t, "closed")
	})
}

// TestReportsAreBounded: neither a client that is away nor one that does not read lets more wait
// than may; add never blocks; and what is lost is the oldest.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l := &listener{away: away}
			if !away {
				l.stuck = make(chan struct{})
			}
			r := &Reports{Tell: l.tell}
			var want []string
			r.add(of("first", ""))
			synctest.Wait() // now it is being told, or waits
			for i := range 3 * maxReports {
				host := fmt.Sprint("h", i)
				r.add(of(host, ""))
				want = append(want, host)
			}
			want = want[len(want)-maxReports:]
			if !away {
				want = append([]string{"first"}, want...)
				close(l.stuck)
			} else {
				l.set(false)
				r.Resume()
			}
			r.Flush()
			l.want(t, fmt.Sprint("away ", away), want...)
		})
	}
}

// TestReportsResumedWhileTelling: a client that comes while the loss of the last one shows is told
// what that one has missed.
func TestReportsResumedWhileTelling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listener{stuck: make(chan struct{}), away: true}
		r := &Reports{Tell: l.tell}
		r.add(of("a", "1"))
		synctest.Wait() // in a write to the connection that is lost
		r.Resume()
		stuck := l.stuck
		l.mu.Lock()
		l.stuck = make(chan struct{})
		next := l.stuck
		l.mu.Unlock()
		close(stuck) // that write fails
		synctest.Wait()
		l.set(false)
		close(next)
		l.want(t, "the new client", "a1")
		rig.Is(t, l.begins, 2, "times that it was told")
		r.Close()
	})
}
