package socket

import (
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// An idle socket at the server, with a goroutine that reads, must not cost
// more than 40 KiB; it costs far less. The raw clients are counted as well.
func TestIdleFootprint(t *testing.T) {
	got := footprint(t, 300)
	t.Logf("%.1f KiB per idle socket", got)
	rig.Is(t, got <= 20, true, "KiB per idle socket: %v, at most %v", got, 20)
}

func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(footprint(b, 2000), "KiB/socket")
	}
}

// footprint is how much heap and stack n idle sockets occupy each, in KiB.
func footprint(t testing.TB, n int) float64 {
	t.Helper()
	l := listenTCP(t)
	accepted := make(chan *Socket, n)
	serve(t, l, Config{}, accepted)
	before := occupied()
	var clients []net.Conn
	var sockets []*Socket
	var reading sync.WaitGroup
	answer := make([]byte, 1<<10)
	for range n {
		conn := rig.Value(net.Dial("tcp", l.Addr().String()))
		clients = append(clients, conn)
		rig.Must(t, rig.Err(io.WriteString(conn, upgradeRequest)))
		rig.Must(t, rig.Err(conn.Read(answer)))
		s := <-accepted
		sockets = append(sockets, s)
		lane := s.NewLane(0)
		reading.Go(func() {
			for {
				m, err := s.Read()
				if err != nil {
					return
				}
				_ = lane.Send(m) // the next Read fails if this does
			}
		})
		// One message there and back, so that every buffer has been in use.
		rig.Must(t, rig.Err(conn.Write(appendFrame(nil, binaryFrame, make([]byte, 100), true))))
		rig.Must(t, rig.Err(io.ReadFull(conn, answer[:102])))
	}
	after := occupied()
	for _, conn := range clients {
		conn.Close()
	}
	reading.Wait()
	for _, s := range sockets {
		s.Close()
	}
	return float64(after-before) / float64(n) / 1024
}

func occupied() int64 {
	runtime.GC()
	runtime.GC() // what pools held is gone after the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
