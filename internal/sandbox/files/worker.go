package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
)

// HelperError is the end of an fs helper while it had a request, or that none
// could be started. Nothing is known of what was done of a mutation.
type HelperError struct{ Err error }

// Error tells what the matter was.
func (e *HelperError) Error() string { return "fs sandbox helper failed: " + e.Err.Error() }

func (e *HelperError) Unwrap() error { return e.Err }

// errNotSent is the error of a request that the helper cannot have seen before it
// died: the request may be sent to another helper.
var errNotSent = errors.New("the helper has ended")

// errEnded is the error of a worker that Close ended.
var errEnded = errors.New("the helper was ended")

// worker is one fs helper process, as the agent sees it. Its methods may be
// called at once. Close ends it.
type worker struct {
	socket  *os.File
	raw     syscall.RawConn // of socket
	process *process
	quiet   time.Duration // Config.Quiet
	hang    time.Duration // Config.Hang

	slots  chan struct{} // holds one for each request in flight
	ready  chan struct{} // closed when layers are known
	layers []string
	over   chan struct{} // closed when broken is set

	running sync.WaitGroup // reader, log, waiter, watch

	mu         sync.Mutex
	broken     error              // why it is over
	calls      [maxInFlight]*call // by the low bits of their numbers
	free       uint32             // bit set of free calls
	generation uint32             // the high bits of the last number
	heard      uint64             // packets

	watch    *time.Timer // see watchdog.go
	watching bool        // it is set
	watched  uint64      // heard when it was
	pinged   bool        // as it was set
}

// newWorker serves requests through the agent's end of the pair that p has
// the other end of.
func newWorker(socket *os.File, p *process, quiet, hang time.Duration) (*worker, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &worker{
		socket: socket, raw: raw, process: p, quiet: quiet, hang: hang,
		slots: make(chan struct{}, maxInFlight),
		ready: make(chan struct{}),
		over:  make(chan struct{}),
		free:  1<<maxInFlight - 1,
	}
	read := make(chan struct{})
	w.running.Go(func() {
		defer close(read)
		w.read()
	})
	w.running.Go(func() {
		ended := p.wait()
		<-read // its last words may say more
		w.fail(fmt.Errorf("the helper has ended: %w", ended))
	})
	return w, nil
}

// call is one request and what has come of its answer.
type call struct {
	request request
	result  result
	err     error
	done    chan struct{} // closed when result and err are complete
	left    bool          // the request was given up
}

// do sends a request and waits for its answer. When ctx ends first it returns
// at once with the error of ctx; the helper is told, and its answer thrown
// away.
func (w *worker) do(ctx context.Context, r request) (result, error) {
	if err := ctx.Err(); err != nil { // a select would choose among what is ready
		return result{fd: -1}, err
	}
	select {
	case w.slots <- struct{}{}:
	case <-w.over:
		return result{fd: -1}, errNotSent
	case <-ctx.Done():
		return result{fd: -1}, ctx.Err()
	}
	c := &call{request: r, result: result{fd: -1}, done: make(chan struct{})}
	if err := w.send(c); err != nil {
		return result{fd: -1}, err
	}
	select {
	case <-c.done:
		return w.finish(c)
	case <-ctx.Done():
	}
	w.leave(c)
	return result{fd: -1}, ctx.Err()
}

// finish returns what has come of c. The descriptor of its result becomes the
// agent's own; one that cannot be right ends the helper.
func (w *worker) finish(c *call) (result, error) {
	if c.err != nil || c.result.fd < 0 {
		return c.result, c.err
	}
	fd, err := own(c.result.fd, c.request.op)
	switch {
	case errors.Is(err, pack.ErrMalformed):
		w.fail(fmt.Errorf("answer to operation %d: %w", c.request.op, err))
		return result{fd: -1}, &HelperError{Err: w.broken}
	case err != nil:
		return result{fd: -1}, &fs.PathError{Op: c.request.op.verb(), Path: c.request.path, Err: err}
	}
	return result{fd: fd}, nil
}

// send gives c, for which a slot was taken, a number and its packet to the
// kernel.
func (w *worker) send(c *call) error {
	w.mu.Lock()
	if w.broken != nil {
		w.mu.Unlock()
		<-w.slots
		return errNotSent
	}
	slot := bits.TrailingZeros32(w.free) // there is one: see slots
	w.free &^= 1 << slot
	w.generation++
	c.request.id = w.generation<<slotBits | uint32(slot)
	w.calls[slot] = c
	w.watchLocked()
	w.mu.Unlock()

	err := w.write(c.request)
	if err == nil {
		return nil
	}
	w.lost("sending a request", err)
	<-c.done // which freed the slot
	return errNotSent
}

