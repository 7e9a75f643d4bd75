package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

var testStreamID = []byte("4faa9b06-fef2-463f-8e45-a01233809670")

// held is the memory that both halves hold for the peer or the reader, in bytes.
func (s *stream) held() (in, out int) { return s.heldIn(), s.heldOut() }

func (s *stream) heldIn() int {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	return s.in.early.held() + s.in.backlogBytes + s.in.assembler.intake.Held() + s.in.unreadBytes
}

func (s *stream) heldOut() int {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.kept.bytes
}

func (s *stream) provenPeer() bool {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.proven
}

// cable is one direction of a relay that loses nothing, with a bounded queue.
type cable struct {
	frames chan []byte
	cut    chan struct{} // what is sent later fails
	once   sync.Once
}

func newCable() *cable {
	return &cable{frames: make(chan []byte, 8), cut: make(chan struct{})}
}

func (c *cable) send(m *socket.Message) error {
	defer m.Release()
	select {
	case <-c.cut:
		return net.ErrClosed
	default:
	}
	select {
	case c.frames <- append(buffer.Get(len(m.Bytes)), m.Bytes...): // the sender may keep m
		return nil
	case <-c.cut:
		return net.ErrClosed
	}
}

func (c *cable) close() { c.once.Do(func() { close(c.cut) }) }

// deliver hands frames to s, as the reader of a link does, until a reset or
// done.
func (c *cable) deliver(s *stream, done <-chan struct{}) {
	var f frame.Frame
	for {
		select {
		case b := <-c.frames:
			if err := frame.Decode(b, &f); err != nil {
				panic(err)
			}
			if f.Body == frame.Reset {
				s.end(nil)
				return
			}
			_ = s.receive(&f) // ended hears of it
			buffer.Recycle(b)
		case <-done:
			return
		}
	}
}

// joined returns two streams with a relay between them. When one ends, the other is
// reset. change may edit the executor's configuration first.
func joined(t testing.TB, change ...func(*streamConfig)) (harness, executor *stream) {
	keysA, keysB := pairOfSessions()
	there, back := newCable(), newCable()
	var wg sync.WaitGroup
	ended := func(to *cable) func(*stream, error) {
		return func(*stream, error) {
			reset := &frame.Frame{StreamID: testStreamID, Body: frame.Reset, Reason: []byte(resetReason)}
			wg.Go(func() {
				_ = to.send(newFrame(reset)) // fails when the test is over
				to.close()
			})
		}
	}
	harness = newStream(streamConfig{id: testStreamID, session: keysA, harness: true, send: there.send, ended: ended(there)})
	cfg := streamConfig{id: testStreamID, session: keysB, send: back.send, ended: ended(back)}
	for _, f := range change {
		f(&cfg)
	}
	executor = newStream(cfg)
	done := make(chan struct{})
	wg.Go(func() { there.deliver(executor, done) })
	wg.Go(func() { back.deliver(harness, done) })
	t.Cleanup(func() {
		harness.Close()
		executor.Close()
		close(done)
		there.close()
		back.close()
		wg.Wait()
	})
	introduce(t, harness, executor)
	return harness, executor
}

// introduce exchanges messages until both ends know that the other one
// acknowledges, as the first requests of a connection do.
func introduce(t testing.TB, harness, executor *stream) {
	t.Helper()
	for _, step := range []struct{ from, to *stream }{{harness, executor}, {executor, harness}, {harness, executor}, {executor, harness}, {harness, executor}} {
		rig.Must(t, step.from.Write([]byte("{}")))
		rig.Is(t, string(rig.Value(step.to.Read())), "{}", "what is read")
	}
	for !harness.provenPeer() || !executor.provenPeer() { // an acknowledgement may be on its way
		runtime.Gosched()
	}
}

func TestStreamConn(t *testing.T) {
	t.Parallel()
	rpctest.TestConn(t, func(t *testing.T) (a, b rpc.Conn) {
		a, b = joined(t)
		return a, b
	})
}

// A remote is the other end of a stream as a test plays it: it has the keys,
// sees every frame that is sent and decides about the order of what it sends.
type remote struct {
	t      testing.TB
	keys   *noise.Session
	stream *stream

	mu    sync.Mutex
	sent  []frame.Frame // by the stream
	raw   [][]byte
	ends  []error // what ended was told
	errOf error   // what send returns
}

