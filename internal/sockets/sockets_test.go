package sockets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/internal/unixsocket"
	"github.com/execagent/execagent/test/rig"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// harness is a set, and the other ends of its sockets.
type harness struct {
	t      testing.TB
	budget *Budget
	set    *Set
}

func newHarness(t testing.TB, budget int64) *harness {
	r := &harness{t: t, budget: NewBudget(budget)}
	r.set = NewSet(r.budget, "")
	t.Cleanup(func() {
		r.set.CloseAll()
		rig.Is(t, r.budget.Bytes.Used(), 0, "bytes that are left")
		rig.Is(t, r.budget.Open(), 0, "sockets that are left")
	})
	return r
}

func noWait() error { return nil }

// open makes a socket, and returns its other end.
func (r *harness) open(id string, window uint64) (*Socket, *net.TCPConn) {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	rig.Must(r.t, err)
	defer l.Close()
	s, err := r.set.Open(r.t.Context(), id, window, func(ctx context.Context) (Conn, error) {
		return Dial(ctx, Address{"tcp", l.Addr().String()})
	}, noWait)
	rig.Must(r.t, err)
	conn, err := l.Accept()
	rig.Must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return s, conn.(*net.TCPConn)
}

// sink keeps what it is told.
type sink struct {
	mu      sync.Mutex
	changed sync.Cond
	bytes   []byte
	from    uint64
	end     error
	err     error // what it returns
}

func newSink(from uint64) *sink {
	s := &sink{from: from}
	s.changed.L = &s.mu
	return s
}

func (s *sink) take(d Data) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Broadcast()
	if s.err != nil {
		return s.err
	}
	if d.Offset != s.from+uint64(len(s.bytes)) {
		s.end = errors.New("bytes are not in their order")
	}
	s.bytes = append(s.bytes, d.Bytes...)
	if s.end == nil {
		s.end = d.End
	}
	return nil
}

// await waits for n bytes, or the end.
func (s *sink) await(t testing.TB, n int) []byte {
	t.Helper()
	timer := time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.end = errors.New("too late")
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.bytes) < n && s.end == nil {
		s.changed.Wait()
	}
	if len(s.bytes) < n {
		t.Fatalf("%d bytes of %d have come, then %v", len(s.bytes), n, s.end)
	}
	return bytes.Clone(s.bytes)
}

// TestWindow: no more than the window is told without an acknowledgement, and none of it is lost.
func TestWindow(t *testing.T) {
	t.Parallel()
	for _, window := range []uint64{1, 1000, pieceSize, pieceSize + 1, 1 << 20} {
		r := newHarness(t, DefaultBudget)
		s, conn := r.open("s", window)
		sent := make([]byte, 3*window+5)
		random := rand.NewChaCha8([32]byte{1})
		_, _ = random.Read(sent)
		var writing sync.WaitGroup
		writing.Go(func() {
			_, _ = conn.Write(sent)
			_ = conn.CloseWrite()
		})
		got := newSink(0)
		s.Tell(0, got.take)
		for n := 0; n < len(sent); {
			n = min(n+int(window), len(sent))
			rig.Is(t, len(got.await(t, n)), n, "window %d: bytes that were told", window)
			rig.Must(t, s.Ack(uint64(n)))
		}
		writing.Wait()
		rig.Is(t, bytes.Equal(got.await(t, len(sent)), sent), true, "window %d: what has come was sent", window)
		rig.Is(t, got.awaitEnd(t), io.EOF, "window %d: the end", window)
	}
}

// awaitEnd waits until nothing more comes, and returns why.
func (s *sink) awaitEnd(t testing.TB) error {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.end == nil {
		s.changed.Wait() // the socket is closed at the end of the test
	}
	return s.end
}

