package relay

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/test/rig"
)

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// alone runs a test beside others, in a bubble of its own.
func alone(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// subtest is alone as a part of a test.
func subtest(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { alone(t, test) })
}

// bubble runs a test with a remote in a synctest bubble.
func bubble(t *testing.T, harness bool, test func(t *testing.T, r *remote)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(t, harness)
		test(t, r)
		r.stream.Close()
	})
}

// bubbles runs tests of executors, each in a bubble of its own.
func bubbles(t *testing.T, tests map[string]func(t *testing.T, r *remote)) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, false, test)
		})
	}
}

// summary is what a frame says, without its payload.
func summary(f frame.Frame) string {
	switch f.Body {
	case frame.Data:
		return fmt.Sprintf("data %d (%d %b)", f.Seq, f.Ack, f.AckBits)
	case frame.Ack:
		return fmt.Sprintf("ack (%d %b)", f.Ack, f.AckBits)
	case frame.Resume:
		return fmt.Sprintf("resume %d (%d %b)", f.NextSeq, f.Ack, f.AckBits)
	default:
		return fmt.Sprint("body ", f.Body)
	}
}

// wantSent compares what was sent since the last look.
func (r *remote) wantSent(want ...string) [][]byte {
	r.t.Helper()
	sent, raw := r.frames()
	var got []string
	for _, f := range sent {
		got = append(got, summary(f))
	}
	rig.Same(r.t, "sent", want, got)
	return raw
}

// messages has the stream receive n short messages from seq on, and reads them.
func (r *remote) messages(seq, n int) {
	r.t.Helper()
	for i := range n {
		rig.Must(r.t, r.data(uint32(seq+i), r.record(framed("{}"))))
		r.wantRead("{}")
	}
}

// TestResendAfterLoss: without progress the first unacknowledged frame goes out
// again, and it is the same one.
func TestResendAfterLoss(t *testing.T) {
	t.Parallel()
	bubble(t, false, func(t *testing.T, r *remote) {
		r.prove()
		r.wantSent("data 0 (0 0)")
		r.write("1", "2")
		raw := r.wantSent("data 1 (0 0)", "data 2 (0 0)")
		for _, after := range []time.Duration{500, 1000, 2000, 4000, 5000, 5000} {
			pass(after*time.Millisecond - 1)
			r.wantSent()
			pass(1)
			rig.Same(t, "the frame that is sent again", raw[:1], r.wantSent("data 1 (0 0)"))
		}
		rig.Must(t, r.ack(2, 0))
		synctest.Wait() // the next one may be lost as well
		rig.Same(t, "the frame that is sent again", raw[1:], r.wantSent("data 2 (0 0)"))
		pass(resendAfter)
		r.wantSent("data 2 (0 0)")
		rig.Must(t, r.ack(3, 0))
		pass(time.Hour)
		r.wantSent()
		rig.Is(t, r.stream.heldOut(), 0, "bytes that are kept")
	})
}

// TestResendHoles: bits that show a hole have it filled at once, but not with
// every acknowledgement.
func TestResendHoles(t *testing.T) {
	t.Parallel()
	bubble(t, false, func(t *testing.T, r *remote) {
		r.prove()
		r.write("1", "2", "3", "4", "5")
		r.frames()
		for range 3 {
			rig.Must(t, r.ack(1, 0b1010)) // 2 and 4 are there
		}
		synctest.Wait()
		r.wantSent("data 1 (0 0)", "data 3 (0 0)")
		pass(holeInterval)
		rig.Must(t, r.ack(2, 0b101)) // 3 is still missing
		synctest.Wait()
		r.wantSent("data 3 (0 0)", "data 5 (0 0)") // 5 may have been dropped because of the hole
		rig.Must(t, r.ack(1, 0b1010))              // an old one, delayed
		rig.Must(t, r.ack(6, 0))
		pass(time.Hour)
		r.wantSent()
	})
}

// TestResume: on a new websocket the resume frame comes first, then what is
// unacknowledged, byte for byte, then what is written.
func TestResume(t *testing.T) {
	t.Parallel()
	bubble(t, false, func(t *testing.T, r *remote) {
		r.messages(0, 4)
		r.prove()
		r.write("1", "2", "3")
		raw := r.wantSent("data 0 (3 0)", "data 1 (3 0)", "data 2 (3 0)", "data 3 (3 0)")
		rig.Must(t, r.ack(2, 0b10)) // 0, 1 and 3
		synctest.Wait()
		r.wantSent("data 2 (3 0)") // the hole
		rig.Is(t, r.stream.suspend(), true, "it waits for a websocket")
		r.messages(4, 1)
		r.write("4")
		pass(20 * time.Second)
		r.wantSent()
		r.stream.resume(r.send)
		r.write("5")
		synctest.Wait() // the write may have been first, but not on the wire
		again := r.wantSent("resume 6 (4 0)", "data 2 (3 0)", "data 4 (4 0)", "data 5 (4 0)")
		rig.Same(t, "the frame that is sent again", raw[2], again[1])
		rig.Is(t, fmt.Sprint(r.stream.in.next, r.stream.out.next), "5 6", "next")
	})
}

