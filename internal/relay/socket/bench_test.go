package socket

import (
	"testing"

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
		rig.Must(b, lane.Send(sized(200)))
		m := rig.Value(client.Read())
		m.Release()
	}
}