func newRemote(t testing.TB, harness bool) *remote {
	keys, peer := pairOfSessions()
	r := &remote{t: t, keys: peer}
	r.stream = newStream(streamConfig{id: testStreamID, session: keys, harness: harness, send: r.send, ended: r.ended})
	t.Cleanup(func() { r.stream.Close() })
	return r
}

func (r *remote) send(m *socket.Message) error {
	defer m.Release()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.errOf != nil {
		return r.errOf
	}
	b := slices.Clone(m.Bytes)
	var f frame.Frame
	rig.Check(r.t, frame.Decode(b, &f))
	r.raw, r.sent = append(r.raw, b), append(r.sent, f)
	return nil
}

func (r *remote) ended(s *stream, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rig.Is(r.t, s, r.stream, "the stream that has ended")
	r.ends = append(r.ends, err)
}

// frames returns what was sent since the last call.
func (r *remote) frames() ([]frame.Frame, [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent, raw := r.sent, r.raw
	r.sent, r.raw = nil, nil
	return sent, raw
}

// wantTold compares the errors that ended was called with.
func (r *remote) wantTold(want ...error) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	rig.Is(r.t, slices.Equal(r.ends, want), true, "ended was told %v, want %v", r.ends, want)
}

// record seals plaintext; records must be received in the order of sealing.
func (r *remote) record(plaintext string) []byte {
	return rig.Value(r.keys.Seal(nil, []byte(plaintext)))
}

func (r *remote) data(seq uint32, record []byte) error {
	return r.stream.receive(&frame.Frame{StreamID: testStreamID, Body: frame.Data, Seq: seq, Payload: slices.Clone(record)})
}

// ack acknowledges everything below taken.
func (r *remote) ack(taken, bits uint32) error {
	return r.stream.receive(&frame.Frame{StreamID: testStreamID, Body: frame.Ack, Ack: taken - 1, AckBits: bits})
}

func (r *remote) write(messages ...string) {
	r.t.Helper()
	for _, m := range messages {
		rig.Must(r.t, r.stream.Write([]byte(m)))
	}
}

func (r *remote) wantRead(want string) {
	r.t.Helper()
	got, err := r.stream.Read()
	rig.Must(r.t, err)
	rig.Is(r.t, string(got), want, "Read")
	buffer.Recycle(got)
}

func (r *remote) wantEnd(want error) {
	r.t.Helper()
	for range 2 {
		rig.Is(r.t, rig.Err(r.stream.Read()), want, "Read")
	}
}

// framed is the plaintext of messages, each with its length.
func framed(messages ...string) string {
	var b []byte
	for _, m := range messages {
		b = append(b, byte(len(m)>>24), byte(len(m)>>16), byte(len(m)>>8), byte(len(m)))
		b = append(b, m...)
	}
	return string(b)
}

// TestPeerEnds: a reset lets the reader have what has arrived.
func TestPeerEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ end, read, write error }{
		"reset":       {nil, io.EOF, net.ErrClosed},
		"link closed": {errNoWebsocket, errNoWebsocket, errNoWebsocket},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRemote(t, false)
			for seq := range uint32(3) {
				rig.Must(t, r.data(seq, r.record(framed(fmt.Sprintf("message %d", seq)))))
			}
			r.stream.end(tt.end)
			r.stream.end(errors.New("a second end"))
			for seq := range 3 {
				r.wantRead(fmt.Sprintf("message %d", seq))
			}
			r.wantEnd(tt.read)
			rig.Is(t, r.stream.Write([]byte("{}")), tt.write, "Write")
			rig.Check(t, r.data(3, []byte("nothing")))
			r.stream.Close()
			r.wantEnd(net.ErrClosed)
			r.wantTold()
			r.wantSent()
		})
	}
}

