package rpc

import (
	"net"
	"sync"
	"time"

	"github.com/execagent/execagent/buffer"
)

// minProgress is what must arrive of a large message, in bytes, each time that
// its peer's patience runs anew.
const minProgress = 256 << 10

// Intake puts together the messages of one connection, one after the other, in
// pooled memory that takes from a [Budget]. It only grows with what has
// arrived, never with what a peer announced.
//
//	Begin ► Space ► (read into it) ► Filled ► Space ... ► Message
//
// The reader of the connection calls its methods, one at a time; Close may be
// called beside them.
type Intake struct {
	budget   *Budget
	patience time.Duration
	stalled  func()

	message []byte // so far
	held    int    // of the budget's large account, by the message
	want    int64  // beside that; the budget's, while in its queue
	granted chan struct{}
	waiting bool // for granted

	// The mutex of the budget protects these.
	small     int       // bytes of small messages that are being served
	large     int       // of large ones that are, or arrive
	since     time.Time // when it began to hold large ones, or gave one back, or was given room
	suspended int       // bytes of requests that only wait

	timer  *time.Timer // of the patience with a large message; nil before the first
	mark   int         // length of the message when it was started
	paused bool        // it was stopped by Pause

	mu     sync.Mutex // protects the fields below
	closed chan struct{}
	ended  func() // called by Close
}

// NewIntake makes an intake. stalled is called, from a goroutine of its own, when
// the connection has tried the patience of others, and must end it; nil is never
// called. That happens when:
//
//   - Of a large message less than 256 KiB come within patience, and not its end
//     either. Whatever else comes meanwhile, such as pongs, does not count.
//   - Others have waited for memory throughout patience, while the connection held
//     large messages, waited for nothing itself and gave none back. One that does
//     not read its answers is such a connection.
//
// A nil budget bounds nothing, patience included.
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

// Begin waits before the first byte of a message is read: while too much of all
// connections is being served, and more than 256 KiB of it is this connection's. It
// fails with [net.ErrClosed] after Close.
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

// closedGate returns what is closed when it makes sense to look again, nil if
// the next message may be read now.
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

// Crowded tells whether Begin would wait.
func (in *Intake) Crowded() bool { return in.closedGate() != nil }

// Len is how many bytes of the message have arrived.
func (in *Intake) Len() int { return len(in.message) }

// Held is how much memory the message takes, in bytes.
func (in *Intake) Held() int { return cap(in.message) }

// Space returns room for the next bytes of a message: for n of them if it has to
// grow and they fit, at least for one. The message can get most bytes long. It
// waits while the budget has no room, and fails with [net.ErrClosed] after
// Close.
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

// TrySpace is Space without waiting. Where there is no room yet it returns a
// channel that is closed once there is, and has to be called again then.
func (in *Intake) TrySpace(n, most int) (space []byte, granted <-chan struct{}) {
	if len(in.message) == cap(in.message) {
		// Four times as much: a large message is copied by a third of its size.
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
			in.timer.Stop() // it is not the peer who is late
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

// expect starts the peer's patience anew.
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

// Filled says that n bytes were put into the space.
func (in *Intake) Filled(n int) {
	in.message = in.message[:len(in.message)+n]
	if in.held > 0 && (in.paused || len(in.message)-in.mark >= minProgress) {
		in.expect()
	}
}

// Pause says that the peer is not expected to go on, until the next Filled.
func (in *Intake) Pause() {
	if in.timer != nil && in.timer.Stop() {
		in.paused = true
	}
}

// Message ends the message and returns it. It has to be given back with Recycle.
func (in *Intake) Message() []byte {
	message := in.message
	in.reset(cap(message))
	return message
}

// Drop gives up the message.
func (in *Intake) Drop() {
	message := in.message
	in.reset(0)
	buffer.Recycle(message)
}

// reset ends a message of which the budget has to count n bytes from now on.
func (in *Intake) reset(n int) {
	if in.timer != nil {
		in.timer.Stop()
	}
	if in.budget != nil {
		in.budget.settle(in, n)
	}
	in.message, in.held, in.waiting, in.paused = nil, 0, false, false
}

// Recycle gives a message back to the budget, and its memory to the pool of package
// buffer. A nil intake has no budget.
func (in *Intake) Recycle(message []byte) {
	in.give(cap(message), false)
	buffer.Recycle(message)
}

// give gives back the memory of a message, n bytes.
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

// suspend moves the n bytes of a request that only waits from now on. It fails
// where there is no room.
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

// Close says that the connection has ended: it unblocks Begin and Space, for good.
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

// onClose has f called when the connection ends, at once if it has.
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
