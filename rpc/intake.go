package rpc

import (
	"net"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/buffer"
)

// minProgress is how many bytes of a large message must arrive to restart the
// stall timer.
const minProgress = 256 << 10

// Intake assembles the messages of one connection, one after the other, in
// pooled memory that takes from a [Budget]. It grows only with arrived bytes,
// never with a size that a peer announced.
//
//	Begin ► Space ► (read into it) ► Filled ► Space ... ► Message
//
// The reader of the connection calls its methods, one at a time; Close may be
// called at the same time.
type Intake struct {
	budget   *Budget
	patience time.Duration
	stalled  func()

	message []byte        // so far
	held    int           // bytes of message in the budget's large account
	want    int64         // bytes asked for in addition; guarded by the budget while it queues the intake
	granted chan struct{} // closed by the budget when want was taken
	waiting bool          // for granted

	// The mutex of the budget protects these.
	small     int       // bytes of small messages being served
	large     int       // of large ones being served, or arriving
	since     time.Time // when it last began to hold large ones, released one, or got room
	suspended int       // bytes of requests that only wait

	timer  *time.Timer // stall timer of a large message; nil before the first
	mark   int         // length of the message when the timer was started
	paused bool        // the timer was stopped by Pause

	mu     sync.Mutex // protects the fields below
	closed chan struct{}
	ended  func() // called by Close
}

// NewIntake makes an intake. If the connection holds memory for too long, stalled
// is called, in its own goroutine, and must end the connection. That is the case
// if:
//
//   - Within patience, neither 256 KiB of a large message nor its end have come.
//     Other data, such as pongs, does not count.
//   - For all of patience, other connections waited for memory, while this one
//     held large messages, released none and did not wait for memory itself. A
//     client that does not read its answers causes this.
//
// If stalled or budget is nil, there is no such limit. A nil budget bounds
// nothing.
func NewIntake(budget *Budget, patience time.Duration, stalled func()) *Intake {
	return &Intake{budget: budget, patience: patience, stalled: stalled, closed: make(chan struct{})}
}

// IntakeOf returns the Intake of a connection's messages, nil for a connection that
// is not [Metered].
func IntakeOf(conn Conn) *Intake {
	if m, ok := conn.(Metered); ok {
		return m.Intake()
	}
	return nil
}

// Begin is called before the first byte of a message is read. It waits while the
// small messages being served have reached the budget's limit, and 256 KiB or more
// of them are this connection's. It fails with [net.ErrClosed] after Close.
func (in *Intake) Begin() error {
	for {
		gate := in.closedGate()
		if gate == nil {
			return nil
		}
		select {
		case <-gate:
		case <-in.closed:
			return net.ErrClosed
		}
	}
}

// closedGate returns nil if the next message may be read now, else a channel that is
// closed when the caller should look again.
func (in *Intake) closedGate() <-chan struct{} {
	b := in.budget
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mayReadLocked(in) {
		return nil
	}
	if b.gate == nil {
		b.gate = make(chan struct{})
	}
	return b.gate
}

// Crowded reports whether Begin would wait.
func (in *Intake) Crowded() bool { return in.closedGate() != nil }

// Len is how many bytes of the message have arrived.
func (in *Intake) Len() int { return len(in.message) }

// Held is how much memory the message takes, in bytes.
func (in *Intake) Held() int { return cap(in.message) }

// Space returns room for the next bytes of a message: at least one, and n if it
// must grow and they fit. The message can get up to most bytes long. Space waits
// while the budget has no room, and fails with [net.ErrClosed] after Close.
func (in *Intake) Space(n, most int) ([]byte, error) {
	for {
		space, granted := in.TrySpace(n, most)
		if granted == nil {
			return space, nil
		}
		select {
		case <-granted:
		case <-in.closed:
			return nil, net.ErrClosed
		}
	}
}

// TrySpace is Space without waiting. If there is no room yet, it returns a
// channel that is closed once there is; then the caller calls TrySpace again.
func (in *Intake) TrySpace(n, most int) (space []byte, granted <-chan struct{}) {
	if len(in.message) == cap(in.message) {
		// The room grows fourfold, so that all copies of a large message
		// together are a third of its size.
		size := buffer.Size(max(len(in.message)+n, min(4*cap(in.message), most)))
		if in.budget == nil || size <= maxSmall {
			in.grow(size)
		} else if granted = in.growLarge(size); granted != nil {
			return nil, granted
		}
	}
	return in.message[len(in.message):cap(in.message)], nil
}