// TestBudget: where all memory is used up, each socket still goes on.
func TestBudget(t *testing.T) {
	t.Parallel()
	const n = 100_000
	r := newHarness(t, pieceSize) // for one of them
	var trips sync.WaitGroup
	for _, id := range []string{"a", "b", "c", "d"} {
		s, conn := r.open(id, 1<<20)
		trips.Go(func() {
			_, _ = conn.Write(make([]byte, n))
			_ = conn.CloseWrite()
		})
		trips.Go(func() {
			got := newSink(0)
			s.Tell(0, got.take)
			for have := 0; have < n; {
				have = len(got.await(t, have+1))
				rig.Check(t, s.Ack(uint64(have)))
			}
		})
	}
	trips.Wait()
	rig.Is(t, r.budget.Bytes.Used(), 0, "bytes are held for sockets whose bytes are all acknowledged")
}

// TestRewind: random cuts, after which the client says what it has. Each byte comes once.
func TestRewind(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	s, conn := r.open("s", 200_000)
	const n = 3_000_000
	sent := sha256.New()
	var writing sync.WaitGroup
	writing.Go(func() {
		random := rand.NewChaCha8([32]byte{2})
		for left := n; left > 0; {
			b := make([]byte, min(left, 1+int(random.Uint64()%9000)))
			_, _ = random.Read(b)
			sent.Write(b)
			if _, err := conn.Write(b); err != nil {
				t.Error(err)
				return
			}
			left -= len(b)
		}
		_ = conn.CloseWrite()
	})
	came := sha256.New()
	random := rand.New(rand.NewPCG(3, 4))
	var have uint64
	turn, acked := 0, uint64(0)
	for have < n {
		got := newSink(have)
		s.Tell(turn, got.take)
		part := got.await(t, min(n-int(have), 1+random.IntN(100_000)))
		// Some of what was told has not arrived.
		part = part[:len(part)-random.IntN(len(part)/2+1)]
		came.Write(part)
		have += uint64(len(part))
		if acked = max(acked, have-min(have, uint64(random.IntN(50_000)))); random.IntN(2) == 0 {
			rig.Must(t, s.Ack(acked))
		}
		got.mu.Lock()
		got.err = errors.New("cut")
		got.mu.Unlock()
		var err error
		turn, _, err = s.Rewind(t.Context(), have)
		rig.Must(t, err)
		rig.Must(t, s.Ack(acked))
	}
	writing.Wait()
	rig.Is(t, string(came.Sum(nil)), string(sent.Sum(nil)), "the sum of what has come")
	for _, wrong := range []uint64{have - 1, have + 1} {
		_, _, err := s.Rewind(t.Context(), wrong)
		_, ok := errors.AsType[*ReceivedError](err)
		rig.Is(t, ok, true, "received %d of %d: %v is a ReceivedError", wrong, have, err)
	}
	_, ok := errors.AsType[*ReceivedError](s.Ack(n + 1))
	rig.Is(t, ok, true, "what was not sent cannot be acknowledged")
}

// TestAckOfLastTurn: bytes were on their way to the client when it said that it has none. It has them
// before the next turn tells them, acknowledges them, and is told what comes behind them.
func TestAckOfLastTurn(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	s, conn := r.open("s", 1000)
	late := newSink(0)
	s.Tell(0, late.take)
	rig.Must(t, rig.Err(conn.Write([]byte("early"))))
	late.await(t, 5)
	turn, _, err := s.Rewind(t.Context(), 0)
	rig.Must(t, err, s.Ack(5))
	now := newSink(5)
	s.Tell(turn, now.take)
	rig.Must(t, rig.Err(conn.Write([]byte("then"))))
	rig.Is(t, string(now.await(t, 4)), "then", "what is told")
}

// TestTurns: who was told of an earlier turn is told nothing any more.
func TestTurns(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	s, conn := r.open("s", 1000)
	turn, _, err := s.Rewind(t.Context(), 0)
	rig.Must(t, err)
	late, now := newSink(0), newSink(0)
	s.Tell(turn, now.take)
	s.Tell(turn-1, late.take)
	_, err = conn.Write([]byte("x"))
	rig.Must(t, err)
	now.await(t, 1)
	rig.Is(t, len(late.bytes), 0, "the earlier one was told")
}

