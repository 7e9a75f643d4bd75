package rendezvous

import (
	"errors"
	"fmt"
	"testing"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
)

// TestTakeOverAfterRestart: the servers that knew whose a stream is have ended. A harness
// of another principal that names the stream does not get it, whether it comes before the
// executor has resumed the stream, after that, or before the executor itself, at
// whichever server. The stream goes on with its own harness.
func TestTakeOverAfterRestart(t *testing.T) {
	t.Parallel()
	for _, opening := range []string{"resume", "handshake"} {
		for name, tt := range map[string]struct {
			servers, executor, thief int  // how many after the restart; where the two come to
			resumed                  bool // the executor has resumed the stream before
		}{
			"before the resume":                    {1, 0, 0, false},
			"after the resume":                     {1, 0, 0, true},
			"before the resume, at another server": {2, 0, 1, false},
			"after the resume, at another server":  {2, 0, 1, true},
		} {
			t.Run(name+", "+opening, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				before := c.server(settings{})
				e, h := before.executor(), before.harness()
				opened(h, e, "stream", 1)
				if err := before.Close(); err != nil {
					t.Fatal(err)
				}
				var servers []*relayServer
				for range tt.servers {
					servers = append(servers, c.server(settings{}))
				}
				at := servers[tt.executor]
				e = at.executorOf(map[string]string{"stream": c.harnessKey})
				c.waitOnline(at.node)
				resumed := acked(frame.Frame{StreamID: []byte("stream"), Body: frame.Resume, NextSeq: 1}, 1)
				more := acked(data("stream", 1, "only for its harness"), 1)
				if tt.resumed {
					e.sendFrame(resumed)
					e.sendFrame(more)
					c.eventually("the stream is known", func() bool { return at.metrics.Streams.Load() == 1 })
				}
				thief, again := servers[tt.thief].stranger()
				f := handshake("stream")
				if opening == "resume" {
					f = acked(resume("stream"), 1)
				}
				thief.sendFrame(f)
				thief.trySend(acked(data("stream", 1, "forged"), 1)) // its websocket may have ended
				thief.wantEnd()
				if !tt.resumed {
					e.sendFrame(resumed)
					e.sendFrame(more)
				}
				h = servers[tt.thief].harness()
				e.want(h.sendFrame(acked(resume("stream"), 1))) // and nothing of the thief's
				h.want(appended(resumed))
				h.want(appended(more))
				exchange(h, e, "stream", 1)
				thief = again()
				thief.sendFrame(f)
				thief.wantEnd()
				exchange(h, e, "stream", 1)
				// Its id is free once the stream has ended.
				e.want(h.sendFrame(reset("stream", "done")))
				opened(again(), e, "stream", 1)
			})
		}
	}
}

// TestTakeOverBeforeRestart: a harness at a server that has never known a stream opens it
// while its executor is away. It loses the stream as soon as the executor is back, there
// or at a third server.
func TestTakeOverBeforeRestart(t *testing.T) {
	t.Parallel()
	for _, place := range []int{0, 1} {
		t.Run(fmt.Sprint("executor at ", place), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			before, servers := c.server(settings{}), []*relayServer{c.server(settings{}), c.server(settings{})}
			e, h := before.executor(), before.harness()
			opened(h, e, "stream", 1)
			thief, _ := servers[0].stranger()
			opened(thief, e, "of its own", 1)
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			thief.sendFrame(acked(frame.Frame{StreamID: []byte("stream"), Body: frame.Resume, NextSeq: 1}, 1))
			c.eventually("it has the stream", func() bool { return servers[0].metrics.Streams.Load() == 2 })
			e = servers[place].executorOf(map[string]string{"stream": c.harnessKey})
			thief.wantEnd()
			c.waitOnline(servers[place].node)
			h = servers[0].harness()
			e.sendFrame(acked(frame.Frame{StreamID: []byte("stream"), Body: frame.Resume, NextSeq: 1}, 1))
			h.sendFrame(acked(resume("stream"), 1))
			last := acked(data("stream", 1, "last"), 1)
			e.until(last.Append(nil), func() { h.trySend(last) })
		})
	}
}

// TestMalformedOwners: a header that says nothing is refused, so that no stream is without
// its owner by mistake.
func TestMalformedOwners(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	_, err := socket.Dial(t.Context(), s.url(s.ticket(ticket.Executor)), map[string][]string{"X-Execagent-Stream-Owners": {"abc"}}, socket.Config{})
	if refused, ok := errors.AsType[*socket.RefusedError](err); !ok || refused.Status != 400 || refused.Reason != rejectMalformedHeader {
		t.Errorf("got %v", err)
	}
}
