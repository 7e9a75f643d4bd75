package rendezvous

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/test/rig"
)

// smallMemory is what a server of these tests may take: it may hold 32 MiB for peers.
const smallMemory = 64 << 20

// TestMemoryShort: several principals leave streams unread, so that together they hold
// all that a server may hold for peers. Then streams of theirs end, those that hold the
// most; the streams of others go on, also with large frames, and what is held never is
// more than it may be.
func TestMemoryShort(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		log := newLogged()
		s, other := c.pair(servers, settings{Memory: smallMemory, Logger: slog.New(log)})
		e, honest := s.executor(), other.harness()
		opened(honest, e, "honest", 1)
		var slow []string
		for range 5 {
			k := other.strange()
			for range 4 {
				h, stream := other.slowEnd(k), fmt.Sprint("slow ", len(slow))
				opened(h, e, stream, 1)
				slow = append(slow, stream)
			}
		}
		most := 0
		for n, rounds := uint32(0), uint32(300); n < rounds; n++ {
			if other.metrics.Relieved.Load() > 0 {
				rounds = min(rounds, n+10)
			}
			for _, stream := range slow {
				e.trySend(acked(data(stream, n, long), 1))
			}
			c.settles("all is sent", func() bool { return true })
			most = max(most, other.limits.Usage("").Waiting)
			if n%10 == 0 { // also behind all that waits
				honest.arrives(e, acked(data("honest", n, long), 1))
			}
		}
		c.settles("streams have ended", func() bool { return other.metrics.Relieved.Load() > 0 })
		limit := int(other.limits.MaxWaiting())
		rig.Is(c.t, most > limit+limit/8, false, "%d bytes were held, %d may be", most, limit)
		e.arrives(honest, acked(data("honest", 1000, "still here"), 1))
		rig.Is(c.t, e.resets["honest"], false, "the honest stream has ended")
		rig.Is(c.t, log.count("memory is short: streams that held the most of it were ended") == 0, false, "no line says so")
	})
}

// TestMemoryShortOfLittle: one who has several keys holds all that a server may hold for
// peers with ever so many streams, none of which holds much. They end, and not the one
// stream of somebody else that holds more than each of them; others send and get frames,
// large ones too.
func TestMemoryShortOfLittle(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{Memory: smallMemory})
		e, honest, bulk := s.executor(), s.harness(), s.slowEnd(s.ticket(ticket.Harness))
		opened(honest, e, "honest", 1)
		opened(bulk, e, "bulk", 1)
		for n := range uint32(20) {
			e.trySend(acked(data("bulk", n, long), 1))
		}
		streams := make([][]string, 9) // by principal
		for p := range streams {
			k := s.strange()
			for w := range 6 {
				h := s.slowEnd(k)
				for n := range 4 {
					stream := fmt.Sprint(p, " ", w, " ", n)
					opened(h, e, stream, 1)
					streams[p] = append(streams[p], stream)
				}
			}
		}
		little := strings.Repeat("x", 15_000)
		for _, streams := range streams {
			for n := range uint32(12) {
				for _, stream := range streams {
					e.trySend(acked(data(stream, n, little), 1))
				}
			}
			for _, text := range []string{"small", long} {
				frame := acked(data("honest", 1, text), 1)
				honest.arrives(e, frame)
				e.arrives(honest, frame)
			}
		}
		time.Sleep(2 * reliefPause)
		rig.Is(c.t, s.metrics.Relieved.Load() == 0 || s.limits.Usage("").Waiting >= int(s.limits.MaxWaiting())*7/8, false,
			"%d have ended, %d bytes are held", s.metrics.Relieved.Load(), s.limits.Usage("").Waiting)
		e.arrives(honest, acked(data("honest", 1000, "still here"), 1))
		rig.Is(c.t, e.resets["honest"] || e.resets["bulk"], false, "streams of others have ended: %v", e.resets)
	})
}

