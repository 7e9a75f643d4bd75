package relay

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/test/rig"
)

// TestRelayTampering: whatever a malicious rendezvous does, each end gets nothing
// but a beginning of what the other one wrote.
func TestRelayTampering(t *testing.T) {
	t.Parallel()
	decode := func(message []byte) *relaypb.RelayMessageFrame {
		f := &relaypb.RelayMessageFrame{}
		rig.Check(t, proto.Unmarshal(message, f))
		return f
	}
	encode := func(f *relaypb.RelayMessageFrame) []byte {
		f.Version = 1
		message, err := proto.Marshal(f)
		rig.Check(t, err)
		return message
	}
	flip := func(toExecutor bool, seq uint32) func(bool, []byte) [][]byte {
		return func(to bool, message []byte) [][]byte {
			f := decode(message)
			if d := f.GetData(); d != nil && to == toExecutor && d.Seq == seq {
				d.Payload[len(d.Payload)/2] ^= 1
			}
			return [][]byte{encode(f)}
		}
	}
	var held [][]byte
	tests := []struct {
		name   string
		tamper func(toExecutor bool, message []byte) [][]byte
		whole  bool // all of it comes through
	}{
		{"flips a bit to the executor", flip(true, 3), false},
		{"flips a bit to the harness", flip(false, 3), false},
		{"flips a bit of the first record", flip(true, 0), false},
		{"repeats", func(_ bool, m []byte) [][]byte {
			if decode(m).GetHandshake() != nil {
				return [][]byte{m}
			}
			return [][]byte{m, m, m}
		}, true},
		{"swaps", func(to bool, m []byte) [][]byte {
			if d := decode(m).GetData(); to && d != nil && (d.Seq == 2 || len(held) > 0) {
				held = append(held, m)
				if len(held) < 2 {
					return nil
				}
				swapped := [][]byte{held[1], held[0]}
				held = nil
				return swapped
			}
			return [][]byte{m}
		}, true},
		{"renumbers", func(to bool, m []byte) [][]byte {
			f := decode(m)
			if d := f.GetData(); to && d != nil && d.Seq >= 2 {
				d.Seq ^= 1
			}
			return [][]byte{encode(f)}
		}, false},
		{"sends back what came", func(to bool, m []byte) [][]byte {
			f := decode(m)
			if d := f.GetData(); to && d != nil {
				return [][]byte{m, encode(dataFrame(f.StreamId, d.Seq+1, d.Payload))}
			}
			return [][]byte{m}
		}, false},
		{"invents a record", func(to bool, m []byte) [][]byte {
			f := decode(m)
			if d := f.GetData(); !to && d != nil && d.Seq == 2 {
				return [][]byte{encode(dataFrame(f.StreamId, 2, []byte("\x00\x00\x00\x03{} with a tag...")))}
			}
			return [][]byte{m}
		}, false},
		{"sends its own second handshake", func(to bool, m []byte) [][]byte {
			f := decode(m)
			if d := f.GetData(); !to && d != nil && d.Seq == 2 {
				return [][]byte{encode(handshakeFrame(f.StreamId, make([]byte, noise.ResponseSize))), m}
			}
			return [][]byte{m}
		}, false},
		{"sends the harness a reset", func(to bool, m []byte) [][]byte {
			f := decode(m)
			if d := f.GetData(); !to && d != nil && d.Seq == 2 {
				return [][]byte{encode(resetFrame(f.StreamId, "because"))}
			}
			return [][]byte{m}
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j := join(t)
			var mu sync.Mutex
			j.s.router.mu.Lock()
			j.s.router.tamper = func(to bool, m []byte) [][]byte {
				mu.Lock()
				defer mu.Unlock()
				return tt.tamper(to, m)
			}
			j.s.router.mu.Unlock()
			a, b := j.pair(t)
			const n = 20
			text := func(i int) string { return fmt.Sprintf(`"message %d"`, i) }
			var wg sync.WaitGroup
			var echoed, answered int
			stop := time.AfterFunc(patience, func() { t.Error("it hangs"); a.Close(); b.Close() })
			defer stop.Stop()
			wg.Go(func() {
				defer b.Close()
				for ; echoed < n; echoed++ {
					m, err := b.Read()
					if err != nil {
						return
					}
					rig.Is(t, string(m), text(echoed), "the executor reads")
					if b.Write(m) != nil {
						return
					}
				}
				_, _ = b.Read() // until the harness ends it
			})
			wg.Go(func() {
				for i := range n {
					if a.Write([]byte(text(i))) != nil {
						return
					}
				}
			})
			for ; answered < n; answered++ {
				m, err := a.Read()
				if err != nil {
					break
				}
				rig.Is(t, string(m), text(answered), "the harness reads")
			}
			a.Close()
			// Even this rendezvous frees the executor's stream when a harness is
			// gone.
			j.s.router.peer(true).send(resetFrame(string(a.(*harness).id), "harness is gone"))
			wg.Wait()
			rig.Is(t, echoed == n && answered == n, tt.whole, "%d and %d of %d messages came through; all", echoed, answered, n)
			j.idle(t)
		})
	}
}

