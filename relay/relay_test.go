package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// meeting is a link and a dialer whose connections go through a router.
type meeting struct {
	s *service
	l *Link
	d *Dialer
}

func join(t *testing.T) *meeting {
	t.Helper()
	s := newService(t)
	s.router = newRouter()
	pace := timing{least: time.Millisecond, most: 10 * time.Millisecond}
	j := &meeting{s: s, l: startLink(t, s, pace), d: newDialer(t, s, pace)}
	rig.Until(t, "the link", func() bool { return s.router.peer(true) != nil })
	return j
}

// pair dials and accepts.
func (j *meeting) pair(t *testing.T) (harness, executor rpc.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	harness, err := j.d.Dial(ctx)
	rig.Must(t, err)
	executor, err = j.l.Accept()
	rig.Must(t, err)
	t.Cleanup(func() {
		harness.Close()
		executor.Close()
	})
	return harness, executor
}

func TestRelayConn(t *testing.T) {
	t.Parallel()
	j := join(t)
	rpctest.TestConn(t, func(t *testing.T) (a, b rpc.Conn) {
		a, b = j.pair(t)
		// Until both ends have shown that they acknowledge, one that reads slowly
		// is reset, as the reference does.
		prove(t, j.s.router, a, b)
		return a, b
	})
}

// echo sends messages from a to b, which sends them back, and checks that
// every one comes through once and in order, both ways.
func echo(t *testing.T, a, b rpc.Conn, sizes []int) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Errorf(format, args...)
		go a.Close() // so that the other goroutines do not wait for ever
		go b.Close()
	}
	text := func(i, n int) []byte {
		return fmt.Appendf(nil, `"%d %s"`, i, bytes.Repeat([]byte{byte('a' + i%26)}, n))
	}
	limit := time.AfterFunc(2*patience, func() { fail("the exchange takes too long") })
	defer limit.Stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i, n := range sizes {
			if err := a.Write(text(i, n)); err != nil {
				fail("writing message %d: %v", i, err)
				return
			}
		}
	})
	wg.Go(func() {
		for i := range sizes {
			m, err := b.Read()
			if err == nil {
				err = b.Write(m)
			}
			if err != nil {
				fail("sending back message %d: %v", i, err)
				return
			}
		}
	})
	for i, n := range sizes {
		m, err := a.Read()
		if err != nil {
			fail("reading message %d: %v", i, err)
			break
		}
		if !bytes.Equal(m, text(i, n)) {
			fail("message %d: got %.30q of %d bytes, want %.30q of %d", i, m, len(m), text(i, n), len(text(i, n)))
			break
		}
	}
	wg.Wait()
}

// prove sends messages both ways until both ends have shown that they acknowledge.
func prove(t *testing.T, r *router, a, b rpc.Conn) {
	t.Helper()
	rig.Until(t, "the ends acknowledge", func() bool {
		echo(t, a, b, []int{10})
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.patient(string(a.(*harness).id))
	})
}

// TestRelayCut cuts a websocket after every so many bytes of a run.
func TestRelayCut(t *testing.T) {
	t.Parallel()
	sizes := []int{1, 100, 70_000, 3, 3, 3, 130_000, 61_440, 61_436, 5000, 1}
	ns := []int64{1, 2, 3, 4, 5, 6, 10, 20, 38, 39, 40, 41, 45, 50, 60, 80, 120, 121, 122, 130, 140, 250, 1000, 4096,
		5000, 50_000, 61_500, 61_600, 70_123, 100_001, 131_072, 200_003, 262_144, 300_000, 400_001, 500_000}
	for _, executor := range []bool{true, false} {
		for _, n := range ns {
			t.Run(fmt.Sprintf("executor %v after %d", executor, n), func(t *testing.T) {
				t.Parallel()
				j := join(t)
				a, b := j.pair(t)
				prove(t, j.s.router, a, b)
				j.s.router.peer(executor).cutAfter(n)
				echo(t, a, b, sizes)
				// And once more, with as much on the new websocket.
				j.s.router.peer(executor).cutAfter(n)
				echo(t, a, b, sizes)
			})
		}
	}
}

// TestRelayCutHandshake cuts a websocket in the middle of the handshake or right
// after it: Dial tries again, or the stream goes on, and what is said comes
// through once and in order.
func TestRelayCutHandshake(t *testing.T) {
	t.Parallel()
	// From the first byte on; message 1 ends at 3.7 KB, message 2 at 7.3.
	ns := []int64{1, 30, 50, 90, 100, 3000, 3650, 3700, 3800, 5000, 7000, 7200, 7250, 7300, 7350, 7400, 7450, 7500, 7600, 8000, 9000, 12_000}
	for _, executor := range []bool{true, false} {
		for _, n := range ns {
			t.Run(fmt.Sprintf("executor %v after %d", executor, n), func(t *testing.T) {
				t.Parallel()
				s := newService(t)
				s.router = newRouter()
				var once sync.Once
				s.router.arrived = func(p *peer) {
					if p.role == "harness" {
						once.Do(func() {
							if executor {
								p = s.router.peer(true)
							}
							p.cutAfter(n)
						})
					}
				}
				j := &meeting{s: s, l: startLink(t, s, timing{}), d: newDialer(t, s, timing{})}
				rig.Until(t, "the link", j.l.Ready)
				heard := make(chan string, 100)
				var serving sync.WaitGroup
				serving.Go(func() {
					for {
						c, err := j.l.Accept()
						if err != nil {
							return
						}
						serving.Go(func() {
							defer c.Close()
							for m, err := c.Read(); err == nil; m, err = c.Read() {
								heard <- string(m)
								_ = c.Write(m) // its error is the reader's too
							}
						})
					}
				})
				defer serving.Wait()
				defer j.l.endStreams(nil, net.ErrClosed)
				defer j.l.Close()

				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				c, err := j.d.Dial(ctx)
				rig.Must(t, err)
				defer c.Close()
				for i := range 10 {
					want := fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 100*i))
					rig.Must(t, c.Write([]byte(want)))
					wantMessage(t, c, want)
					rig.Is(t, <-heard, want, "the executor heard")
				}
				rig.Is(t, len(heard), 0, "messages that the executor heard beside them")
			})
		}
	}
}