// TestWrite: offsets make repeats harmless; a gap, and bytes behind the end, are refused.
func TestWrite(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	s, conn := r.open("s", 1000)
	write := func(offset uint64, text string, eof bool, want uint64) {
		t.Helper()
		rig.Is(t, rig.Value(s.Write(t.Context(), offset, []byte(text), eof, noWait)), want, "bytes that are written")
	}
	write(0, "one", false, 3)
	write(0, "one", false, 3)
	write(1, "ne two", false, 7)
	write(2, "e", false, 7)
	write(7, "", false, 7)
	for _, offset := range []uint64{8, 1 << 63, 1<<64 - 1} {
		_, err := s.Write(t.Context(), offset, []byte("x"), false, noWait)
		_, ok := errors.AsType[*GapError](err)
		rig.Is(t, ok, true, "at %d: %v is a GapError", offset, err)
	}
	write(7, "!", true, 8)
	write(7, "!", true, 8)
	write(8, "", true, 8)
	rig.Is(t, rig.Err(s.Write(t.Context(), 8, []byte("x"), false, noWait)), ErrInputEnded, "behind the end")
	rig.Is(t, string(rig.Value(io.ReadAll(conn))), "one two!", "what has come")
}

// TestWriteWaits: a write whose other end does not read waits, ends with its context, and what
// was passed on by then is counted exactly.
func TestWriteWaits(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	s, conn := r.open("s", 1000)
	sent := make([]byte, 30<<20)
	random := rand.NewChaCha8([32]byte{5})
	_, _ = random.Read(sent)
	var came bytes.Buffer
	var reading sync.WaitGroup
	for done := uint64(0); done < uint64(len(sent)); {
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan struct{})
		result := make(chan error, 1)
		go func() {
			_, err := s.Write(ctx, done, sent[done:], false, func() error { close(waiting); return nil })
			result <- err
		}()
		var err error
		select {
		case <-waiting:
			cancel()
			err = <-result
		case err = <-result:
		}
		rig.Is(t, err == nil || errors.Is(err, context.Canceled), true, "%v: it is only cancelled", err)
		cancel()
		turn, written, err := s.Rewind(t.Context(), 0)
		rig.Must(t, err)
		rig.Is(t, written >= done && turn != 0, true, "%d bytes are written, after %d, in turn %d", written, done, turn)
		done = written
		// It reads what is there, and a little more of what comes.
		reading.Go(func() { _, _ = io.CopyN(&came, conn, int64(done)-int64(came.Len())) })
		reading.Wait()
	}
	rig.Is(t, bytes.Equal(came.Bytes(), sent), true, "%d bytes have come, which are those", came.Len())
	refused := errors.New("no more may wait")
	fill := func() error { return refused }
	var err error
	for offset := uint64(len(sent)); err == nil; {
		offset, err = s.Write(t.Context(), offset, make([]byte, 1<<20), false, fill)
	}
	rig.Is(t, err, refused, "a write that may not wait")
}

// TestErrors: the errors of the system come to both sides, and stay.
func TestErrors(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	s, conn := r.open("s", 1000)
	rig.Must(t, conn.SetLinger(0))
	rig.Must(t, conn.Close())
	got := newSink(0)
	s.Tell(0, got.take)
	rig.Is[error](t, got.awaitEnd(t), unix.ECONNRESET, "reading")
	for range 2 {
		rig.Is[error](t, rig.Err(s.Write(t.Context(), 0, []byte("x"), false, noWait)), unix.EPIPE, "writing")
	}
	for name, address := range map[string]Address{"ECONNREFUSED": {"tcp", conn.LocalAddr().String()}, "ENOENT": {"unix", "/nowhere/at/all"}} {
		_, err := r.set.Open(t.Context(), "other", 1, func(ctx context.Context) (Conn, error) { return Dial(ctx, address) }, noWait)
		var errno unix.Errno
		if !errors.As(err, &errno) || unix.ErrnoName(errno) != name {
			t.Errorf("%v: %v", address, err)
		}
	}
}