// TestRelayImpostor: a rendezvous that poses as the executor, or as the harness, is
// found out.
func TestRelayImpostor(t *testing.T) {
	t.Parallel()
	rogue := rig.Value(noise.NewIdentity())
	message2 := func(t *testing.T, id string, message1 []byte) []byte {
		t.Helper()
		r := rig.Value(noise.ReadInitiation(rogue, noise.Prologue(testEnvironment, testRegistration, []byte(id)), message1))
		answer, _, err := r.Respond()
		rig.Must(t, err)
		return answer
	}
	t.Run("answers in the executor's place", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		real := rig.Value(noise.NewIdentity())
		s.executorKey = real.PublicKey()
		d := newDialer(t, s, timing{})
		done := make(chan error, 1)
		go func() { done <- rig.Err(d.Dial(t.Context())) }()
		p := s.next()
		id := p.read().StreamId
		// The rendezvous cannot read message 1, so it takes one that a rogue
		// harness made.
		_, own, err := noise.Initiate(rogue, rogue.PublicKey(), noise.Prologue(testEnvironment, testRegistration, []byte(id)), []byte("x"))
		rig.Must(t, err)
		f := p.read()
		prologue := noise.Prologue(testEnvironment, testRegistration, []byte(id))
		_, err = noise.ReadInitiation(rogue, prologue, f.GetHandshake().GetPayload())
		rig.Is(t, f.GetHandshake() != nil && err != nil, true, "the rendezvous cannot read message 1, %.300s", f)
		p.send(handshakeFrame(id, message2(t, id, own)))
		rig.Is(t, <-done == nil, false, "Dial succeeds")
		p.ends()
	})
	t.Run("knocks with its own key and an authorization it stole", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		x := newScript(t, s, startLink(t, s, timing{}))
		x.id = rogue
		x.begin("stream", testAuthority)
		x.wantReset("stream")
	})
	t.Run("repeats message 1", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		x := newScript(t, s, startLink(t, s, timing{}))
		i, message1, err := noise.Initiate(x.id, x.l.cfg.Identity.PublicKey(),
			noise.Prologue(testEnvironment, testRegistration, []byte("stream")), []byte(testAuthority))
		rig.Must(t, err)
		x.p.send(handshakeFrame("stream", message1))
		keys := x.answered("stream", i)
		c := rig.Value(x.l.Accept())
		x.say(keys, "stream", 0, `"said once"`)
		record := rig.Value(keys.Seal(nil, []byte("\x00\x00\x00\x01")))
		wantMessage(t, c, `"said once"`)
		// On the active stream, on another one, and after its end: there is
		// a new stream then, but with keys that nobody else has.
		x.p.send(handshakeFrame("stream", message1))
		x.wantReset("stream")
		x.p.send(handshakeFrame("other", message1))
		x.wantReset("other")
		x.p.send(resetFrame("stream", "end"))
		x.p.send(handshakeFrame("stream", message1))
		rig.Is(t, x.p.read().GetHandshake() != nil, true, "a handshake")
		again := rig.Value(x.l.Accept())
		x.p.send(dataFrame("stream", 0, record))
		x.wantReset("stream")
		wantEnd(t, again, nil)
	})
	t.Run("passes a record to another stream", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		x := newScript(t, s, startLink(t, s, timing{}))
		keys, _ := x.open("one")
		_, other := x.open("two")
		record := rig.Value(keys.Seal(nil, []byte("\x00\x00\x00\x02{}")))
		x.p.send(dataFrame("two", 0, record))
		x.wantReset("two")
		wantEnd(t, other, nil)
	})
}