// write sends one packet. It never waits: the buffer of the socket has room
// for all that may be under way, so a full one means a helper that does not
// read.
func (w *worker) write(r request) error {
	packet := r.append(make([]byte, 0, 256))
	var err error
	closed := w.raw.Control(func(fd uintptr) {
		for {
			if _, err = unix.Write(int(fd), packet); err != unix.EINTR {
				return
			}
		}
	})
	return cmp.Or(closed, os.NewSyscallError("write", err))
}

// leave gives up waiting for c.
func (w *worker) leave(c *call) {
	w.mu.Lock()
	c.left = true
	complete := false
	select {
	case <-c.done:
		complete = true
	default:
	}
	w.mu.Unlock()
	if complete { // just now
		c.result.close()
		return
	}
	if c.request.op.cancellable() {
		if err := w.write(request{id: c.request.id, op: opCancel}); err != nil {
			w.lost("sending a cancel", err)
		}
	}
}

// completeLocked ends c with what its result has, or err, and frees its slot.
func (w *worker) completeLocked(c *call, err error) {
	slot := c.request.id % maxInFlight
	w.calls[slot] = nil
	w.free |= 1 << slot
	<-w.slots
	if err != nil || c.left {
		c.result.close()
	}
	c.err = err
	close(c.done)
}

// read handles what the helper sends until the pair or the helper ends.
func (w *worker) read() {
	w.lost("reading an answer", w.readAll())
}

// lost ends a helper that cannot be talked to. When it has gone of its own
// accord, its exit status says more than err, and comes at once.
func (w *worker) lost(step string, err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		w.process.kill() // or it has only closed the socket
	default:
		w.fail(fmt.Errorf("%s: %w", step, err))
	}
}

func (w *worker) readAll() error {
	p := packetReader{raw: w.raw, buf: make([]byte, maxPacket)}
	for {
		packet, fd, err := p.next()
		if err != nil {
			return err
		}
		if err := w.handle(packet, fd); err != nil {
			return err
		}
	}
}

// handle takes one packet and the descriptor that came with it, or -1.
func (w *worker) handle(packet []byte, fd int) error {
	defer func() {
		if fd >= 0 {
			unix.Close(fd)
		}
	}()
	if len(packet) < answerHeader {
		return fmt.Errorf("answer of %d bytes: %w", len(packet), pack.ErrMalformed)
	}
	d := newDecoder(packet)
	id, status := d.Uint32(), status(d.Byte())

	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard++
	if w.broken != nil {
		return w.broken
	}
	if w.layers == nil {
		return w.readyLocked(id, status, d.Rest())
	}
	if status == statusPong && id == 0 && len(d.Rest()) == 0 && fd < 0 {
		return nil
	}
	c := w.calls[id%maxInFlight]
	if c == nil || c.request.id != id {
		return fmt.Errorf("answer to number %d, which was not asked: %w", id, pack.ErrMalformed)
	}
	last, told, err := c.result.take(c.request.op, status, d.Rest(), &fd)
	if err != nil {
		return fmt.Errorf("answer to operation %d: %w", c.request.op, err)
	}
	if c.left {
		c.result.close()
		c.result.forget()
	}
	if last {
		w.completeLocked(c, told)
	}
	return nil
}

// readyLocked takes the first packet.
func (w *worker) readyLocked(id uint32, s status, body []byte) error {
	switch {
	case id != 0:
	case s == statusReady:
		layers, err := decodeLayers(body)
		if err != nil {
			return fmt.Errorf("first packet: %w", err)
		}
		w.layers = layers
		close(w.ready)
		return nil
	case s == statusRefused:
		text, err := decodeText(body)
		if err != nil {
			return fmt.Errorf("first packet: %w", err)
		}
		return errors.New(text)
	}
	return fmt.Errorf("first packet: %w", pack.ErrMalformed)
}

// fail ends the helper: it is killed, and every request that it had gets err.
// The first call counts.
func (w *worker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return
	}
	w.broken = err
	close(w.over)
	if w.watch != nil && w.watch.Stop() {
		w.running.Done()
	}
	w.process.kill()
	for _, c := range w.calls {
		if c != nil {
			w.completeLocked(c, &HelperError{Err: err})
		}
	}
	_ = w.socket.Close() // which ends the reader
}

// isOver reports whether the helper takes no more requests.
func (w *worker) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// Close ends the helper and waits until it is reaped.
func (w *worker) Close() {
	w.fail(errEnded)
	w.running.Wait()
}