func TestLocalEnd(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	rig.Must(t, r.data(0, r.record(framed("unread"))))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { r.stream.Close() })
	}
	wg.Wait()
	r.stream.end(nil)
	r.wantEnd(net.ErrClosed)
	rig.Is(t, r.stream.Write([]byte("{}")), net.ErrClosed, "Write")
	r.wantTold(nil)
	rig.Is(t, rig.Err(r.stream.keys.Seal(nil, nil)), noise.ErrSessionOver, "Seal after the end")
	rig.Is(t, fmt.Sprint(r.stream.held()), "0 0", "bytes that are held")
	rig.Is(t, r.stream.suspend(), false, "it waits for another websocket")
	r.stream.resume(r.send)
	r.wantSent()
}

// TestReject: a message that is not JSON-RPC at all is a violation like any other.
func TestReject(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	cause := errors.New("not JSON")
	r.stream.Reject(cause)
	r.stream.Reject(cause)
	r.stream.Close()
	r.wantTold(cause)
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	rig.Is(t, r.stream.Write(nil), errEmptyMessage, "empty")
	rig.Is(t, r.stream.Write(make([]byte, maxMessage+1)), errBigMessage, "64 MiB and a byte")
	r.write("{}")
	r.wantSent("data 0 (0 0)") // the stream is as before
}

// TestWriteKeepsNothing: Write is done with its slice, also when frames are kept.
func TestWriteKeepsNothing(t *testing.T) {
	t.Parallel()
	r := newRemote(t, false)
	message := bytes.Repeat([]byte("abc"), 5000)
	want := bytes.Clone(message)
	rig.Must(t, r.stream.Write(message))
	rig.Same(t, "Write has changed its slice", want, message)
}

// TestBlockedWriters: Close unblocks writers that wait for the lane, for their turn
// or for the window, and receive never waits for them.
func TestBlockedWriters(t *testing.T) {
	alone(t, func(t *testing.T) {
		lane := newCable()
		keys, peer := pairOfSessions()
		r := &remote{t: t, keys: peer}
		r.stream = newStream(streamConfig{id: testStreamID, session: keys, send: lane.send, ended: func(*stream, error) { lane.close() }})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				for r.stream.Write([]byte("{}")) == nil {
				}
			})
		}
		synctest.Wait()
		rig.Is(t, len(lane.frames), cap(lane.frames), "frames that were sent")
		rig.Must(t, r.data(0, r.record(framed("hello"))))
		r.wantRead("hello")
		r.stream.Close()
		wg.Wait()
	})
}

// TestTurns: a writer that floods the stream lets others have their turn.
func TestTurns(t *testing.T) {
	alone(t, func(t *testing.T) {
		var wg sync.WaitGroup
		gate := make(chan *socket.Message)
		keys, _ := pairOfSessions()
		s := newStream(streamConfig{id: testStreamID, session: keys, ended: func(*stream, error) {},
			send: func(m *socket.Message) error { gate <- m; return nil }})
		write := func(size, n int) {
			wg.Go(func() {
				for range n {
					rig.Check(t, s.Write(make([]byte, size)))
				}
			})
			synctest.Wait()
		}
		write(5000, 100)
		write(10, 1)
		// The flood's next Write comes while the other waits.
		for i := 0; ; i++ {
			m := <-gate
			size := len(m.Bytes)
			m.Release()
			if size < 5000 {
				break
			}
			if i > maxOvertaken+1 {
				t.Fatalf("%d messages have overtaken one that waits", i)
			}
		}
		go func() {
			for m := range gate {
				m.Release()
			}
		}()
		wg.Wait()
		close(gate)
		s.Close()
	})
}

// TestIdleStream: a stream that has been used and is idle is small.
func TestIdleStream(t *testing.T) {
	const n = 200
	const most = 20 << 10
	streams := make([]*stream, 0, 2*n)
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := memory()
	for range n {
		r := newRemote(t, true)
		r.write("{}", "{}")
		for seq := range uint32(200) {
			rig.Must(t, r.data(seq, r.record(framed("{}"))))
			r.wantRead("{}")
		}
		r.write("{}", "{}")
		r.frames()
		streams = append(streams, r.stream)
	}
	if each := (int64(memory()) - int64(before)) / n; each > most {
		t.Errorf("an idle stream takes %d bytes, want at most %d", each, most)
	} else {
		t.Logf("%d bytes a stream", each)
	}
	runtime.KeepAlive(streams)
}