// TestReliefTurns: holders end in the order of what their principals hold.
func TestReliefTurns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	holders := []holder{
		{principal: "honest", bytes: 5}, {principal: "many", bytes: 1, since: now}, {principal: "many", bytes: 2},
		{principal: "two", bytes: 3}, {principal: "many", bytes: 4}, {principal: "two", bytes: 3}, {principal: "many", bytes: 1, since: now.Add(-1)},
	}
	inTurn(holders)
	var got []string
	for _, h := range holders {
		got = append(got, fmt.Sprint(h.principal, " ", h.bytes))
	}
	// Before each, these hold: many 8, two 6, honest 5, many 4, two 3, many 2, many 1.
	rig.Same(t, "what was ended", []string{"many 4", "two 3", "honest 5", "many 2", "two 3", "many 1", "many 1"}, got)
	rig.Is(t, holders[len(holders)-1].since.Equal(now), true, "of two that hold as much the newer one ends first")
}

// TestMemoryShortOfHalves: websockets that send a part of a large message and no more take
// memory, too. When it is short they end, and others can send large messages all the time.
func TestMemoryShortOfHalves(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{Memory: smallMemory})
		e, honest := s.executor(), s.harness()
		opened(honest, e, "honest", 1)
		half := append([]byte{0x82, 0xff}, binary.BigEndian.AppendUint64(nil, 200_000)...)
		half = append(append(half, 0, 0, 0, 0), make([]byte, 140_000)...) // the mask, and less than is announced
		whole := acked(data("honest", 1, strings.Repeat("x", 200_000)), 1)
		for range 5 {
			u := rig.Value(url.Parse(s.url(s.strange())))
			for range 40 { // of 256 KiB each, of which 8 MiB are let in
				conn := rig.Value(s.dial(c.t.Context(), "tcp", s.host))
				c.t.Cleanup(func() { conn.Close() })
				rawUpgrade(c.t, conn, u)
				go conn.Write(half)
			}
			e.arrives(honest, whole) // lost if it comes when nothing is left, and repeated
		}
		time.Sleep(2 * slowMessage)
		rig.Is(c.t, s.metrics.Relieved.Load() == 0, false, "no websocket has ended")
		held, limit := s.limits.Usage("").Waiting, int(s.limits.MaxWaiting())
		rig.Is(c.t, held > limit+1<<20, false, "%d bytes are held, %d may be", held, limit)
		e.arrives(honest, whole)
	})
}

// TestWaitingStreamsCount: a stream that waits for its harness counts for the harness's
// principal, which has it back even if it may have no other.
func TestWaitingStreamsCount(t *testing.T) {
	t.Parallel()
	for _, places := range [][2]int{{0, 0}, {1, 1}, {1, 0}, {0, 1}} {
		t.Run(fmt.Sprint("harness from ", places[0], " to ", places[1]), func(t *testing.T) {
			bubble(t, func(c *cluster) {
				cfg := settings{}
				cfg.Limits.Streams = 1
				servers := []*relayServer{c.server(cfg), c.server(cfg)}
				e, h := servers[0].executor(), servers[places[0]].harness()
				opened(h, e, "stream", 1)
				streams := func() int {
					return servers[0].limits.Usage(c.harnessKey).Streams + servers[1].limits.Usage(c.harnessKey).Streams
				}
				h.socket.Close()
				c.settles("it waits, and is counted there", func() bool {
					return servers[0].metrics.Waiting.Load() == 1 && streams() == 1 && servers[0].limits.Usage(c.harnessKey).Streams == 1
				})
				another := servers[0].harness()
				another.sendFrame(resume("another"))
				another.wantReset("another", resetRefused)
				again := servers[places[1]].harness()
				e.want(again.sendFrame(acked(resume("stream"), 1)))
				exchange(again, e, "stream", 1)
				rig.Is(c.t, fmt.Sprint(servers[0].metrics.Waiting.Load(), streams()), "0 1", "streams that wait, that are counted")
				e.want(again.sendFrame(reset("stream", "done")))
				c.settles("none is counted", func() bool { return streams() == 0 && servers[0].metrics.Waiting.Load() == 0 })
			})
		})
	}
}
