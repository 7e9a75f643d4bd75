package relay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/test/rig"
)

// records seals n records, each with one short message.
func (r *remote) records(n int) [][]byte {
	records := make([][]byte, n)
	for i := range records {
		records[i] = r.record(framed(fmt.Sprint("message ", i)))
	}
	return records
}

// TestEarlyFrames: a peer that does not acknowledge has the window of remote.md
// 8.1.
func TestEarlyFrames(t *testing.T) {
	t.Parallel()
	t.Run("in reverse", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
		records := r.records(65)
		for seq := 64; seq >= 0; seq-- {
			rig.Must(t, r.data(uint32(seq), records[seq]))
		}
		for i := range records {
			r.wantRead(fmt.Sprint("message ", i))
		}
		rig.Is(t, r.stream.heldIn(), 0, "bytes that are held")
	})
	for distance, want := range map[uint32]error{63: nil, 64: nil, 65: errDistance, 1<<32 - 1: errDistance} {
		r := newRemote(t, false)
		rig.Is(t, r.data(distance, []byte("a payload that nobody looks at")), want, "a frame %d ahead", distance)
		if want != nil {
			r.wantEnd(want)
		}
	}
	for name, tt := range map[string]struct{ frames, size, more int }{"bytes": {16, 65_535, 65_535}, "exactly 1 MiB": {4, 1 << 18, 1}} {
		r := newRemote(t, false)
		for seq := range tt.frames {
			rig.Must(t, r.data(uint32(seq+1), make([]byte, tt.size)))
		}
		rig.Is(t, r.data(uint32(tt.frames+1), make([]byte, tt.more)), errEarlyBytes, "%s: one more frame", name)
	}
}

// TestOldFrames: an old or repeated frame is not looked at; the first copy wins.
func TestOldFrames(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	records := r.records(4)
	rig.Must(t, r.data(0, records[0]), r.data(0, []byte("garbage")), r.data(0, records[0]))
	rig.Must(t, r.data(2, records[2]), r.data(2, []byte("garbage"))) // the copy that waits wins
	rig.Must(t, r.data(1, records[1]), r.data(2, []byte("x")), r.data(1, records[3]), r.data(3, records[3]))
	for i := range records {
		r.wantRead(fmt.Sprint("message ", i))
	}
}

// TestEarlyGarbage: an early record that is garbage is found out only when its turn
// has come.
func TestEarlyGarbage(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	rig.Must(t, r.data(1, []byte("garbage")))
	rig.Is(t, r.data(0, r.record(framed("{}"))), noise.ErrRecord, "a record that is none")
	r.wantRead("{}")
	r.wantEnd(noise.ErrRecord)
}

// TestUnread: 128 messages may wait to be read.
func TestUnread(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	for seq := range uint32(maxUnread) {
		rig.Must(t, r.data(seq, r.record(framed("{}"))))
	}
	r.wantRead("{}")
	rig.Must(t, r.data(maxUnread, r.record(framed("last"))))
	rig.Must(t, r.data(maxUnread+1, r.record(framed("{}")[:5])))
	rig.Is(t, r.data(maxUnread+2, r.record("}")), errUnread, "129 unread")
}

// prove makes the peer acknowledge something.
func (r *remote) prove() {
	r.t.Helper()
	r.write("{}")
	r.acknowledge()
}

// acknowledge does so for the first frame, which proves that it can.
func (r *remote) acknowledge() {
	r.t.Helper()
	rig.Must(r.t, r.ack(1, 0))
	rig.Is(r.t, r.stream.provenPeer(), true, "proven")
}

// TestPatientPeer: a peer that acknowledges may send more than there is room for.
// The rest is dropped, or waits unacknowledged until the reader takes it.
func TestPatientPeer(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]func(t *testing.T, r *remote){
		"too far": func(t *testing.T, r *remote) {
			r.prove()
			records := r.records(66)
			for _, seq := range []uint32{65, 64} {
				rig.Must(t, r.data(seq, records[seq]))
			}
			rig.Is(t, fmt.Sprint(r.stream.in.early.has(65), r.stream.in.early.has(64)), "false true", "frames 65 and 64 are there")
			for seq := range uint32(66) {
				rig.Must(t, r.data(seq, records[seq]))
			}
			for i := range records {
				r.wantRead(fmt.Sprint("message ", i))
			}
		},
		"too much": func(t *testing.T, r *remote) {
			r.prove()
			for seq := uint32(1); seq < 30; seq++ {
				rig.Must(t, r.data(seq, make([]byte, 65_535)))
			}
			rig.Is(t, r.stream.heldIn() <= 2<<20, true, "bytes that are held: %v, at most %v", r.stream.heldIn(), 2<<20)
		},
		"slow reader": func(t *testing.T, r *remote) {
			r.prove()
			const n = 200
			for seq := range uint32(n) {
				rig.Must(t, r.data(seq, r.record(framed(fmt.Sprint("message ", seq)))))
			}
			last := func() string {
				pass(2 * ackDelay)
				sent, _ := r.frames()
				return summary(sent[len(sent)-1])
			}
			rig.Is(t, last(), fmt.Sprintf("ack (%d %b)", maxUnread-1, 1<<32-1), "128 unread")
			for i := range n {
				r.wantRead(fmt.Sprint("message ", i))
			}
			rig.Is(t, last(), fmt.Sprintf("ack (%d 0)", n-1), "all read")
		},
		"many messages in a record": func(t *testing.T, r *remote) {
			r.prove()
			var all []string
			for i := range 5000 {
				all = append(all, fmt.Sprint(i))
			}
			rig.Must(t, r.data(0, r.record(framed(all...))))
			rig.Must(t, r.data(1, r.record("")))
			rig.Is(t, r.stream.heldIn() <= 130<<10, true, "bytes that are held: %v, at most %v", r.stream.heldIn(), 130<<10)
			for _, want := range all {
				r.wantRead(want)
			}
			rig.Is(t, r.stream.in.taken, 2, "records are taken")
		},
		"violation in the backlog": func(t *testing.T, r *remote) {
			r.prove()
			for seq := range uint32(maxUnread) {
				rig.Must(t, r.data(seq, r.record(framed("{}"))))
			}
			rig.Must(t, r.data(maxUnread, r.record(framed("last", "")+"rest")))
			for range maxUnread {
				r.wantRead("{}")
			}
			r.wantRead("last")
			r.wantEnd(errNoLength)
			r.wantTold(errNoLength)
		},
		"never waits": func(t *testing.T, r *remote) {
			r.prove()
			record := framed(strings.Repeat("x", 61436))
			for seq := uint32(0); ; seq++ {
				err := r.data(seq, r.record(record))
				if err == errBacklog {
					break
				}
				if err != nil || seq > 1000 {
					t.Fatalf("record %d: %v", seq, err)
				}
				rig.Is(t, r.stream.heldIn() <= maxBacklog+2*patientUnreadBytes, true, "bytes that are held: %v, at most %v", r.stream.heldIn(), maxBacklog+2*patientUnreadBytes)
			}
		},
	})
}

// held returns how much memory the waiting records take, in bytes.
func (r *reorder) held() (bytes int) {
	for _, record := range r.records {
		bytes += cap(record)
	}
	return bytes
}
