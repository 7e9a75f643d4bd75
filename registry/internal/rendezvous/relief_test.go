package rendezvous

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
)

// smallMemory is what a server of these tests may take: it may hold 32 MiB for peers.
const smallMemory = 64 << 20

// TestMemoryShort: several principals leave streams unread, so that together they hold
// all that a server may hold for peers. Then streams of theirs end, those that hold the
// most; the streams of others go on, also with large frames, and what is held never is
// more than it may be.
func TestMemoryShort(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			log := &logged{Handler: slog.DiscardHandler, lines: make(map[string]int)}
			s, other := c.pair(servers, settings{Memory: smallMemory, Logger: slog.New(log)})
			e, honest := s.executor(), other.harness()
			opened(honest, e, "honest", 1)
			long := strings.Repeat("x", 61_000)
			var slow []string
			for range 5 {
				k := other.ticket(ticket.Harness)
				k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
				for range 4 {
					h, stream := other.dialBuffered(other.url(k), 0), fmt.Sprint("slow ", len(slow))
					opened(h, e, stream, 1)
					slow = append(slow, stream)
				}
			}
			most := 0
			for n, rounds := uint32(0), uint32(300); n < rounds; n++ {
				if other.metrics.Relieved.Load() > 0 {
					rounds = min(rounds, n+20)
				}
				for _, stream := range slow {
					e.trySend(acked(data(stream, n, long), 1))
				}
				most = max(most, other.limits.Usage("").Waiting)
				if n%10 == 0 { // also behind all that waits
					last := acked(data("honest", n, long), 1)
					honest.until(last.Append(nil), func() { e.trySend(last) })
				}
			}
			c.eventually("streams have ended", func() bool { return other.metrics.Relieved.Load() > 0 })
			if limit := int(other.limits.MaxWaiting()); most > limit+limit/8 {
				t.Errorf("%d bytes were held, %d may be", most, limit)
			}
			exchanged := acked(data("honest", 1000, "still here"), 1)
			e.until(exchanged.Append(nil), func() { honest.trySend(exchanged) })
			if e.resets["honest"] {
				t.Error("the honest stream has ended")
			}
			c.eventually("a line says so", func() bool { return log.count("memory is short: streams that held the most of it were ended") > 0 })
		})
	}
}

// TestMemoryShortOfLittle: one who has several keys holds all that a server may hold for
// peers with ever so many streams, none of which holds much. They end, and not the one
// stream of somebody else that holds more than each of them; others send and get frames,
// large ones too.
func TestMemoryShortOfLittle(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{Memory: smallMemory})
	e, honest, bulk := s.executor(), s.harness(), s.dialBuffered(s.url(s.ticket(ticket.Harness)), 0)
	opened(honest, e, "honest", 1)
	opened(bulk, e, "bulk", 1)
	long, little := strings.Repeat("x", 61_000), strings.Repeat("x", 15_000)
	for n := range uint32(20) {
		e.trySend(acked(data("bulk", n, long), 1))
	}
	streams := make([][]string, 9) // by principal
	for p := range streams {
		k := s.ticket(ticket.Harness)
		k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
		for range 6 {
			h := s.dialBuffered(s.url(k), 0)
			// Not more: to open them all must not take as long as a websocket lives that is not
			// read, and so answers no ping.
			for range 4 {
				stream := rand.Text()
				opened(h, e, stream, 1)
				streams[p] = append(streams[p], stream)
			}
		}
	}
	for _, streams := range streams {
		for n := range uint32(12) {
			for _, stream := range streams {
				e.trySend(acked(data(stream, n, little), 1))
			}
		}
		for _, text := range []string{"small", long} {
			frame := acked(data("honest", 1, text), 1)
			honest.until(frame.Append(nil), func() { e.trySend(frame) })
			e.until(frame.Append(nil), func() { honest.trySend(frame) })
		}
	}
	c.eventually("streams have ended", func() bool { return s.metrics.Relieved.Load() > 0 })
	c.eventually("there is room again", func() bool { return s.limits.Usage("").Waiting < int(s.limits.MaxWaiting())*7/8 })
	exchanged := acked(data("honest", 1000, "still here"), 1)
	e.until(exchanged.Append(nil), func() { honest.trySend(exchanged) })
	if e.resets["honest"] || e.resets["bulk"] {
		t.Errorf("streams of others have ended: %v", e.resets)
	}
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
	if want := []string{"many 4", "two 3", "honest 5", "many 2", "two 3", "many 1", "many 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if last := holders[len(holders)-1]; !last.since.Equal(now) {
		t.Error("of two that hold as much the newer one ends first")
	}
}

