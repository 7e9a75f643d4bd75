package relay

import (
	"time"

	"github.com/execagent/execagent/internal/relay/socket"
)

// Bounds of the frames kept for sending again (remote.md 8.1), in bytes of memory.
const (
	maxKeptBytes = 4 << 20
	// largestFrame is what a data frame takes at most.
	largestFrame = 128 << 10
	// Little is kept for a peer that has not acknowledged yet, because it may never do so.
	maxUnprovenBytes  = 32 << 10
	maxUnprovenFrames = 16
)

// Times for sending frames again although the websocket was not lost.
const (
	resendAfter    = 500 * time.Millisecond // without progress; doubles each time
	maxResendAfter = 5 * time.Second
	holeInterval   = 200 * time.Millisecond // between repetitions of one frame because of ack_bits
)

// kept holds the frames that may have to be sent again, in order and encrypted as
// they were sent: a record is never encrypted twice (remote.md 6.5). The zero value
// is empty and its next frame has the sequence number 0.
type kept struct {
	frames fifo[keptFrame]
	first  uint32 // sequence number of the first frame, or of the next one
	bytes  int    // of memory
	share  part   // of the reserve, taken by bytes
	due    int    // frames that are due
	from   uint32 // no frame before this sequence number is due
}

type keptFrame struct {
	message  *socket.Message
	held     bool // the peer has it, though not all earlier ones
	due      bool // to be sent again
	repeated time.Time
}

// end is the sequence number after the last frame.
func (k *kept) end() uint32 { return k.first + uint32(k.frames.len()) }

// add keeps the next frame, with a hold of its own.
func (k *kept) add(m *socket.Message) {
	m.Retain()
	k.frames.push(keptFrame{message: m})
	k.bytes += cap(m.Bytes)
	k.share.add(cap(m.Bytes))
}

// release forgets all frames before seq. Without any, the next one is seq.
func (k *kept) release(seq uint32) {
	for k.frames.len() > 0 && k.first < seq {
		f := k.frames.pop()
		if f.due {
			k.due--
		}
		k.bytes -= cap(f.message.Bytes)
		k.share.add(-cap(f.message.Bytes))
		f.message.Release()
		k.first++
	}
	k.first = max(k.first, seq)
}

// at returns a frame, nil if it is not kept.
func (k *kept) at(seq uint32) *keptFrame {
	if seq < k.first || seq >= k.end() {
		return nil
	}
	return k.frames.at(int(seq - k.first))
}

// setHeld notes that the peer has a frame.
func (k *kept) setHeld(seq uint32) {
	if f := k.at(seq); f != nil {
		f.held = true
	}
}

// setDue marks a frame to be sent again.
func (k *kept) setDue(seq uint32) {
	f := k.at(seq)
	if f == nil || f.due {
		return
	}
	f.due = true
	if k.due == 0 || seq < k.from {
		k.from = seq
	}
	k.due++
}

// setHole marks a frame to be sent again that the peer lacks while it has later
// ones, unless the frame was just sent: every acknowledgement shows the hole
// until it is filled.
func (k *kept) setHole(seq uint32, now time.Time) {
	if f := k.at(seq); f != nil && !f.held && now.Sub(f.repeated) >= holeInterval {
		k.setDue(seq)
	}
}

// setAllDue marks all frames to be sent again that the peer does not have.
func (k *kept) setAllDue() {
	for i := range k.frames.len() {
		if !k.frames.at(i).held {
			k.setDue(k.first + uint32(i))
		}
	}
}

// takeDue returns the first frame that is due, with a hold for the caller,
// which sends it now. There must be one.
func (k *kept) takeDue(now time.Time) *socket.Message {
	seq := max(k.from, k.first)
	for !k.at(seq).due {
		seq++
	}
	f := k.at(seq)
	f.due, f.repeated = false, now
	k.due--
	k.from = seq + 1
	f.message.Retain()
	return f.message
}
