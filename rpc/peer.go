package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
)

// DefaultConcurrency is how many requests of one connection run at once (rpc.md 2.6).
const DefaultConcurrency = 64

// Config configures a [Peer]. The zero value serves nothing and ignores
// notifications, which is enough to make calls.
type Config struct {
	Table Table
	// Notification takes notifications, in order, in the read loop. An error is
	// fatal: it is sent with id -1, then the connection is closed. It must not
	// keep params. Nil ignores notifications.
	Notification func(ctx context.Context, method string, params json.RawMessage) error
	// WireError turns a handler's error into the error that is sent. Nil: a
	// *protocol.Error stays as it is, every other error becomes internal.
	WireError func(error) *protocol.Error
	// Closing is called once, when nothing more can be read and the context of
	// the handlers has ended, but before they have returned. The error is the
	// reason, io.EOF after an orderly end.
	Closing func(error)
	// Answered is called before every answer is sent, with the method, the time since the
	// request, and the error, which is nil for a result. The method comes from the client
	// and may be unknown; it is "" for a message that was no request. It may be nil.
	Answered func(method string, took time.Duration, err *protocol.Error)
	// Concurrency is the number of requests that run at once; 0 means
	// [DefaultConcurrency]. 1 is strict order: one after another, as sent.
	Concurrency int
	// Forgets makes a peer forget abandoned calls and so, once it has made a call, ignore
	// unknown answers. Otherwise too many calls without an answer, or an unexpected
	// answer, end the connection. It is for calls whose number a third party decides.
	Forgets bool
	// Logger logs panics; nil discards.
	Logger *slog.Logger
}

// Peer speaks JSON-RPC on a [Conn]: it serves requests from a [Table] and
// makes calls of its own. All methods may be called concurrently.
type Peer struct {
	conn   Conn
	cfg    Config
	intake *Intake // of conn
	seed   maphash.Seed

	mu sync.Mutex // guards what follows
	// room is signalled when requests may be read again.
	room      sync.Cond
	seq       sequence
	closing   bool                    // the connection was closed from this side
	ended     bool                    // the connection has ended, and is read to its end
	closed    bool                    // Serve reads no more
	cancel    context.CancelCauseFunc // of the handlers' context
	lastID    int64
	calls     map[int64]chan answer // by id; nil channel: the caller gave up
	abandoned int

	handlers sync.WaitGroup
}

// NewPeer makes a peer; [Peer.Serve] starts it. The peer owns conn.
func NewPeer(conn Conn, cfg Config) *Peer {
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = DefaultConcurrency
	}
	if cfg.WireError == nil {
		cfg.WireError = wireError
	}
	if cfg.Answered == nil {
		cfg.Answered = func(string, time.Duration, *protocol.Error) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Peer{conn: conn, cfg: cfg, intake: IntakeOf(conn), seed: maphash.MakeSeed(), calls: map[int64]chan answer{}}
	p.room.L = &p.mu
	p.seq = sequence{slots: cfg.Concurrency, queues: map[string]*queue{}, intake: p.intake}
	return p
}

func wireError(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	return protocol.Errorf(protocol.CodeInternal, "%v", err)
}

// Close ends the connection. Serve returns soon after.
func (p *Peer) Close() {
	_ = p.conn.Close()
	p.mu.Lock()
	p.closing = true
	cancel := p.cancel
	p.room.Signal()
	p.mu.Unlock()
	if cancel != nil {
		cancel(ErrClosed)
	}
}

// noteEnd notes that the connection has ended. From now on the read loop reads to
// the end, however many requests are parked, because Config.Closing and the
// handlers must learn of the end without waiting for those requests.
func (p *Peer) noteEnd() {
	p.mu.Lock()
	p.ended = true
	p.room.Broadcast()
	p.mu.Unlock()
}

// strict reports whether requests run one after another.
func (p *Peer) strict() bool { return p.cfg.Concurrency == 1 }

// Serve reads messages until the connection or ctx ends, and returns when every
// handler has returned. An orderly end is a nil error.
//
//	Conn.Read → protocol.Decode ┬ request → Table → sequence → handler (goroutine) → answer
//	                            ├ notification → Config.Notification
//	                            └ answer → the call that waits for it
func (p *Peer) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, p.Close)
	p.mu.Lock()
	p.cancel = cancel
	p.mu.Unlock()
	p.intake.onClose(p.noteEnd)

	err := p.read(ctx)
	stop()
	p.Close()
	p.mu.Lock()
	p.closed = true
	for id, call := range p.calls {
		if call != nil {
			close(call)
		}
		delete(p.calls, id)
	}
	p.mu.Unlock()
	if p.cfg.Closing != nil {
		p.cfg.Closing(err)
	}
	p.handlers.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Settle waits until every request that was read so far has been answered. Only
// [Config.Notification] may call it: it runs in the read loop, so no request
// comes in the meantime.
func (p *Peer) Settle() { p.handlers.Wait() }