// TestMemoryShortOfHalves: websockets that send a part of a large message and no more take
// memory, too. When it is short they end, and others can send large messages all the time.
func TestMemoryShortOfHalves(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{Memory: smallMemory})
	e, honest := s.executor(), s.harness()
	opened(honest, e, "honest", 1)
	half := append([]byte{0x82, 0xff}, binary.BigEndian.AppendUint64(nil, 200_000)...)
	half = append(append(half, 0, 0, 0, 0), make([]byte, 140_000)...) // the mask, and less than is announced
	long := strings.Repeat("x", 200_000)
	send := func(seq uint32) {
		t.Helper()
		frame := acked(data("honest", seq, long), 1)
		e.until(frame.Append(nil), func() { honest.trySend(frame) })
	}
	for range 5 {
		k := s.ticket(ticket.Harness)
		k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
		for range 40 { // of 256 KiB each, of which 8 MiB are let in
			conn := rawUpgrade(t, s.url(k))
			t.Cleanup(func() { conn.Close() })
			go conn.Write(half)
		}
		send(1) // lost if it comes when nothing is left, and repeated
	}
	c.eventually("websockets have ended", func() bool { return s.metrics.Relieved.Load() > 0 })
	if held, limit := s.limits.Usage("").Waiting, int(s.limits.MaxWaiting()); held > limit+1<<20 {
		t.Errorf("%d bytes are held, %d may be", held, limit)
	}
	send(2)
}

// TestWaitingStreamsCount: a stream that waits for its harness counts for the harness's
// principal, which has it back even if it may have no other.
func TestWaitingStreamsCount(t *testing.T) {
	t.Parallel()
	for _, places := range [][2]int{{0, 0}, {1, 1}, {1, 0}, {0, 1}} {
		t.Run(fmt.Sprint("harness from ", places[0], " to ", places[1]), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			cfg := settings{}
			cfg.Limits.Streams = 1
			servers := []*relayServer{c.server(cfg), c.server(cfg)}
			e, h := servers[0].executor(), servers[places[0]].harness()
			opened(h, e, "stream", 1)
			streams := func() (n int) {
				for _, s := range servers {
					n += s.limits.Usage(c.harnessKey).Streams
				}
				return n
			}
			h.socket.Close()
			c.eventually("it waits", func() bool { return servers[0].metrics.Waiting.Load() == 1 })
			c.eventually("it is counted", func() bool { return streams() == 1 })
			if used := servers[0].limits.Usage(c.harnessKey).Streams; used != 1 {
				t.Errorf("where it waits %d are counted", used)
			}
			another := servers[0].harness()
			another.sendFrame(resume("another"))
			another.wantReset("another", resetRefused)
			again := servers[places[1]].harness()
			e.want(again.sendFrame(acked(resume("stream"), 1)))
			exchange(again, e, "stream", 1)
			if waits := servers[0].metrics.Waiting.Load(); waits != 0 || streams() != 1 {
				t.Errorf("%d wait, %d are counted", waits, streams())
			}
			e.want(again.sendFrame(reset("stream", "done")))
			c.eventually("none is counted", func() bool { return streams() == 0 && servers[0].metrics.Waiting.Load() == 0 })
		})
	}
}