func (in *Intake) grow(size int) {
	grown := append(buffer.Get(size), in.message...)
	buffer.Recycle(in.message)
	in.message = grown
}

// growLarge grows the message once the budget has room for it.
func (in *Intake) growLarge(size int) (granted <-chan struct{}) {
	if !in.waiting {
		granted = in.budget.ask(in, int64(size))
	} else if !closed(in.granted) {
		granted = in.granted
	}
	in.waiting = granted != nil
	if in.waiting {
		if in.timer != nil {
			in.timer.Stop() // the peer waits for us
		}
		return granted
	}
	in.grow(int(in.want))
	in.budget.grown(in, cap(in.message))
	in.expect()
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// expect restarts the stall timer.
func (in *Intake) expect() {
	in.mark, in.paused = len(in.message), false
	switch {
	case in.stalled == nil:
	case in.timer == nil:
		in.timer = time.AfterFunc(in.patience, in.stalled)
	default:
		in.timer.Reset(in.patience)
	}
}

// Filled notes that n bytes were put into the space.
func (in *Intake) Filled(n int) {
	in.message = in.message[:len(in.message)+n]
	if in.held > 0 && (in.paused || len(in.message)-in.mark >= minProgress) {
		in.expect()
	}
}

// Pause stops the stall timer until the next Filled, because the caller does not
// read more of the message for now.
func (in *Intake) Pause() {
	if in.timer != nil && in.timer.Stop() {
		in.paused = true
	}
}

// Message ends the message and returns it. The caller must return it with Recycle.
func (in *Intake) Message() []byte {
	message := in.message
	in.reset(cap(message))
	return message
}

// Drop discards the message.
func (in *Intake) Drop() {
	message := in.message
	in.reset(0)
	buffer.Recycle(message)
}

// reset ends a message, of which the budget counts n bytes from now on.
func (in *Intake) reset(n int) {
	if in.timer != nil {
		in.timer.Stop()
	}
	if in.budget != nil {
		in.budget.settle(in, n)
	}
	in.message, in.held, in.waiting, in.paused = nil, 0, false, false
}

// Recycle returns a message to the budget, and its memory to the pool of
// buffers. A nil intake has no budget.
func (in *Intake) Recycle(message []byte) {
	in.give(cap(message), false)
	buffer.Recycle(message)
}

// give returns the memory of a message, n bytes.
func (in *Intake) give(n int, suspended bool) {
	if in == nil || in.budget == nil {
		return
	}
	b := in.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if !suspended {
		b.untakeLocked(in, n)
		return
	}
	b.account(n).suspended -= int64(n)
	in.suspended -= n
}

// suspend counts the n bytes of a request as waiting, instead of being served. It
// returns false, and changes nothing, if waiting requests already hold too much.
func (in *Intake) suspend(n int) bool {
	if in == nil || in.budget == nil {
		return true
	}
	b := in.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.account(n)
	if in.suspended+n > ownSuspended && a.suspended > 0 && a.suspended+int64(n) > a.limit/2 {
		return false
	}
	a.suspended += int64(n)
	in.suspended += n
	b.untakeLocked(in, n)
	return true
}

// resume is the opposite of suspend.
func (in *Intake) resume(n int) {
	if in == nil || in.budget == nil {
		return
	}
	b := in.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.account(n).suspended -= int64(n)
	in.suspended -= n
	b.takeLocked(in, n)
}

// Close is called at the end of the connection: it unblocks Begin and Space, for
// good.
func (in *Intake) Close() {
	in.mu.Lock()
	ended := in.ended
	if closed(in.closed) {
		ended = nil
	} else {
		close(in.closed)
	}
	in.mu.Unlock()
	if ended != nil {
		ended()
	}
}

// onClose calls f when the connection ends, or at once if it has ended.
func (in *Intake) onClose(f func()) {
	if in == nil {
		return
	}
	in.mu.Lock()
	in.ended = f
	over := closed(in.closed)
	in.mu.Unlock()
	if over {
		f()
	}
}