// blockedDial is a dial that ends with its context.
func blockedDial(ctx context.Context) (Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestOpening: an id is taken from the first moment on; who asks for it waits; closing it ends
// the dial; an end of the caller does not.
func TestOpening(t *testing.T) {
	t.Parallel()
	r := newHarness(t, DefaultBudget)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := r.set.Open(ctx, "s", 1, blockedDial, func() error { cancel(); return nil })
	rig.Is(t, err, context.Canceled, "")
	rig.Is(t, rig.Err(r.set.Open(t.Context(), "s", 1, blockedDial, noWait)), ErrExists, "a second one")
	asked := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		_, err := r.set.Get(t.Context(), "s", func() error { close(waiting); return nil })
		asked <- err
	}()
	<-waiting
	r.set.Close("s")
	rig.Is(t, <-asked, ErrUnknown, "of one that was closed")
	rig.Is(t, rig.Err(r.set.Open(ctx, "s", 1, blockedDial, noWait)), context.Canceled, "a caller that has gone")
	// Closed from within wait, as a request does that passes the one that opens.
	_, err = r.set.Open(t.Context(), "s", 1, blockedDial, func() error { r.set.Close("s"); return nil })
	rig.Is(t, err, ErrClosed, "closed while it is opened")
	refused := errors.New("no more may wait")
	_, err = r.set.Open(t.Context(), "s", 1, blockedDial, func() error { return refused })
	rig.Is(t, err, refused, "one that may not wait")
	go func() {
		_, _ = r.set.Open(t.Context(), "t", 1, blockedDial, noWait)
	}()
	r.set.CloseAll()
	rig.Is(t, rig.Err(r.set.Open(t.Context(), "s", 1, blockedDial, noWait)), ErrClosed, "after CloseAll")
}

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Address{
		"tcp://localhost:80":     {"tcp", "localhost:80"},
		"tcp://[::1]:65535":      {"tcp", "[::1]:65535"},
		"tcp://[fe80::1%eth0]:1": {"tcp", "[fe80::1%eth0]:1"},
		"unix:///run/a b%20.s":   {"unix", "/run/a b%20.s"},
		"unix:///" + strings.Repeat("x", unixsocket.MaxPath-1): {"unix", "/" + strings.Repeat("x", unixsocket.MaxPath-1)},
	} {
		got := rig.Value(ParseAddress(text))
		rig.Is(t, got, want, "%s", text)
		rig.Is(t, got.String(), text, "written again")
	}
	for _, text := range []string{
		"", "localhost:80", "udp://localhost:80", "TCP://localhost:80", "tcp:localhost:80", "tcp://", "tcp://:80", "tcp://localhost",
		"tcp://localhost:", "tcp://localhost:0", "tcp://localhost:65536", "tcp://localhost:-1", "tcp://localhost:http", "tcp://localhost:80/x",
		"tcp://user@localhost:80", "tcp://a b:80", "tcp://a\n:80", "tcp://é:80", "tcp://" + strings.Repeat("x", maxHost+1) + ":80",
		"unix://", "unix://relative", "unix:///a\x00b", "unix://@abstract", "unix:///" + strings.Repeat("x", unixsocket.MaxPath),
	} {
		rig.Is(t, rig.Err(ParseAddress(text)) != nil, true, "%q is refused", text)
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add("tcp://[::1]:80")
	f.Add("unix:///run/x")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddress(text)
		rig.Is(t, err != nil || a.String() == text && !strings.ContainsRune(a.Target, 0), true, "%q is %+v", text, a)
	})
}
