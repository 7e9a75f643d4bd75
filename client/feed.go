package client

import (
	"context"
	"strconv"

	"github.com/execagent/execagent/protocol"
)

const (
	// feedPiece is how many bytes of a [Feed] one request carries: as many as a server queues for a
	// process.
	feedPiece = 1 << 20
	// feedAhead is how many requests of a Feed are under way at once. Together they are about as
	// large as the data that a server parks for one connection.
	feedAhead = 3
)

// Feed is the standard input of a process for much data. It sends large pieces, several at once, so
// that the round-trip time does not matter. Only one goroutine may use it.
type Feed struct {
	p     *Process
	ctx   context.Context
	piece []byte   // waits for more data, or for Close
	ahead []*write // under way, in order
	spare [][]byte // buffers that can be used again
	err   error
}

// write is a request of a Feed. It is sent again, with its id, when its answer is lost.
type write struct {
	params protocol.WriteParams
	over   *connection
	answer func(context.Context, any) error // waits for the answer; nil: the request could not be sent
	err    error                            // why
}

// Feed returns the standard input of the process as a writer, see [Feed]. The caller makes no other
// writes to the process. ctx bounds all writes. The process must have been started with PipeStdin.
func (p *Process) Feed(ctx context.Context) *Feed { return &Feed{p: p, ctx: ctx} }

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

// Close waits until the server has taken all data, and ends the standard input.
func (f *Feed) Close() error {
	if len(f.piece) > 0 && f.err == nil {
		f.begin()
	}
	for len(f.ahead) > 0 && f.err == nil {
		f.wait()
	}
	if f.err != nil {
		return f.err
	}
	return f.p.CloseStdin(f.ctx)
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
	for len(f.ahead) == feedAhead {
		if f.wait(); f.err != nil {
			return
		}
	}
	w := &write{params: protocol.WriteParams{
		ProcessID: f.p.id, Chunk: f.piece, WriteID: f.p.writer + strconv.FormatUint(f.p.writes.Add(1), 10),
	}}
	f.piece = nil
	f.ahead = append(f.ahead, w)
	// Use the connection of the earlier writes, because on another one this write would overtake
	// them.
	if len(f.ahead) > 1 {
		f.send(w, f.ahead[len(f.ahead)-2].over)
		return
	}
	f.sendAll()
}

// sendAll sends all writes under way over the client's connection, in order.
func (f *Feed) sendAll() {
	l, err := f.p.client.connected(f.ctx)
	if err != nil {
		f.err = err
		return
	}
	for _, w := range f.ahead {
		f.send(w, l)
	}
}

func (f *Feed) send(w *write, over *connection) {
	w.over = over
	w.answer, w.err = over.begin(protocol.MethodProcessWrite, &w.params)
}

// wait takes the answer to the oldest write. If the answer is lost, all writes under way are sent
// again.
func (f *Feed) wait() {
	w := f.ahead[0]
	var r protocol.WriteResult
	err := w.err
	if w.answer != nil {
		err = w.answer(f.ctx, &r)
	}
	switch {
	case isLoss(err):
		f.forget(f.ahead[1:])
		f.sendAll()
		return
	case err == nil:
		w.over.useful.Store(true)
		err = writeError(r.Status)
	}
	if err != nil {
		f.err = err
		f.forget(f.ahead[1:])
		return
	}
	f.spare = append(f.spare, w.params.Chunk)
	f.ahead = f.ahead[1:]
}

// forget gives up on answers.
func (f *Feed) forget(writes []*write) {
	given, cancel := context.WithCancel(context.Background())
	cancel()
	for _, w := range writes {
		if w.answer != nil {
			_ = w.answer(given, nil) // whatever it is
		}
	}
}
