package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/test/rig"
)

// weather is what a simulated relay does to frames.
type weather struct {
	loss, duplication float64       // of each frame
	delay             time.Duration // uniform from 0 on: frames overtake each other; zero: they do not
	cuts              time.Duration // mean time between them, zero: none
	outage            time.Duration // uniform from 0 on
	both              bool          // cuts are of both websockets, else of either one
	slow              float64       // chance that a reader pauses after a message
	messages          int           // of each writer
	largest           int           // message, in bytes
	crowded           bool          // other streams have taken the whole reserve
}

// simWriters write at each end at once.
const simWriters = 2

// simulation is two streams and the relay between them, in a bubble. Which
// frame meets which fate also depends on the order in which goroutines run; a
// seed makes a failure likely to come again, not certain.
type simulation struct {
	weather weather
	ends    [2]*simEnd
	raging  atomic.Bool // nothing is lost before

	mu     sync.Mutex // protects random
	random *rand.Rand
}

// simEnd is one end and its websocket.
type simEnd struct {
	sim    *simulation
	stream *stream
	peer   *simEnd
	// era is odd while there is a websocket. What was sent in an earlier one is
	// lost.
	era atomic.Int64

	receiving sync.Mutex // stands for the one goroutine that calls receive

	mu      sync.Mutex // protects the fields below
	order   []flight   // frames on their way here that overtake none
	frames  map[uint32][]byte
	again   int
	peakIn  int
	peakOut int
	err     error
}

// flight is a frame on its way, sent in an era of its receiver.
type flight struct {
	frame []byte
	era   int64
}

func (w *simulation) chance(p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.Float64() < p
}

func (w *simulation) upTo(n int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.Int64N(n + 1)
}

func newSimulation(seed uint64, now weather) *simulation {
	w := &simulation{weather: now, random: rand.New(rand.NewPCG(seed, 0))}
	keys := [2]*noise.Session{}
	keys[0], keys[1] = pairOfSessions()
	for i := range w.ends {
		w.ends[i] = &simEnd{sim: w, frames: map[uint32][]byte{}}
	}
	for i, e := range w.ends {
		e.peer = w.ends[1-i]
		e.era.Store(1)
		cfg := streamConfig{id: testStreamID, session: keys[i], harness: i == 0, send: e.lane(), ended: e.ended}
		if now.crowded {
			cfg.waitingReserve, cfg.keptReserve = &reserve{}, &reserve{}
		}
		e.stream = newStream(cfg)
	}
	return w
}

func (e *simEnd) ended(_ *stream, err error) {
	if err == nil {
		return
	}
	e.note(fmt.Errorf("the stream has ended: %w", err))
	e.peer.stream.end(nil)
}

func (e *simEnd) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// lane is the send function of the current websocket.
func (e *simEnd) lane() func(*socket.Message) error {
	era := e.era.Load()
	return func(m *socket.Message) error {
		defer m.Release()
		if e.era.Load() != era {
			return errNoWebsocket
		}
		return e.transmit(m.Bytes)
	}
}

func (e *simEnd) transmit(b []byte) error {
	var f frame.Frame
	if err := frame.Decode(b, &f); err != nil {
		return err
	}
	if f.Body == frame.Data {
		e.mu.Lock()
		if first, again := e.frames[f.Seq]; !again {
			e.frames[f.Seq] = bytes.Clone(b)
		} else if e.again++; !bytes.Equal(first, b) {
			e.err = errors.New("a frame was not the same when it was sent again")
		}
		e.mu.Unlock()
	}
	w := e.sim
	copies, delay := 1, int64(0)
	raging := w.raging.Load()
	if raging && w.chance(w.weather.loss) {
		copies--
	}
	if raging && w.chance(w.weather.duplication) {
		copies++
	}
	for range copies {
		sent := &flight{frame: bytes.Clone(b), era: e.peer.era.Load()}
		if raging && w.weather.delay > 0 {
			delay = w.upTo(int64(w.weather.delay))
		} else {
			e.peer.queue(*sent)
			sent = nil
		}
		time.AfterFunc(time.Millisecond+time.Duration(delay), func() { e.peer.arrive(sent) })
	}
	return nil
}

