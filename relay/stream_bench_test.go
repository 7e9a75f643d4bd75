package relay

import (
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/test/rig"
)

// adjoining returns two streams without a relay: what one sends, the other
// receives in the same goroutine. Each frame is copied, as a websocket does.
func adjoining(b *testing.B) (harness, executor *stream) {
	keysA, keysB := pairOfSessions()
	send := func(to **stream) func(*socket.Message) error {
		var f frame.Frame // one goroutine sends at a time
		return func(m *socket.Message) error {
			defer m.Release()
			received := append(buffer.Get(len(m.Bytes)), m.Bytes...)
			defer buffer.Recycle(received)
			if err := frame.Decode(received, &f); err != nil {
				return err
			}
			return (*to).receive(&f)
		}
	}
	ended := func(*stream, error) {}
	harness = newStream(streamConfig{id: testStreamID, session: keysA, harness: true, send: send(&executor), ended: ended})
	executor = newStream(streamConfig{id: testStreamID, session: keysB, send: send(&harness), ended: ended})
	b.Cleanup(func() {
		harness.Close()
		executor.Close()
	})
	introduce(b, harness, executor)
	return harness, executor
}

// BenchmarkStreamRoundTrip is a message of 64 bytes there and back.
func BenchmarkStreamRoundTrip(b *testing.B) {
	harness, executor := adjoining(b)
	message := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		for _, step := range []struct{ from, to *stream }{{harness, executor}, {executor, harness}} {
			rig.Check(b, step.from.Write(message))
			got, err := step.to.Read()
			rig.Check(b, err)
			buffer.Recycle(got)
		}
	}
}

// BenchmarkStreamOneWay is a flood of large messages, each one record, with a
// reader in a goroutine of its own.
func BenchmarkStreamOneWay(b *testing.B) {
	harness, executor := adjoining(b)
	message := make([]byte, maxRecord-prefixSize)
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			got, err := harness.Read()
			if err != nil {
				return
			}
			buffer.Recycle(got)
		}
	})
	b.ReportAllocs()
	b.SetBytes(int64(len(message)))
	for b.Loop() {
		rig.Check(b, executor.Write(message))
	}
	b.StopTimer()
	harness.Close()
	reading.Wait()
}
