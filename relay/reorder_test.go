package relay

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/internal/relay/frame"
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
		if in, _ := r.stream.held(); in != 0 {
			t.Errorf("%d bytes are held", in)
		}
	})
	for distance, want := range map[uint32]error{63: nil, 64: nil, 65: errDistance, 1<<32 - 1: errDistance} {
		t.Run(fmt.Sprint("distance ", distance), func(t *testing.T) {
			t.Parallel()
			r := newRemote(t, false)
			rig.Is(t, r.data(distance, []byte("a payload that nobody looks at")), want, "a frame %d ahead", distance)
			if want != nil {
				r.wantEnd(want)
			}
		})
	}
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
		big := []byte(strings.Repeat("c", 65_535))
		for seq := uint32(1); seq <= 16; seq++ {
			rig.Must(t, r.data(seq, big))
		}
		rig.Is(t, r.data(17, big), errEarlyBytes, "17th frame")
	})
	t.Run("exactly 1 MiB", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
		quarter := make([]byte, 1<<18)
		for seq := uint32(1); seq <= 4; seq++ {
			rig.Must(t, r.data(seq, quarter))
		}
		rig.Is(t, r.data(5, []byte{1}), errEarlyBytes, "one byte more")
	})
}

// TestOldFrames: an old or repeated frame is not looked at; the first copy wins.
func TestOldFrames(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	records := r.records(4)
	for _, step := range []struct {
		seq    uint32
		record []byte
	}{
		{0, records[0]},
		{0, []byte("garbage")},
		{0, records[0]},
		{2, records[2]},
		{2, []byte("garbage")}, // the copy that waits wins
		{1, records[1]},
		{2, []byte("x")},
		{1, records[3]},
		{3, records[3]},
	} {
		rig.Must(t, r.data(step.seq, step.record))
	}
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
	if err := r.ack(1, 0); err != nil || !r.stream.provenPeer() {
		r.t.Fatal("no proof", err)
	}
}

// TestPatientPeer: a peer that acknowledges may send more than there is room for.
// The rest is dropped, or waits unacknowledged until the reader takes it.
func TestPatientPeer(t *testing.T) {
	t.Parallel()
	t.Run("too far", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
		r.prove()
		records := r.records(66)
		for _, seq := range []uint32{65, 64} {
			rig.Must(t, r.data(seq, records[seq]))
		}
		if r.stream.in.early.has(65) || !r.stream.in.early.has(64) {
			t.Error("the wrong frame was dropped")
		}
		for seq := range uint32(66) {
			rig.Must(t, r.data(seq, records[seq]))
		}
		for i := range records {
			r.wantRead(fmt.Sprint("message ", i))
		}
	})
	t.Run("too much", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
		r.prove()
		for seq := uint32(1); seq < 30; seq++ {
			rig.Must(t, r.data(seq, make([]byte, 65_535)))
		}
		if in, _ := r.stream.held(); in > 2<<20 {
			t.Errorf("%d bytes are held", in)
		}
	})
	t.Run("slow reader", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRemote(t, false)
			r.prove()
			const n = 200
			for seq := range uint32(n) {
				rig.Must(t, r.data(seq, r.record(framed(fmt.Sprint("message ", seq)))))
			}
			pass(2 * ackDelay)
			sent, _ := r.frames()
			last := sent[len(sent)-1]
			if last.Body != frame.Ack || last.Ack != maxUnread-1 || last.AckBits != 1<<32-1 {
				t.Errorf("128 unread: sent %+v", last)
			}
			for i := range n {
				r.wantRead(fmt.Sprint("message ", i))
			}
			pass(2 * ackDelay)
			sent, _ = r.frames()
			last = sent[len(sent)-1]
			if last.Body != frame.Ack || last.Ack != n-1 || last.AckBits != 0 {
				t.Errorf("all read: sent %+v", last)
			}
			r.stream.Close()
		})
	})
	t.Run("many messages in a record", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
		r.prove()
		var all []string
		for i := range 5000 {
			all = append(all, fmt.Sprint(i))
		}
		rig.Must(t, r.data(0, r.record(framed(all...))))
		rig.Must(t, r.data(1, r.record("")))
		if in, _ := r.stream.held(); in > 130<<10 {
			t.Errorf("%d bytes are held", in)
		}
		for _, want := range all {
			r.wantRead(want)
		}
		rig.Is(t, r.stream.in.taken, 2, "records are taken")
	})
	t.Run("violation in the backlog", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
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
	})
	t.Run("never waits", func(t *testing.T) {
		t.Parallel()
		r := newRemote(t, false)
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
			if in, _ := r.stream.held(); in > maxBacklog+2*patientUnreadBytes {
				t.Fatalf("%d bytes are held", in)
			}
		}
	})
}

// held returns how much memory the waiting records take, in bytes.
func (r *reorder) held() (bytes int) {
	for _, record := range r.records {
		bytes += cap(record)
	}
	return bytes
}