func (e *simEnd) queue(f flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.order = append(e.order, f)
}

// arrive receives a frame, or the first of those that keep their order.
func (e *simEnd) arrive(sent *flight) {
	e.receiving.Lock()
	defer e.receiving.Unlock()
	if sent == nil {
		e.mu.Lock()
		sent = &e.order[0]
		e.order = e.order[1:]
		e.mu.Unlock()
	}
	if e.era.Load() != sent.era || sent.era%2 == 0 {
		return
	}
	var f frame.Frame
	if err := frame.Decode(sent.frame, &f); err != nil {
		e.note(err)
		return
	}
	_ = e.stream.receive(&f) // ended hears of it
	in, out := e.stream.held()
	e.mu.Lock()
	e.peakIn, e.peakOut = max(e.peakIn, in), max(e.peakOut, out)
	e.mu.Unlock()
}

// cut takes the websocket away for a while.
func (e *simEnd) cut(outage time.Duration) {
	e.receiving.Lock()
	e.era.Add(1)
	waits := e.stream.suspend()
	e.receiving.Unlock()
	if !waits {
		e.note(errors.New("the stream did not wait for a websocket"))
		return
	}
	time.Sleep(outage)
	e.era.Add(1)
	e.stream.resume(e.lane())
}

// rage cuts websockets until done.
func (w *simulation) rage(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(w.upTo(2 * int64(w.weather.cuts)))):
		}
		first := int(w.upTo(1))
		var wg sync.WaitGroup
		for i, e := range w.ends {
			if w.weather.both || i == first {
				wg.Go(func() { e.cut(time.Duration(w.upTo(int64(w.weather.outage)))) })
			}
		}
		wg.Wait()
	}
}

// simMessage is message i of a writer; its content follows from both.
func simMessage(writer, i, size int) []byte {
	b := make([]byte, max(size, 12))
	for j := 0; j+4 <= len(b); j += 4 {
		binary.BigEndian.PutUint32(b[j:], uint32(writer<<24+i*31+j))
	}
	binary.BigEndian.PutUint32(b, uint32(writer))
	binary.BigEndian.PutUint32(b[4:], uint32(i))
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)))
	return b
}

func (e *simEnd) write(writer int) error {
	w := e.sim
	for i := range w.weather.messages {
		size := int(w.upTo(300))
		if w.chance(0.3) {
			size = int(w.upTo(int64(w.weather.largest)))
		}
		if err := e.stream.Write(simMessage(writer, i, size)); err != nil {
			return fmt.Errorf("writer %d, message %d: %w", writer, i, err)
		}
		if w.chance(0.1) {
			time.Sleep(time.Duration(w.upTo(int64(100 * time.Millisecond))))
		}
	}
	return nil
}

func (e *simEnd) read() error {
	var next [simWriters]int
	for n := range simWriters * e.sim.weather.messages {
		got, err := e.stream.Read()
		if err != nil {
			return fmt.Errorf("reading message %d: %w", n, err)
		}
		if len(got) < 12 || got[3] >= simWriters || got[0]|got[1]|got[2] != 0 {
			return fmt.Errorf("message %d is damaged", n)
		}
		writer := int(got[3])
		if want := simMessage(writer, next[writer], len(got)); !bytes.Equal(got, want) {
			return fmt.Errorf("got message %d of writer %d, want %d", binary.BigEndian.Uint32(got[4:]), writer, next[writer])
		}
		next[writer]++
		buffer.Recycle(got)
		if e.sim.chance(e.sim.weather.slow) {
			time.Sleep(time.Duration(e.sim.upTo(int64(3 * time.Second))))
		}
	}
	return nil
}

