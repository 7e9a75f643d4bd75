package relay

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/test/rig"
)

// hogs is how many streams take what they can get in these tests.
const hogs = 20

// passed has one end write messages of n bytes in all, and the other read them.
func passed(t *testing.T, from, to *stream, n int) {
	t.Helper()
	const size = 200 << 10
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() {
		for i := range n / size {
			m := make([]byte, size)
			binary.BigEndian.PutUint32(m, uint32(i))
			if err := from.Write(m); err != nil {
				t.Errorf("writing message %d: %v", i, err)
				return
			}
		}
	})
	for i := range n / size {
		m := rig.Value(to.Read())
		rig.Is(t, fmt.Sprint(len(m), " ", binary.BigEndian.Uint32(m)), fmt.Sprint(size, " ", i), "size and number of a message")
	}
}

// TestReserveOfOutput: streams whose peers acknowledge nothing keep no more together
// than the reserve of all of them, and a stream whose peer goes on is not held up.
func TestReserveOfOutput(t *testing.T) {
	alone(t, func(t *testing.T) {
		kept := &reserve{limit: 1 << 20}
		streams := make([]*stream, hogs)
		var writing sync.WaitGroup
		for i := range streams {
			keys, _ := pairOfSessions()
			streams[i] = newStream(streamConfig{
				id: testStreamID, session: keys, acknowledges: true, keptReserve: kept, ended: func(*stream, error) {},
				send: func(m *socket.Message) error { m.Release(); return nil },
			})
			writing.Go(func() {
				for streams[i].Write(make([]byte, 100<<10)) == nil {
				}
			})
		}
		synctest.Wait()
		total := 0
		for _, s := range streams {
			total += s.heldOut()
		}
		// Each may have asked just before the others took it.
		most := int(kept.limit) + hogs*(ownPart+largestFrame)
		rig.Is(t, total <= most, true, "bytes that all streams keep: %v, at most %v", total, most)

		harness, innocent := joined(t, func(cfg *streamConfig) { cfg.keptReserve = kept })
		passed(t, innocent, harness, 8<<20)
		harness.Close()
		innocent.Close()
		for _, s := range streams {
			s.Close()
		}
		writing.Wait()
		rig.Is(t, kept.used.Load(), 0, "bytes are not given back")
	})
}

// TestReserveOfInput: streams that nobody reads hold no more together than the
// reserve of all of them, and a stream that is read is not held up. Dropped records
// come again: in the end all of them are there.
func TestReserveOfInput(t *testing.T) {
	alone(t, func(t *testing.T) {
		waiting := &reserve{limit: 1 << 20}
		shared := func(cfg *streamConfig) { cfg.waitingReserve = waiting }
		const each = 4 << 20
		var peers, streams [hogs]*stream
		var passing sync.WaitGroup
		read := make(chan struct{})
		for i := range streams {
			peers[i], streams[i] = joined(t, shared)
			passing.Go(func() {
				for range each / (100 << 10) {
					rig.Check(t, peers[i].Write(make([]byte, 100<<10)))
				}
			})
			passing.Go(func() {
				<-read
				for range each / (100 << 10) {
					rig.Is(t, len(rig.Value(streams[i].Read())), 100<<10, "bytes")
				}
			})
		}
		synctest.Wait()
		total := 0
		for _, s := range streams {
			total += s.heldIn()
		}
		const unread = patientUnreadBytes + 200<<10 // each, and what is being put together
		most := int(waiting.limit) + hogs*(ownPart+unread)
		rig.Is(t, total <= most, true, "bytes that all streams hold: %v, at most %v", total, most)

		harness, innocent := joined(t, shared)
		passed(t, harness, innocent, 8<<20)
		close(read)
		passing.Wait()
		for _, s := range append(streams[:], innocent) {
			s.Close()
		}
		rig.Is(t, waiting.used.Load(), 0, "bytes are not given back")
	})
}
