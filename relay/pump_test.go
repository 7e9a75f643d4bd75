package relay

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/test/rig"
)

// TestSilentPeer: to a peer that never acknowledges, nothing goes out unasked or a
// second time, and nothing is kept for long. Data frames acknowledge all the same.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	bubble(t, false, func(t *testing.T, r *remote) {
		r.write("{}")
		r.messages(0, 1)
		r.write("{}")
		r.messages(1, 40)
		r.write("{}")
		pass(time.Minute)
		r.wantSent("data 0 (0 0)", "data 1 (0 0)", "data 2 (40 0)")
		for range 13 {
			r.write("{}")
		}
		_, out := r.stream.held()
		rig.Is(t, min(max(out, 1), maxUnprovenBytes), out, "bytes that are kept of 16 frames")
		r.write("{}")
		rig.Is(t, r.stream.heldOut(), 0, "bytes that are kept of 17 frames")
		pass(time.Minute)
		sent, _ := r.frames()
		rig.Is(t, len(sent), 14, "frames were sent")
		// A resume frame and an acknowledgement of what was never sent mean
		// nothing, as in the reference.
		for _, f := range []frame.Frame{{Body: frame.Resume}, {Body: frame.Resume, Ack: 99}, {Body: frame.Ack, Ack: 17}, {Body: frame.Ack, Ack: 1<<32 - 1, AckBits: 1<<32 - 1}} {
			rig.Must(t, r.stream.receive(&f))
		}
		pass(time.Minute)
		r.wantSent()
		rig.Is(t, r.stream.suspend(), false, "it waits for another websocket")
		r.wantEnd(errLaneLost)
		r.wantTold()
	})
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		bubble(t, false, func(t *testing.T, r *remote) {
			r.write(strings.Repeat("x", 1<<20))
			rig.Is(t, r.stream.heldOut(), 0, "bytes that are kept")
		})
	})
}

// TestProof has the frames by which a peer shows that it acknowledges.
func TestProof(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		frame  frame.Frame
		proven bool
	}{
		{"nothing", frame.Frame{Body: frame.Resume}, false},
		{"ack 0 in an ack frame", frame.Frame{Body: frame.Ack}, true},
		{"ack 1", frame.Frame{Body: frame.Resume, Ack: 1}, true},
		{"bits", frame.Frame{Body: frame.Resume, AckBits: 0b10}, true},
		{"the last one sent", frame.Frame{Body: frame.Ack, Ack: 1, AckBits: 1}, true},
		{"bits too far", frame.Frame{Body: frame.Ack, Ack: 1, AckBits: 0b10}, false},
		{"too far", frame.Frame{Body: frame.Ack, Ack: 3}, false},
		{"99", frame.Frame{Body: frame.Ack, Ack: 99, AckBits: 1<<32 - 1}, false},
	} {
		r := newRemote(t, false)
		r.write("0", "1", "2")
		rig.Must(t, r.stream.receive(&tt.frame))
		rig.Is(t, r.stream.provenPeer(), tt.proven, "%s: proven", tt.name)
	}
}

// TestAcknowledge has the occasions on which an acknowledgement goes out by itself.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]func(t *testing.T, r *remote){
		"20 ms": func(t *testing.T, r *remote) {
			r.messages(0, 3)
			r.prove() // only now is there somebody to tell
			pass(ackDelay - 1)
			r.wantSent("data 0 (2 0)")
			pass(1)
			r.wantSent("ack (2 0)")
			r.messages(3, 2)
			pass(ackDelay - 1)
			r.wantSent()
			pass(1)
			r.wantSent("ack (4 0)")
			pass(time.Minute)
			r.wantSent()
		},
		"carried": func(t *testing.T, r *remote) {
			r.messages(0, 3)
			r.prove()
			r.messages(3, 1)
			r.write("{}")
			rig.Must(t, r.ack(2, 0))
			pass(time.Minute)
			r.wantSent("data 0 (2 0)", "data 1 (3 0)")
		},
		"zero cannot be carried": func(t *testing.T, r *remote) {
			r.prove()
			r.messages(0, 1)
			r.write("{}")
			rig.Must(t, r.ack(2, 0))
			pass(time.Minute)
			r.wantSent("data 0 (0 0)", "data 1 (0 0)", "ack (0 0)")
		},
		"32 records": func(t *testing.T, r *remote) {
			r.prove()
			r.messages(0, 31)
			synctest.Wait()
			r.wantSent("data 0 (0 0)")
			r.messages(31, 1)
			synctest.Wait()
			r.wantSent("ack (31 0)")
		},
		"256 KiB": func(t *testing.T, r *remote) {
			r.prove()
			for seq := range uint32(5) {
				rig.Must(t, r.data(seq, r.record(framed(strings.Repeat("x", 60_000)))))
			}
			synctest.Wait()
			r.wantSent("data 0 (0 0)", "ack (4 0)")
		},
		"holes": func(t *testing.T, r *remote) {
			r.prove()
			records := r.records(6)
			for _, seq := range []uint32{1, 5, 3} {
				rig.Must(t, r.data(seq, records[seq]))
			}
			pass(ackDelay) // without record 0 no acknowledgement can say what is here
			r.wantSent("data 0 (0 0)")
			rig.Must(t, r.data(0, records[0]))
			pass(ackDelay)
			r.wantSent("ack (1 1010)")
			rig.Must(t, r.data(0, records[0])) // the acknowledgement was lost
			pass(ackDelay)
			r.wantSent("ack (1 1010)")
			for _, seq := range []uint32{2, 4} {
				rig.Must(t, r.data(seq, records[seq]))
			}
			pass(ackDelay)
			r.wantSent("ack (5 0)")
		},
	})
	t.Run("a harness introduces itself", func(t *testing.T) {
		t.Parallel()
		bubble(t, true, func(t *testing.T, r *remote) {
			r.write("{}")
			pass(time.Minute)
			r.messages(0, 1)
			synctest.Wait()
			r.wantSent("data 0 (0 0)", "ack (0 0)")
			r.messages(1, 100)
			pass(time.Minute)
			r.wantSent()
		})
	})
}

// TestHarnessPushesBack: a harness does not read its websocket while a silent
// executor's messages wait for the reader, instead of giving up the stream.
func TestHarnessPushesBack(t *testing.T) {
	t.Parallel()
	flood := func(r *remote) {
		for seq := range uint32(maxUnread) {
			rig.Must(t, r.data(seq, r.record(framed("{}"))))
		}
	}
	bubble(t, true, func(t *testing.T, r *remote) {
		flood(r)
		// One record may hold more messages than there is room for.
		rig.Must(t, r.data(maxUnread, r.record(framed("{}", "{}", "{}"))))
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			r.stream.in.waitForRoom()
		}()
		for range 3 {
			pass(time.Minute)
			select {
			case <-waited:
				t.Fatal("did not wait for room")
			default:
			}
			rig.Must(t, rig.Err(r.stream.Read()))
		}
		r.wantRead("{}")
		<-waited
		r.wantTold()
	})
	t.Run("end", func(t *testing.T) {
		t.Parallel()
		bubble(t, true, func(t *testing.T, r *remote) {
			flood(r)
			go func() {
				pass(time.Minute)
				r.stream.Close()
			}()
			r.stream.in.waitForRoom()
		})
	})
}
