package socket

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// recordSize is a frame with the largest record of a stream, as it comes here.
const recordSize = 61_526

// sized returns a message of n bytes, whatever they are.
func sized(n int) *Message {
	m := NewMessage(n)
	m.Bytes = m.Bytes[:n]
	return m
}

// echo sends everything that comes back, until the socket ends.
func echo(s *Socket) {
	lane := s.NewLane(0)
	for {
		m, err := s.Read()
		if err != nil {
			return
		}
		if lane.Send(m) != nil {
			return
		}
	}
}

// One small frame there and back, nothing else under way.
func BenchmarkRoundTrip(b *testing.B) {
	client, server := pair(b, Config{}, Config{})
	go echo(server)
	lane := client.NewLane(0)
	b.ReportAllocs()
	for b.Loop() {
		rig.Check(b, lane.Send(sized(200)))
		m, err := client.Read()
		rig.Check(b, err)
		m.Release()
	}
}

// One lane with the largest records.
func BenchmarkBulk(b *testing.B) {
	for _, unsent := range []int{0, 16 << 10, 32 << 10, 64 << 10, 128 << 10} {
		for _, direction := range []string{"up", "down"} {
			b.Run(fmt.Sprintf("%s/%dK", direction, unsent>>10), func(b *testing.B) {
				from, to := pair(b, Config{}, Config{})
				if direction == "down" {
					from, to = to, from
				}
				limitUnsent(b, unsent, from)
				b.SetBytes(recordSize)
				flood(b, from, to, 1, recordSize)
			})
		}
	}
}

// flood sends b.N messages of size bytes on as many lanes as told.
func flood(b *testing.B, from, to *Socket, lanes, size int) {
	b.Helper()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var running sync.WaitGroup
	running.Go(func() {
		for range b.N {
			m, err := to.Read()
			if err != nil {
				b.Error(err)
				return
			}
			m.Release()
		}
	})
	b.ResetTimer()
	for range lanes {
		running.Go(func() {
			lane := from.NewLane(0)
			for left.Add(-1) >= 0 {
				if err := lane.Send(sized(size)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
}

// A small frame there and back on one lane while another floods, as through a
// relay: the peer passes bulk on to a third one and sends small frames back.
func BenchmarkLatencyUnderFlood(b *testing.B) {
	for _, unsent := range []int{0, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20} {
		for _, direction := range []string{"up", "down"} {
			b.Run(fmt.Sprintf("%s/%dK", direction, unsent>>10), func(b *testing.B) {
				near, far := pair(b, Config{}, Config{})
				sink, out := pair(b, Config{}, Config{})
				if direction == "down" {
					near, far, sink, out = far, near, out, sink
				}
				limitUnsent(b, unsent, near, far, sink, out)
				measureFlood(b, near, far, out, sink)
			})
		}
	}
}

func measureFlood(b *testing.B, near, far, out, sink *Socket) {
	go func() {
		small, bulk := far.NewLane(0), out.NewLane(0)
		for {
			m, err := far.Read()
			if err != nil {
				return
			}
			if len(m.Bytes) > smallMessage {
				err = bulk.Send(m)
			} else {
				err = small.Send(m)
			}
			if err != nil {
				return
			}
		}
	}()
	var passed atomic.Int64
	go func() {
		for {
			m, err := sink.Read()
			if err != nil {
				return
			}
			passed.Add(int64(len(m.Bytes)))
			m.Release()
		}
	}()
	var running sync.WaitGroup
	running.Go(func() {
		lane := near.NewLane(0)
		for lane.Send(sized(recordSize)) == nil {
		}
	})
	lane := near.NewLane(0)
	var times []time.Duration
	runtime.GC()
	b.ResetTimer()
	start, before := time.Now(), passed.Load()
	for b.Loop() {
		begin := time.Now()
		rig.Check(b, lane.Send(sized(100)))
		m, err := near.Read()
		rig.Check(b, err)
		m.Release()
		times = append(times, time.Since(begin))
	}
	rate := float64(passed.Load()-before) / time.Since(start).Seconds() / 1e6
	near.Close()
	running.Wait()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(rate, "MB/s")
}
