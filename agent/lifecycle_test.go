package agent

import (
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestRequestBeforeInitialized: a request that was sent before initialized is
// refused, however late its handler runs.
func TestRequestBeforeInitialized(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	for range 200 {
		conn, _ := r.dial()
		sent := make(chan error, 1)
		go func() {
			var err error
			for _, message := range []string{
				`{"id":1,"method":"initialize","params":{"clientName":"t"}}`,
				`{"id":2,"method":"environment/status"}`,
				`{"method":"initialized"}`,
				`{"id":3,"method":"environment/status"}`,
			} {
				if err == nil {
					err = conn.Write([]byte(message))
				}
			}
			sent <- err
		}()
		for range 3 {
			answer, err := conn.Read()
			rig.Must(t, err)
			m, err := protocol.Decode(answer)
			rig.Must(t, err)
			rig.Is(t, m.Kind == protocol.KindError, m.ID == protocol.NumberID(2), "%s is refused", answer)
		}
		rig.Must(t, <-sent)
		_ = conn.Close()
	}
}

// TestBodyMemory: responses that are read whole share the memory of their
// connection, and a refused one gives its share back.
func TestBodyMemory(t *testing.T) {
	t.Parallel()
	own, total := semaphore.NewWeighted(3<<20), answers.NewMemory(8<<20)
	read := func(n int) (*bufferedResponse, error) {
		r := &bufferedResponse{share: answers.Share{Own: own, Total: total}}
		for _, size := range []int{1 << 10, n / 2, n} { // it turns out to be longer
			if _, err := r.alloc(size); err != nil {
				return r, err
			}
		}
		return r, nil
	}
	small, err := read(2 << 20)
	rig.Must(t, err)
	large, err := read(2<<20 + 1)
	wantCode(t, "a body without room", err, protocol.CodeInternal)
	large.Sent()
	small.Sent()
	rig.Is(t, own.TryAcquire(3<<20) && total.TryAcquire(8<<20), true, "all memory was given back")
}