// TestSimulation: whatever the relay does, every message arrives once, in
// order and whole; what is held for that stays within bounds, and it takes no
// longer than the weather explains.
func TestSimulation(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		weather weather
	}{
		{"fair", weather{messages: 120, largest: 200_000}},
		{"overtaking", weather{delay: 40 * time.Millisecond, messages: 120, largest: 200_000}},
		{"duplicates", weather{duplication: 0.3, delay: 10 * time.Millisecond, messages: 120, largest: 200_000}},
		{"loss", weather{loss: 0.05, delay: 5 * time.Millisecond, messages: 100, largest: 200_000}},
		{"storm", weather{loss: 0.2, duplication: 0.1, delay: 100 * time.Millisecond, messages: 100, largest: 150_000}},
		{"slow readers", weather{slow: 0.2, messages: 100, largest: 400_000}},
		{"slow readers, overtaking", weather{slow: 0.2, delay: 5 * time.Millisecond, messages: 100, largest: 400_000}},
		{"slow readers, loss", weather{slow: 0.1, loss: 0.05, messages: 100, largest: 400_000}},
		{"slow readers, crowded", weather{slow: 0.05, crowded: true, delay: 5 * time.Millisecond, messages: 60, largest: 400_000}},
		{"short cuts", weather{cuts: 100 * time.Millisecond, outage: 30 * time.Millisecond, delay: 20 * time.Millisecond, messages: 120, largest: 200_000}},
		{"long cuts", weather{cuts: time.Second, outage: 28 * time.Second, delay: 20 * time.Millisecond, messages: 120, largest: 200_000}},
		{"cuts of both", weather{cuts: 300 * time.Millisecond, outage: 5 * time.Second, both: true, messages: 120, largest: 200_000}},
		{"everything", weather{loss: 0.05, duplication: 0.05, delay: 50 * time.Millisecond, cuts: time.Second,
			outage: 10 * time.Second, slow: 0.05, messages: 80, largest: 300_000}},
	}
	for _, tt := range tests {
		for seed := range uint64(2) {
			t.Run(fmt.Sprint(tt.name, " ", seed), func(t *testing.T) {
				alone(t, func(t *testing.T) { simulate(t, seed, tt.weather) })
			})
		}
	}
}

func simulate(t *testing.T, seed uint64, now weather) {
	const patience = 10 * time.Minute // of the bubble: slow readers sleep for half of it
	w := newSimulation(seed, now)
	introduce(t, w.ends[0].stream, w.ends[1].stream)
	w.raging.Store(true)
	began := time.Now()
	deadline := time.AfterFunc(patience, func() {
		t.Error("no end in sight")
		for _, e := range w.ends {
			e.stream.Close()
		}
	})
	var working, cutting sync.WaitGroup
	for _, e := range w.ends {
		for i := range simWriters {
			working.Go(func() {
				e.note(e.write(i))
			})
		}
		working.Go(func() {
			if err := e.read(); err != nil {
				e.note(err)
				e.stream.Close()
				e.peer.stream.Close()
			}
		})
	}
	done := make(chan struct{})
	if now.cuts > 0 {
		cutting.Go(func() { w.rage(done) })
	}
	working.Wait()
	deadline.Stop()
	took := time.Since(began)
	close(done)
	cutting.Wait()

	// Then it is quiet, and everything is acknowledged.
	w.raging.Store(false)
	time.Sleep(time.Minute)
	for i, e := range w.ends {
		rig.Is(t, fmt.Sprint(e.stream.held()), "0 0", "end %d: bytes that are still held", i)
		e.stream.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		rig.Is(t, e.err, nil, "end %d", i)
		const mostIn = maxBacklog + patientUnreadBytes + 2*maxEarlyBytes + 4<<20 // a message in the making, and one unread beyond the limit
		rig.Is(t, e.peakIn > mostIn || e.peakOut > maxKeptBytes, false, "end %d: held %d and %d bytes, too much", i, e.peakIn, e.peakOut)
		if now == (weather{messages: now.messages, largest: now.largest}) {
			rig.Is(t, e.again, 0, "end %d: frames that were sent again for no reason", i)
		}
		t.Logf("end %d: %d frames, %d sent again, held up to %d and %d bytes, took %v",
			i, len(e.frames), e.again, e.peakIn, e.peakOut, took)
	}
	time.Sleep(time.Minute) // what is still under way
}