func (p *Peer) read(ctx context.Context) error {
	for {
		data, err := p.conn.Read()
		if err != nil {
			return err
		}
		m, err := protocol.Decode(data)
		if err != nil {
			p.intake.Recycle(data)
			if conn, ok := p.conn.(Rejecter); ok {
				conn.Reject(err)
				return err
			}
			malformed := p.malformed(err)
			p.cfg.Answered("", 0, malformed)
			if err := p.writeError(protocol.NoID, malformed); err != nil {
				return err
			}
			continue
		}
		switch m.Kind {
		case protocol.KindRequest:
			err = p.request(ctx, m, data)
		case protocol.KindNotification:
			if p.cfg.Notification != nil {
				err = p.cfg.Notification(ctx, m.Method, m.Params)
			}
			p.intake.Recycle(data)
		default:
			err = p.answered(m, data)
		}
		if fatal, ok := errors.AsType[*protocol.Error](err); ok {
			p.cfg.Answered("", 0, fatal)
			_ = p.writeError(protocol.NoID, fatal)
		}
		if err != nil {
			return err
		}
	}
}

// malformed returns the answer to a message that does not decode.
func (p *Peer) malformed(err error) *protocol.Error {
	reason := err.Error()
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		reason = e.Message
	}
	if name, ok := p.conn.(fmt.Stringer); ok {
		return protocol.InvalidRequest("malformed JSON-RPC message from %s: %s", name, reason)
	}
	return protocol.InvalidRequest("malformed JSON-RPC message: %s", reason)
}

// request starts a request, or parks it until it may run.
func (p *Peer) request(ctx context.Context, m protocol.Message, data []byte) error {
	method, ok := p.cfg.Table[m.Method]
	if !ok {
		unknown := protocol.Errorf(protocol.CodeMethodNotFound, "unknown method `%.128s`", m.Method)
		if !p.strict() {
			p.intake.Recycle(data)
			p.cfg.Answered(m.Method, 0, unknown)
			return p.writeError(m.ID, unknown)
		}
		method.Handle = func(context.Context, json.RawMessage) (any, error) { return nil, unknown }
	}
	r := &request{Context: ctx, peer: p, handle: method.Handle, message: m, data: data, arrived: time.Now()}
	r.order, r.size, r.memory, r.start = method.Order, len(data), cap(data), r.run
	r.piece = r.order.pieceOf(p.seed, m.Params) // now, because a handler may decode params in place
	if p.strict() {
		r.order = Order{Queue: InQueue("strict"), Inline: method.Order.Inline}
	}
	if r.order.Queue != nil {
		r.queue = r.order.Queue(m.Params)
	}
	p.handlers.Add(1)
	if r.order.Inline {
		p.inline(&r.ticket)
		return nil
	}
	p.mu.Lock()
	err := p.seq.enter(&r.ticket)
	p.startReadyLocked()
	for err == nil && p.seq.full() && !p.ended && !p.closing {
		p.room.Wait()
	}
	heedless := p.seq.lacks > maxMissing
	p.mu.Unlock()
	if err != nil {
		p.handlers.Done()
		p.intake.Recycle(data)
		refused := p.cfg.WireError(err)
		p.cfg.Answered(m.Method, time.Since(r.arrived), refused)
		err = p.writeError(m.ID, refused)
	}
	if heedless {
		return protocol.InvalidRequest("more than %d refused requests were not sent again", maxMissing)
	}
	return err
}

// request is a request being served, and the context of its handler.
type request struct {
	ticket
	context.Context // of the connection
	peer            *Peer
	handle          Handler
	message         protocol.Message
	data            []byte    // what message is sliced from
	arrived         time.Time // when it was read
}

// requestKey is the context key of the request itself.
type requestKey struct{}

