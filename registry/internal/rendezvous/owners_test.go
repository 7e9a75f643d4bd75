package rendezvous

import (
	"fmt"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestTakeOverAfterRestart: the servers that knew whose a stream is have ended. A harness
// of another principal that names the stream does not get it, whether it comes before the
// executor has resumed the stream, after that, or before the executor itself, at
// whichever server. The stream goes on with its own harness.
func TestTakeOverAfterRestart(t *testing.T) {
	t.Parallel()
	for _, opening := range []string{"resume", "handshake"} {
		for _, resumes := range []bool{false, true} { // the executor has resumed the stream before
			for _, servers := range []int{1, 2} { // after the restart; the thief comes to the last one
				t.Run(fmt.Sprintf("%s, resumed %v, %d servers", opening, resumes, servers), func(t *testing.T) {
					bubble(t, func(c *cluster) {
						before := c.server(settings{})
						e, h := before.executor(), before.harness()
						opened(h, e, "stream", 1)
						rig.Must(c.t, before.Close())
						at, last := c.pair(servers, settings{})
						e = at.executorOf(map[string]string{"stream": c.harnessKey})
						c.waitOnline(at)
						more := acked(data("stream", 1, "only for its harness"), 1)
						says := func() {
							e.sendFrame(resumed("stream"))
							e.sendFrame(more)
							c.settles("the stream is known", func() bool { return at.metrics.Streams.Load() == 1 })
						}
						if resumes {
							says()
						}
						strange := last.strange()
						thief := last.end(strange)
						f := handshake("stream")
						if opening == "resume" {
							f = acked(resume("stream"), 1)
						}
						thief.sendFrame(f)
						thief.trySend(acked(data("stream", 1, "forged"), 1)) // its websocket may have ended
						thief.wantEnd()
						if !resumes {
							says()
						}
						h = last.harness()
						e.want(h.sendFrame(acked(resume("stream"), 1))) // and nothing of the thief's
						h.want(appended(resumed("stream")))
						h.want(appended(more))
						exchange(h, e, "stream", 1)
						thief = last.end(strange)
						thief.sendFrame(f)
						thief.wantEnd()
						exchange(h, e, "stream", 1)
						// Its id is free once the stream has ended.
						e.want(h.sendFrame(reset("stream", "done")))
						opened(last.end(strange), e, "stream", 1)
					})
				})
			}
		}
	}
}

// TestTakeOverBeforeRestart: a harness at a server that has never known a stream opens it
// while its executor is away. It loses the stream as soon as the executor is back, there
// or at a third server.
func TestTakeOverBeforeRestart(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		before := c.server(settings{})
		first, last := c.pair(servers, settings{})
		e, h := before.executor(), before.harness()
		opened(h, e, "stream", 1)
		thief := first.stranger()
		opened(thief, e, "of its own", 1)
		rig.Must(c.t, before.Close())
		thief.sendFrame(resumed("stream"))
		c.settles("it has the stream", func() bool { return first.metrics.Streams.Load() == 2 })
		e = last.executorOf(map[string]string{"stream": c.harnessKey})
		thief.wantEnd()
		c.waitOnline(last)
		h = first.harness()
		e.sendFrame(resumed("stream"))
		h.sendFrame(acked(resume("stream"), 1))
		e.arrives(h, acked(data("stream", 1, "last"), 1))
	})
}
