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

// HelperError says that an fs helper ended while it had a request, or that no helper could
// be started. It is unknown whether a mutation was done, or which part of it.
type HelperError struct{ Err error }

// Error returns the text of Err behind a fixed prefix.
func (e *HelperError) Error() string { return "fs sandbox helper failed: " + e.Err.Error() }

func (e *HelperError) Unwrap() error { return e.Err }

// errNotSent is the error of a request that the helper cannot have received before it
// died. The request may be sent to another helper.
var errNotSent = errors.New("the helper has ended")

// errEnded is the error of a worker that Close ended.
var errEnded = errors.New("the helper was ended")

// worker is the agent's side of one fs helper process. Its methods may be called
// concurrently. Close ends the helper.
type worker struct {
	socket  *os.File
	raw     syscall.RawConn // of socket
	process *process
	quiet   time.Duration // Config.Quiet
	hang    time.Duration // Config.Hang

	slots  chan struct{} // holds one element for each request in flight
	ready  chan struct{} // closed when layers is set
	layers []string
	over   chan struct{} // closed when broken is set

	running sync.WaitGroup // reader, log, waiter, watch

	mu         sync.Mutex
	broken     error              // why the helper takes no more requests
	calls      [maxInFlight]*call // by the low bits of their numbers
	free       uint32             // bit set of the free elements of calls
	generation uint32             // the high bits of the last number
	heard      uint64             // packets received

	watch    *time.Timer // see watchdog.go
	watching bool        // the watch is set
	watched  uint64      // the value of heard when the watch was set
	pinged   bool        // a ping was sent when the watch was set
}

// newWorker returns the worker of p. socket is the agent's end of the socket pair whose other
// end p has.
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
		<-read // the last packet may report a better reason
		w.fail(fmt.Errorf("the helper has ended: %w", ended))
	})
	return w, nil
}

// call is one request, and as much of its answer as has arrived.
type call struct {
	request request
	result  result
	err     error
	done    chan struct{} // closed when result and err are complete
	left    bool          // the request was given up
}

// do sends a request and waits for its answer. If ctx ends first, do returns the error of
// ctx at once. The answer is then discarded, and a request of a cancellable operation is
// cancelled in the helper.
func (w *worker) do(ctx context.Context, r request) (result, error) {
	if err := ctx.Err(); err != nil { // because a select chooses any of its ready cases
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

// finish returns the result of c. The function own checks the descriptor of the result, if
// there is one, and makes it the agent's own. A malformed descriptor ends the helper.
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

// send gives c a number and writes its request to the socket. The caller has taken a slot
// for c.
func (w *worker) send(c *call) error {
	w.mu.Lock()
	if w.broken != nil {
		w.mu.Unlock()
		<-w.slots
		return errNotSent
	}
	slot := bits.TrailingZeros32(w.free) // one is free, because the caller has taken a slot
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

// write sends one packet. It never waits, because the buffer of the socket has room for
// all packets that may be in flight. A full buffer means that the helper does not read.
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

// leave gives up c, because its caller no longer waits.
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
	if complete { // after do had stopped waiting
		c.result.close()
		return
	}
	if c.request.op.cancellable() {
		if err := w.write(request{id: c.request.id, op: opCancel}); err != nil {
			w.lost("sending a cancel", err)
		}
	}
}

// completeLocked ends c with its result, or with err if that is not nil, and frees its slot.
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

// read handles the packets of the helper until the socket pair or the helper ends.
func (w *worker) read() {
	w.lost("reading an answer", w.readAll())
}

// lost ends a helper after an error of the socket. If the helper has closed its end, lost
// only kills it and does not report err, because the exit status says more and follows at once.
func (w *worker) lost(step string, err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		w.process.kill() // in case the helper has only closed the socket
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

// handle processes one packet. fd is the descriptor that came with the packet, or -1.
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

// readyLocked processes the first packet, which says whether the helper serves.
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

// fail kills the helper, and ends every request in flight with err. Only the first call has
// an effect.
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
	_ = w.socket.Close() // ends the reader
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
