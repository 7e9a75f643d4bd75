package client

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/execagent/execagent/protocol"
)

const (
	// feedPiece is how many bytes of a [Feed] one request carries: as many as a server queues for a
	// process.
	feedPiece = 1 << 20
	// feedAhead is how many requests of a Feed are under way at once. Together they are about as
	// large as the data that a server parks for one connection.
	feedAhead = 3
	// smallPiece is how many bytes of a stream one request carries after the server had no memory
	// for a larger request. In base64 they are a message below 64 KiB: servers count such messages
	// apart, and let each connection have four of them wait in any case.
	smallPiece = 45 << 10
	// calmPieces is after how many such requests without a refusal the next ones get twice as large.
	calmPieces = 16
)

// pace is how many bytes of a stream one request carries: usual, or less while the server is short
// of memory. One goroutine notes answers, and another one may ask for the size.
type pace struct {
	usual int
	size  atomic.Int64 // 0: usual
	calm  int          // requests that were taken with this size
}

func (p *pace) piece() int {
	if size := int(p.size.Load()); size > 0 {
		return size
	}
	return p.usual
}

// refused notes that the server had no memory for a request.
func (p *pace) refused() {
	p.size.Store(smallPiece)
	p.calm = 0
}

// taken notes that the server took a request.
func (p *pace) taken() {
	if p.calm++; p.calm == calmPieces {
		p.size.Store(int64(min(2*p.piece(), p.usual)))
		p.calm = 0
	}
}

// Feed is the standard input of a process for much data. It sends large pieces, several at once, so
// that the round-trip time does not matter. Only one goroutine may use it.
//
// The process gets the data in order. After an error it has got the beginning of the data, and gets
// nothing that was written later.
type Feed struct {
	p     *Process
	ctx   context.Context
	piece []byte   // waits for more data, or for Close
	spare [][]byte // buffers that can be used again
	ahead []*write // not taken by the server yet, in order
	over  *connection
	sent  int      // how many of ahead are under way over this connection
	tried int      // how many of ahead were ever sent
	stuck bool     // the last one under way could not be sent
	shut  bool     // the server refused a write, and has taken none since
	ids   []string // of refused writes: the next writes must have them
	pace  pace
	err   error
}

// write is a request of a Feed. It is sent again, with its id, when its answer is lost.
type write struct {
	params protocol.WriteParams
	buf    []byte                           // can be used again after this write; nil: nothing
	answer func(context.Context, any) error // waits for the answer; nil: the request could not be sent
	err    error                            // why
	// The server may have taken these very bytes over an earlier connection, so other bytes must not
	// have the id.
	fixed bool
}

// Feed returns the standard input of the process as a writer, see [Feed]. The caller makes no other
// writes to the process. ctx bounds all writes. The process must have been started with PipeStdin.
func (p *Process) Feed(ctx context.Context) *Feed {
	return &Feed{p: p, ctx: ctx, pace: pace{usual: feedPiece}}
}

// Write keeps data until there is enough for a piece, or until Close. Its error may come from an
// earlier write.
func (f *Feed) Write(data []byte) (n int, err error) {
	for len(data) > 0 && f.err == nil {
		if f.piece == nil {
			f.piece = f.buffer()
		}
		m := min(len(data), feedPiece-len(f.piece))
		f.piece = append(f.piece, data[:m]...)
		n, data = n+m, data[m:]
		if len(f.piece) == feedPiece {
			f.begin()
		}
	}
	return n, f.err
}

// Close waits until the server has taken all data, and ends the standard input. After an error it
// only ends the standard input, without waiting, and returns the error.
func (f *Feed) Close() error {
	if len(f.piece) > 0 && f.err == nil {
		f.begin()
	}
	f.finish(0)
	if f.err == nil {
		return f.p.CloseStdin(f.ctx)
	}
	f.p.client.begin(func() {
		ctx, cancel := context.WithTimeout(f.p.client.ctx, cleanupTimeout)
		defer cancel()
		_ = f.p.CloseStdin(ctx) // the caller has an error
	})
	return f.err
}