// Value returns the request itself for requestKey, else the value of the
// connection's context.
func (r *request) Value(key any) any {
	if key == (requestKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// run serves the request from beginning to end.
func (r *request) run() {
	growStack(0)
	p := r.peer
	if r.refused != nil {
		r.handle = func(context.Context, json.RawMessage) (any, error) { return nil, r.refused }
	}
	defer p.handlers.Done()
	err := p.serve(r)
	p.mu.Lock()
	r.failed = err != nil
	p.seq.release(&r.ticket)
	p.seq.finish(&r.ticket)
	p.startReadyLocked()
	p.mu.Unlock()
	buffer.Recycle(r.data)
}

// release releases the message of the request whose handler runs with ctx.
func release(ctx context.Context) {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		r.peer.release(r)
	}
}

// tiny is the memory, in bytes, up to which a message is held until its request
// was answered. Releasing it earlier would save little memory, and cost most
// requests one more use of the mutex.
const tiny = 4 << 10

// release releases a request's message before the request ends, unless it was
// already released or is tiny.
func (p *Peer) release(r *request) {
	if r.data == nil || r.memory <= tiny {
		return
	}
	p.mu.Lock()
	p.seq.release(&r.ticket)
	p.room.Signal()
	p.mu.Unlock()
	buffer.Recycle(r.data)
	r.data, r.message.Params = nil, nil
}

// growStack makes the stack of a new goroutine as large as handlers need, at once.
// Without it the runtime grows the stack step by step and copies all frames each
// time, which took a fifth of the time of small requests.
//
//go:noinline
func growStack(i int) byte {
	var room [4 << 10]byte
	return room[i]
}

// inline runs a request in the read loop. With strict order it waits for all
// earlier ones first.
func (p *Peer) inline(t *ticket) {
	if p.strict() {
		p.mu.Lock()
		for len(p.seq.queues) > 0 {
			p.room.Wait()
		}
		p.mu.Unlock()
	}
	t.queue, t.state = "", running
	t.start()
}

// startReadyLocked starts the requests that can start.
func (p *Peer) startReadyLocked() {
	for {
		t := p.seq.next()
		if t == nil {
			break
		}
		go t.start()
	}
	p.room.Signal()
}

func (p *Peer) suspend(t *ticket, to state) error {
	if p.strict() {
		// The request keeps its place in front. The requests behind it count as
		// waiting, which does not stop the reading, so that the end of the
		// connection is noticed.
		to = blocked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.seq.suspend(t, to)
	p.startReadyLocked()
	return err
}

// serve calls the handler and writes its answer. The error is that of the handler.
func (p *Peer) serve(r *request) error {
	result, o, err := p.invoke(r)
	p.release(r) // before the write: the client may take long to read the answer
	// An error of the write needs no answer, because write has closed the connection.
	if err != nil {
		failed := p.cfg.WireError(err)
		p.cfg.Answered(r.message.Method, time.Since(r.arrived), failed)
		_ = p.writeError(r.message.ID, failed)
	} else {
		p.cfg.Answered(r.message.Method, time.Since(r.arrived), nil)
		p.send(&o)
	}
	if s, ok := result.(Sent); ok {
		s.Sent()
	}
	return err
}

// outgoing is the message of an answer: as a whole, or in parts that are made one
// after the other in buf.
type outgoing struct {
	whole []byte
	to    PartsWriter // takes the parts; nil: the message is whole
	size  int
	parts iter.Seq[[]byte]
	buf   []byte
}

// send writes an answer.
func (p *Peer) send(o *outgoing) {
	if o.to == nil {
		_ = p.write(o.whole)
		buffer.Recycle(o.whole)
		return
	}
	if o.to.WriteParts(o.size, o.parts) != nil {
		p.Close() // like write
	}
	buffer.Recycle(o.buf)
}

// invoke calls the handler and encodes its result: as a whole, or, if it is large,
// part by part while send writes it. A panic of either becomes an internal error.
func (p *Peer) invoke(r *request) (result any, o outgoing, err error) {
	defer func() {
		if e := recover(); e != nil {
			p.cfg.Logger.Error("handler panicked", "method", r.message.Method, "panic", e, "stack", string(debug.Stack()))
			err = protocol.Errorf(protocol.CodeInternal, "internal error")
		}
	}()
	value, err := r.handle(r, r.message.Params)
	if err != nil {
		return nil, o, err
	}
	result = value
	streamed, ok := value.(protocol.Streamed)
	if ok && large(value) {
		o.to, _ = p.conn.(PartsWriter)
	}
	if o.to != nil {
		o.buf = buffer.Get(partSize)
		o.size, o.parts = protocol.AppendResultParts(o.buf, r.message.ID, streamed)
	} else {
		o.whole, err = protocol.AppendResult(bufferFor(value), r.message.ID, value)
	}
	return result, o, err
}

// partSize is how many bytes of a large answer are encoded at a time.
const partSize = 64 << 10

// large reports whether a result is sent in parts, if it can be.
func large(v any) bool {
	s, ok := v.(sized)
	return ok && s.SizeHint() > partSize
}

// smallMessage is the room for a message whose size is not known, in bytes.
const smallMessage = 512

// bufferFor returns a buffer for a message with v.
func bufferFor(v any) []byte {
	if s, ok := v.(sized); ok {
		return buffer.Get(smallMessage + s.SizeHint())
	}
	return buffer.Get(smallMessage)
}

func (p *Peer) writeError(id protocol.ID, e *protocol.Error) error {
	buf := protocol.AppendError(buffer.Get(smallMessage), id, e)
	err := p.write(buf)
	buffer.Recycle(buf)
	return err
}

// write sends a message. After an error the connection is useless: write closes
// it, so that the read loop ends too.
func (p *Peer) write(message []byte) error {
	err := p.conn.Write(message)
	if err != nil {
		p.Close()
	}
	return err
}

// Notify sends a notification. It blocks while the other side does not read.
func (p *Peer) Notify(method string, params any) error {
	buf, err := protocol.AppendNotification(bufferFor(params), method, params)
	if err == nil {
		err = p.write(buf)
	}
	buffer.Recycle(buf)
	return err
}