// TestPeerResumes: the other end's new websocket gets all that its old one may
// have lost.
func TestPeerResumes(t *testing.T) {
	t.Parallel()
	bubble(t, false, func(t *testing.T, r *remote) {
		r.messages(0, 1)
		r.prove()
		r.write("1", "2")
		r.frames()
		rig.Must(t, r.stream.receive(&frame.Frame{Body: frame.Resume, Ack: 1, NextSeq: 1}))
		synctest.Wait()
		r.wantSent("ack (0 0)", "data 2 (0 0)")
	})
	t.Run("nothing to acknowledge", func(t *testing.T) {
		t.Parallel()
		bubble(t, false, func(t *testing.T, r *remote) {
			r.prove()
			r.write("1")
			r.frames()
			rig.Must(t, r.stream.receive(&frame.Frame{Body: frame.Resume}))
			synctest.Wait()
			r.wantSent("data 1 (0 0)")
		})
	})
}

// TestForgottenFrames: frames that were sent before the peer was proven are not all
// kept. That matters only when the peer misses one of them.
func TestForgottenFrames(t *testing.T) {
	t.Parallel()
	flood := func(r *remote) {
		for range 40 {
			r.write("{}")
		}
		r.acknowledge()
	}
	bubbles(t, map[string]func(t *testing.T, r *remote){
		"arrives": func(t *testing.T, r *remote) {
			flood(r)
			r.write("40")
			rig.Must(t, r.ack(40, 0))
			rig.Is(t, r.stream.suspend(), true, "it waits for a websocket")
		},
		"cut": func(t *testing.T, r *remote) {
			flood(r)
			rig.Is(t, r.stream.suspend(), false, "it waits for a websocket")
			r.wantEnd(errUnkept)
		},
		"the peer's cut": func(t *testing.T, r *remote) {
			flood(r)
			rig.Is(t, r.stream.receive(&frame.Frame{Body: frame.Resume, Ack: 1}), errUnkept, "receive")
			r.wantTold(errUnkept)
		},
		"lost": func(t *testing.T, r *remote) {
			flood(r)
			pass(time.Minute)
			r.wantTold(errUnkept)
		},
		"waits for its reader": func(t *testing.T, r *remote) {
			flood(r)
			rig.Must(t, r.ack(1, 1))
			pass(time.Minute)
			r.wantTold()
		},
	})
}

// TestWindow: of a peer that acknowledges, 4 MiB may be unacknowledged, with a
// websocket or without.
func TestWindow(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprint("cut ", cut), func(t *testing.T) {
			t.Parallel()
			bubble(t, false, func(t *testing.T, r *remote) {
				r.prove()
				rig.Is(t, !cut || r.stream.suspend(), true, "it waits for a websocket")
				var wg sync.WaitGroup
				var written int
				wg.Go(func() {
					for r.stream.Write(make([]byte, 60_000)) == nil {
						written++
					}
				})
				synctest.Wait()
				_, out := r.stream.held()
				rig.Is(t, min(max(out, maxKeptBytes-2*largestFrame), maxKeptBytes), out, "bytes that are kept")
				if cut {
					r.stream.resume(r.send)
				}
				synctest.Wait()
				rig.Must(t, r.data(0, r.record(framed("{}"))))
				before := written
				rig.Must(t, r.ack(11, 0))
				synctest.Wait()
				rig.Is(t, written, before+10, "written after 10 were acknowledged")
				r.stream.Close()
				wg.Wait()
			})
		})
	}
}

// TestLostLane: Write fails with the error of the lane only if the peer does not
// acknowledge.
func TestLostLane(t *testing.T) {
	t.Parallel()
	lost := errors.New("lane lost")
	bubbles(t, map[string]func(t *testing.T, r *remote){
		"silent": func(t *testing.T, r *remote) {
			r.errOf = lost
			rig.Is(t, r.stream.Write([]byte("{}")), lost, "the error")
			var wg sync.WaitGroup
			wg.Go(func() {
				rig.Is(t, r.stream.Write([]byte("{}")), errLaneLost, "Write")
			})
			synctest.Wait()
			rig.Is(t, r.stream.suspend(), false, "it waits for a websocket")
			wg.Wait()
		},
		"proven": func(t *testing.T, r *remote) {
			r.prove()
			r.frames()
			r.errOf = lost
			r.write("1", "2")
			pass(time.Minute)
			rig.Is(t, r.stream.suspend(), true, "it waits for a websocket")
			r.errOf = nil
			r.stream.resume(r.send)
			synctest.Wait()
			r.wantSent("resume 3 (0 0)", "data 1 (0 0)", "data 2 (0 0)")
		},
	})
}

// TestSequenceEnds: sequence numbers never wrap.
func TestSequenceEnds(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	r.stream.out.next = 1<<32 - 1
	rig.Is(t, r.stream.Write([]byte("{}")), errExhausted, "Write")
	r = newRemote(t, false)
	r.stream.in.next = 1<<32 - 1
	rig.Is(t, r.data(1<<32-1, r.record(framed("{}"))), errExhausted, "receive")
	r.wantEnd(errExhausted)
}