// peer is the current websocket of the executor or of some harness.
func (r *router) peer(executor bool) *peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if executor {
		return r.executor
	}
	for _, p := range r.routes {
		return p
	}
	return nil
}

// TestRelayLossOfBoth drops either websocket again and again while both ends
// write.
func TestRelayLossOfBoth(t *testing.T) {
	t.Parallel()
	j := join(t)
	a, b := j.pair(t)
	prove(t, j.s.router, a, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		next := time.NewTicker(20 * time.Millisecond)
		defer next.Stop()
		for i := range 30 {
			<-next.C
			j.s.router.drop(i%2 == 0)
		}
	})
	sizes := make([]int, 200)
	for i := range sizes {
		sizes[i] = i * 7919 % 30_000
	}
	echo(t, a, b, sizes)
	wg.Wait()
	echo(t, a, b, sizes)
}

// TestRelayGrace pins that streams do not wait for ever, on either side.
func TestRelayGrace(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.router = newRouter()
	gone := make(chan struct{})
	s.upgrade = func(_ string, _ int, w http.ResponseWriter) bool {
		select {
		case <-gone:
			return plainAnswer(w, http.StatusServiceUnavailable)
		default:
			return false
		}
	}
	short := timing{least: time.Millisecond, most: 5 * time.Millisecond, grace: 100 * time.Millisecond}
	j := &meeting{s: s, l: startLink(t, s, short), d: newDialer(t, s, short)}
	rig.Until(t, "the link", j.l.Ready)
	a, b := j.pair(t)
	prove(t, s.router, a, b)
	close(gone)
	s.router.drop(true)
	s.router.drop(false)
	for _, c := range []rpc.Conn{a, b} {
		rig.Is(t, rig.Err(c.Read()), errNoWebsocket, "Read")
	}
	j.idle(t)
}

// idle waits until the link has no stream.
func (j *meeting) idle(t *testing.T) {
	t.Helper()
	rig.Until(t, "a place for another stream", func() bool {
		j.l.streams.mu.Lock()
		defer j.l.streams.mu.Unlock()
		return len(j.l.streams.active) == 0
	})
}

// TestRelayCloseWithoutWebsocket pins that the executor's stream is freed, and
// the harness told, although either closed while there was no websocket.
func TestRelayCloseWithoutWebsocket(t *testing.T) {
	t.Parallel()
	j := join(t)
	a, b := j.pair(t)
	prove(t, j.s.router, a, b)
	hold := make(chan struct{})
	j.s.mu.Lock()
	j.s.upgrade = func(string, int, http.ResponseWriter) bool { <-hold; return false }
	j.s.mu.Unlock()
	j.s.router.drop(true)
	rig.Until(t, "the loss", func() bool { return !j.l.Ready() })
	b.Close()
	close(hold)
	wantEnd(t, a, io.EOF)
}

func TestRelayHidesEverything(t *testing.T) {
	t.Parallel()
	const marker = "marker-that-nobody-between-may-read"
	j := join(t)
	a, b := j.pair(t)
	for range 3 {
		rig.Must(t, a.Write([]byte(`"`+marker+`"`)))
		wantMessage(t, b, `"`+marker+`"`)
		rig.Must(t, b.Write([]byte(`"`+marker+strings.Repeat(" ", 100_000)+marker+`"`)))
		rig.Must(t, rig.Err(a.Read()))
	}
	for _, secret := range []string{marker, testAuthority} {
		rig.Is(t, j.s.router.saw(secret), false, "the rendezvous has seen %q", secret)
	}
}

// identitiesOfTests are made once: the keys cost more than the handshake.
var identitiesOfTests = sync.OnceValue(func() (ids [2]*noise.Identity) {
	for i := range ids {
		ids[i] = rig.Value(noise.NewIdentity())
	}
	return ids
})

// pairOfSessions returns both ends of a session.
func pairOfSessions() (a, b *noise.Session) {
	ids := identitiesOfTests()
	i, message1, err1 := noise.Initiate(ids[0], ids[1].PublicKey(), nil, nil)
	message2, b, err2 := rig.Value(noise.ReadInitiation(ids[1], nil, message1)).Respond()
	return rig.Value(i.Finish(message2)), rig.Value(b, errors.Join(err1, err2))
}