// buffer is an empty buffer for a piece.
func (f *Feed) buffer() []byte {
	if last := len(f.spare) - 1; last >= 0 {
		buf := f.spare[last]
		f.spare = f.spare[:last]
		return buf[:0]
	}
	return make([]byte, 0, feedPiece)
}

// begin sends the piece, and keeps it until the answer because it may have to be sent again.
func (f *Feed) begin() {
	buf := f.piece
	f.piece = nil
	f.add(buf, buf)
	f.finish(feedAhead)
}

// add adds data, which belongs to buf, to what is sent.
func (f *Feed) add(data, buf []byte) {
	for more := true; more; {
		n := min(len(data), f.pace.piece())
		w := &write{params: protocol.WriteParams{ProcessID: f.p.id, Chunk: data[:n:n]}}
		if len(f.ids) > 0 {
			w.params.WriteID, f.ids = f.ids[0], f.ids[1:]
		} else {
			w.params.WriteID = f.p.writer + strconv.FormatUint(f.p.writes.Add(1), 10)
		}
		f.ahead = append(f.ahead, w)
		if data = data[n:]; len(data) == 0 {
			w.buf, more = buf, false
		}
	}
}

// finish sends writes until at most n of them are not taken.
func (f *Feed) finish(n int) {
	f.fill()
	for len(f.ahead) > n && f.err == nil {
		f.wait()
		f.fill()
	}
}

// fill sends writes until enough are under way. All of them go over one connection, because on
// another connection a later write could overtake them.
func (f *Feed) fill() {
	for f.err == nil && !f.stuck && f.sent < min(len(f.ahead), feedAhead) {
		if f.sent == 0 {
			if f.over, f.err = f.p.client.connected(f.ctx); f.err != nil {
				return
			}
		}
		w := f.ahead[f.sent]
		w.answer, w.err = f.over.begin(protocol.MethodProcessWrite, &w.params)
		f.stuck = w.err != nil // and nothing may be sent behind it
		f.sent++
		f.tried = max(f.tried, f.sent)
	}
}

// wait takes the answer to the oldest write.
func (f *Feed) wait() {
	w := f.ahead[0]
	var r protocol.WriteResult
	err := w.err
	if w.answer != nil {
		err = w.answer(f.ctx, &r)
	}
	switch {
	case isLoss(err):
		f.rewind()
		for _, w := range f.ahead[:f.tried] {
			w.fixed = true
		}
	case isBusy(err):
		// So are the later writes, until this one comes again. None of them was taken.
		f.rewind()
		f.shrink()
		f.pause()
	case errors.Is(err, ErrTooManyCalls):
		f.rewind()
		f.pause()
	case err == nil && r.Status == protocol.WriteAccepted:
		f.over.useful.Store(true)
		if w.buf != nil {
			f.spare = append(f.spare, w.buf)
		}
		f.ahead = f.ahead[1:]
		f.sent--
		f.tried--
		f.pace.taken()
		f.shut = false
	default:
		f.rewind()
		f.err = err
		if err == nil {
			f.err = writeError(r.Status)
		}
	}
}

// rewind gives up on the answers to writes under way, because they must be sent again.
func (f *Feed) rewind() {
	given, cancel := context.WithCancel(context.Background())
	cancel()
	for _, w := range f.ahead[1:f.sent] {
		if w.answer != nil {
			_ = w.answer(given, nil) // whatever it is
		}
	}
	f.sent, f.stuck = 0, false
}

// shrink makes smaller writes of those ahead. Their ids stay, in order, because the server takes
// nothing else after a refusal.
func (f *Feed) shrink() {
	f.pace.refused()
	ahead := f.ahead
	f.ahead = nil
	for len(ahead) > 0 && ahead[0].fixed {
		f.ahead, ahead = append(f.ahead, ahead[0]), ahead[1:]
	}
	for _, w := range ahead {
		f.ids = append(f.ids, w.params.WriteID)
	}
	for _, w := range ahead {
		f.add(w.params.Chunk, w.buf)
	}
}

// pause waits for a while if nothing was taken since the last refusal.
func (f *Feed) pause() {
	if f.shut && sleep(f.ctx, pause) != nil {
		f.err = context.Cause(f.ctx)
	}
	f.shut = true
}
