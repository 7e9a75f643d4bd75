package rpc

import (
	"net"
	"sync"
	"time"
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
// Whoever reads calls its methods, one at a time; Close may be called beside.
type Intake struct {
	budget   *Budget
	patience time.Duration
	stalled  func()

	message []byte // so far
	held    int    // of the budget's large account, by the message
	want    int64  // beside that; the budget's, while in its queue
	granted chan struct{}
	waiting bool // for granted

	timer  *time.Timer // of the patience with a large message; nil before the first
	mark   int         // length of the message when it was started
	paused bool        // it was stopped by Pause

	close  sync.Once
	closed chan struct{}
}

// NewIntake makes an intake. A large message of which less than 256 KiB come
// within patience, and not its end either, calls stalled, from a goroutine of
// its own; whatever else comes meanwhile, such as pongs, does not count. Nil
// never does. A nil budget bounds nothing, patience included.
func NewIntake(budget *Budget, patience time.Duration, stalled func()) *Intake {
	return &Intake{budget: budget, patience: patience, stalled: stalled, closed: make(chan struct{})}
}

// Budget is that of the intake, nil if it has none: see [Metered].
func (in *Intake) Budget() *Budget { return in.budget }

// Begin waits before the first byte of a message is read, while too much that
// was read before is being served. It fails with [net.ErrClosed] after Close.
func (in *Intake) Begin() error {
	if in.budget == nil {
		return nil
	}
	for {
		gate := in.budget.closedGate()
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

// Crowded tells whether Begin would wait.
func (in *Intake) Crowded() bool { return in.budget.crowded() }

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

// TrySpace is Space that does not wait: where there is no room yet it returns
// what is closed when there is, and then has to be called again.
func (in *Intake) TrySpace(n, most int) (space []byte, granted <-chan struct{}) {
	if len(in.message) == cap(in.message) {
		// Four times as much: a large message is copied by a third of its size.
		size := bufferSize(max(len(in.message)+n, min(4*cap(in.message), most)))
		if in.budget == nil || size <= maxSmall {
			in.grow(size)
		} else if granted = in.growLarge(size); granted != nil {
			return nil, granted
		}
	}
	return in.message[len(in.message):cap(in.message)], nil
}

func (in *Intake) grow(size int) {
	grown := append(Buffer(size), in.message...)
	Recycle(in.message)
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

// Message ends the message and returns it. The caller gives it back with
// [Budget.Recycle].
func (in *Intake) Message() []byte {
	message := in.message
	in.reset(cap(message))
	return message
}

// Drop gives up the message.
func (in *Intake) Drop() {
	message := in.message
	in.reset(0)
	Recycle(message)
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

// Close unblocks Begin and Space, for good.
func (in *Intake) Close() { in.close.Do(func() { close(in.closed) }) }
