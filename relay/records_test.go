package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// TestRecords are the rows of remote.md section 7.
func TestRecords(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	tests := []struct {
		name    string
		records []string
		want    []string
		err     error
	}{
		{"one message", []string{framed("{}")}, []string{"{}"}, nil},
		{"several in a record", []string{framed("a", "bc", "def")}, []string{"a", "bc", "def"}, nil},
		{"one over many", []string{framed(long)[:61440], framed(long)[61440:100_000], framed(long)[100_000:]}, []string{long}, nil},
		{"byte by byte", strings.Split(framed("ab", "c"), ""), []string{"ab", "c"}, nil},
		{"prefix split", []string{framed("ab") + framed("cd")[:3], framed("cd")[3:]}, []string{"ab", "cd"}, nil},
		{"prefix at the end", []string{framed("ab") + framed("cd")[:4], "c", "d"}, []string{"ab", "cd"}, nil},
		{"empty record", []string{"", framed("ab")[:5], "", "b", ""}, []string{"ab"}, nil},
		{"61440", []string{framed(strings.Repeat("y", 61436))}, []string{strings.Repeat("y", 61436)}, nil},
		{"61441", []string{framed(strings.Repeat("y", 61437))}, nil, errLongRecord},
		{"length 0", []string{framed("ab", "")}, []string{"ab"}, errNoLength},
		{"64 MiB", []string{"\x04\x00\x00\x00abc"}, nil, nil},
		{"64 MiB and one", []string{framed("ab") + "\x04\x00\x00\x01abc"}, []string{"ab"}, errLength},
		{"largest length", []string{"\xff\xff\xff\xff"}, nil, errLength},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRemote(t, false)
			for i, plaintext := range tt.records {
				err := r.data(uint32(i), r.record(plaintext))
				want := map[bool]error{i == len(tt.records)-1: tt.err}[true]
				rig.Is(t, err, want, "record %d", i)
			}
			for _, want := range tt.want {
				r.wantRead(want)
			}
			if tt.err != nil {
				r.wantEnd(tt.err)
				r.wantTold(tt.err)
				return
			}
			rig.Is(t, r.stream.heldIn() <= 1<<10, true, "bytes that are held: %v, at most %v", r.stream.heldIn(), 1<<10)
		})
	}
}

// TestWriteRecords: a message of n bytes is cut as the reference does.
func TestWriteRecords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		size int
		want []int
	}{
		{1, []int{5}},
		{61436, []int{61440}},
		{61437, []int{61440, 1}},
		{266_703, []int{61440, 61440, 61440, 61440, 20947}},
		{2*61440 - 4, []int{61440, 61440}},
	} {
		r := newRemote(t, false)
		message := bytes.Repeat([]byte("0123456789"), tt.size/10+1)[:tt.size]
		rig.Must(t, r.stream.Write(message))
		sent, _ := r.frames()
		var sizes []int
		var text []byte
		for i, f := range sent {
			rig.Is(t, fmt.Sprintf("%s %s", f.StreamID, summary(f)), fmt.Sprintf("%s data %d (0 0)", testStreamID, i), "frame %d", i)
			plaintext := rig.Value(r.keys.Open(f.Payload))
			sizes = append(sizes, len(plaintext))
			text = append(text, plaintext...)
		}
		rig.Same(t, fmt.Sprintf("records of %d bytes", tt.size), tt.want, sizes)
		rig.Is(t, string(text), framed(string(message)), "the message of %d bytes", tt.size)
	}
}

// TestLargestMessage: 64 MiB pass, and the room for them grows as they arrive.
func TestLargestMessage(t *testing.T) {
	t.Parallel()
	a := assembler{intake: rpc.NewIntake(nil, 0, nil)}
	prefix := binary.BigEndian.AppendUint32(nil, maxMessage)
	m, rest, err := a.next(prefix)
	rig.Is(t, fmt.Sprint(m == nil, len(rest), err), "true 0 <nil>", "next of the length")
	chunk := make([]byte, maxRecord)
	for arrived := 0; arrived < maxMessage; {
		n := min(len(chunk), maxMessage-arrived)
		arrived += n
		message, rest, err := a.next(chunk[:n])
		got := fmt.Sprint(message != nil, len(rest), err)
		rig.Is(t, got, fmt.Sprint(arrived == maxMessage, 0, nil), "next after %d bytes", arrived)
		rig.Is(t, min(a.intake.Held(), 8*arrived), a.intake.Held(), "bytes that are held after %d", arrived)
	}
}

// FuzzAssembler: however a byte stream is cut into records, the messages are
// the same, and no more is allocated than a few times what came.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte(framed("{}", "abc")), uint8(3))
	f.Add([]byte(framed("{}", "")), uint8(1))
	f.Add([]byte("\x00\x00\x00\x05ab"), uint8(2))
	f.Add([]byte("\x04\x00\x00\x01ab"), uint8(200))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		messages := func(step int) (out []string, failure error) {
			a := assembler{intake: rpc.NewIntake(nil, 0, nil)}
			for arrived := 0; arrived < len(stream); {
				n := min(step, len(stream)-arrived)
				rest := stream[arrived:][:n]
				arrived += n
				for len(rest) > 0 {
					m, after, err := a.next(rest)
					if err != nil {
						return out, err
					}
					rig.Is(t, m == nil && len(after) > 0, false, "it stops before %d bytes", len(after))
					if len(m) > 0 {
						out = append(out, string(m))
						buffer.Recycle(m)
					}
					rest = after
				}
				rig.Is(t, min(a.intake.Held(), max(8*arrived, 1<<10)), a.intake.Held(), "bytes that are held after %d", arrived)
			}
			a.drop()
			return out, nil
		}
		want, wantErr := messages(len(stream) + 1)
		got, err := messages(int(step) + 1)
		rig.Is(t, fmt.Sprintf("%q %v", got, err), fmt.Sprintf("%q %v", want, wantErr), "in steps of %d, as at once", step+1)
		rig.Is(t, wantErr != nil || strings.HasPrefix(string(stream), framed(want...)), true, "reads %q as %q", stream, want)
	})
}

// FuzzReceive: no sequence of frames makes a stream panic or hold more than its
// bounds. Each operation is four bytes.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 9, 1, 0, 1, 0, 2, 0, 3, 0})
	f.Add([]byte{0, 5, 0, 9, 0, 64, 200, 9, 3, 0, 0, 0, 4, 1, 1, 1})
	f.Add([]byte{5, 0, 0, 0, 0, 1, 0, 9, 1, 0, 1, 0, 2, 0, 3, 0, 4, 0, 0, 0, 6, 0, 0, 0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		r := newRemote(t, len(ops)%2 == 0)
		defer r.stream.Close()
		const records = 8
		var sealed [records][]byte
		for i := range sealed {
			sealed[i] = r.record(framed(strings.Repeat("m", i*7+1)))
		}
		for ; len(ops) >= 4; ops = ops[4:] {
			fr := frame.Frame{StreamID: testStreamID, Ack: uint32(ops[2] >> 4), AckBits: uint32(ops[3] >> 4)}
			switch ops[0] % 8 {
			case 0, 1:
				fr.Body, fr.Seq = frame.Data, uint32(ops[1])
				fr.Payload = slices.Clone(sealed[ops[1]%records])
			case 2:
				fr.Body, fr.Seq = frame.Data, uint32(ops[1])
				fr.Payload = bytes.Repeat(ops[1:4], 1+int(ops[2])*40)
			case 3:
				fr.Body = frame.Ack
			case 4:
				fr.Body, fr.NextSeq = frame.Resume, uint32(ops[1])
			case 5:
				_ = r.stream.Write(ops[:4]) // fails after the end
				continue
			case 6:
				if r.stream.suspend() {
					r.stream.resume(r.send)
				}
				continue
			case 7:
				fr.Body = frame.Heartbeat
			}
			_ = r.stream.receive(&fr)
			in, out := r.stream.held()
			rig.Is(t, in > 2*maxEarlyBytes+maxUnread<<10 || out > maxKeptBytes, false, "too much is held: %d and %d bytes", in, out)
		}
	})
}

// TestBudget: a stream that has no memory for a message keeps its records, as it
// does when its reader is late, and goes on when there is memory. Messages that
// were read and given back, or given up, no longer count.
func TestBudget(t *testing.T) {
	t.Parallel()
	const size = 512 << 10
	shared := rpc.NewBudget(size)
	// Somebody else's message takes all there is, and the place beyond it too.
	other := rpc.NewIntake(shared, 0, nil)
	rig.Must(t, rig.Err(other.Space(2*size, 2*size)))
	keys, peer := pairOfSessions()
	moved := make(chan progress, 1)
	var in inbound
	in.init(keys, false, rpc.NewIntake(shared, 0, nil), func(got progress) { moved <- got })
	seq := uint32(0)
	receive := func(plaintext string) progress {
		t.Helper()
		record := rig.Value(peer.Seal(nil, []byte(plaintext)))
		got := rig.Value(in.receive(seq, record, true))
		seq++
		return got
	}
	want := strings.Repeat("x", size)
	stream := framed(want, "next")
	taken := uint32(0)
	for len(stream) > 0 {
		n := min(50<<10, len(stream))
		taken = receive(stream[:n]).taken
		stream = stream[n:]
	}
	rig.Is(t, min(max(taken, 1), seq-1), taken, "records of %d that are taken with memory for small messages only", seq)
	other.Drop()
	got := <-moved
	rig.Is(t, got.taken, seq, "records that are taken with all the memory")
	for _, want := range []string{want, "next"} {
		message, _, err := in.read()
		rig.Must(t, err)
		rig.Is(t, string(message) == want, true, "%d bytes are the message of %d", len(message), len(want))
		in.assembler.intake.Recycle(message)
	}
	receive(framed(strings.Repeat("y", size))[:50<<10])
	in.end(net.ErrClosed)
	in.drop()
	_, granted := other.TrySpace(size, size)
	rig.Is(t, granted, nil, "what was read and dropped is not given back")
}

// TestCloseWaits: Close returns when the goroutine that waits for memory has ended,
// whatever that has begun by then.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	for name, granted := range map[string]bool{"without memory": false, "with memory": true} {
		subtest(t, name, func(t *testing.T) {
			const size = 512 << 10
			shared := rpc.NewBudget(size)
			other := rpc.NewIntake(shared, 0, nil)
			rig.Must(t, rig.Err(other.Space(2*size, 2*size)))
			keys, peer := pairOfSessions()
			release := make(chan struct{})
			var in inbound
			in.init(keys, false, rpc.NewIntake(shared, 0, nil), func(progress) { <-release })
			rest := framed(strings.Repeat("x", size))
			for seq := uint32(0); len(rest) > 0; seq++ {
				n := min(50<<10, len(rest))
				record := rig.Value(peer.Seal(nil, []byte(rest[:n])))
				rig.Must(t, rig.Err(in.receive(seq, record, true)))
				rest = rest[n:]
			}
			rig.Is(t, in.waits, true, "it waits for memory")
			if granted {
				other.Drop()
				synctest.Wait()
			}
			closed := make(chan struct{})
			go func() {
				in.close(net.ErrClosed)
				close(closed)
			}()
			synctest.Wait()
			select {
			case <-closed:
				rig.Is(t, granted, false, "closed while a goroutine of its runs")
			default:
				rig.Is(t, granted, true, "closed when nobody gives memory")
			}
			close(release)
			<-closed
		})
	}
}

// sender is a peer that does as it likes.
type sender struct {
	t    *testing.T
	keys *noise.Session
	to   *stream
	seq  uint32
}

// newSender returns a sender to a stream that is made from cfg.
func newSender(t *testing.T, cfg streamConfig) *sender {
	keys, theirs := pairOfSessions()
	cfg.id, cfg.session = testStreamID, theirs
	if cfg.ended == nil {
		cfg.ended = func(*stream, error) {}
	}
	return &sender{t: t, keys: keys, to: newStream(cfg)}
}

// send sends n bytes of a message of length bytes in records.
func (s *sender) send(length, n int) {
	s.t.Helper()
	const size = 60_000
	for sent := 0; sent < n; sent += size {
		m := rig.Value(sealRecord(s.keys, frame.DataHeader{StreamID: testStreamID, Seq: s.seq}, length, make([]byte, min(size, n-sent))))
		length = 0
		s.seq++
		var f frame.Frame
		rig.Must(s.t, frame.Decode(m.Bytes, &f))
		_ = s.to.receive(&f)
		m.Release()
	}
}

// TestEndedHalfOfMessage: a stream that has ended holds nothing of a message whose
// rest does not come, read or not.
func TestEndedHalfOfMessage(t *testing.T) {
	t.Parallel()
	budget := rpc.NewBudget(16 << 20)
	first := newSender(t, streamConfig{budget: budget})
	first.send(64<<20, 40<<20) // beyond the limit
	first.to.end(nil)
	second := newSender(t, streamConfig{budget: budget})
	second.send(100_000, 100_000)
	rig.Is(t, len(rig.Value(second.to.Read())), 100_000, "bytes of another stream")
	_, _ = first.to.Close(), second.to.Close()
}

// TestEndWhileWaitingForMemory: the end of a stream is read at once, though a message
// before it waits for memory.
func TestEndWhileWaitingForMemory(t *testing.T) {
	t.Parallel()
	budget := rpc.NewBudget(16 << 20)
	first := newSender(t, streamConfig{budget: budget})
	first.send(64<<20, 40<<20)
	second := newSender(t, streamConfig{budget: budget})
	second.send(10, 10)
	second.send(100_000, 100_000)
	second.to.end(nil)
	rig.Is(t, len(rig.Value(second.to.Read())), 10, "bytes that had arrived")
	rig.Is(t, rig.Err(second.to.Read()), io.EOF, "Read at the end")
	_, _ = first.to.Close(), second.to.Close()
}

// TestReserveOfImpatientInput: records that wait in streams whose peers do not
// acknowledge take no more than the reserve of all of them; beyond it streams end.
func TestReserveOfImpatientInput(t *testing.T) {
	t.Parallel()
	budget := rpc.NewBudget(4 << 20)
	waiting := &reserve{limit: 1 << 20}
	var senders []*sender
	for range 20 { // the first ones take the budget
		s := newSender(t, streamConfig{budget: budget, waitingReserve: waiting})
		s.send(60<<20, 7<<20)
		senders = append(senders, s)
	}
	rig.Is(t, waiting.used.Load() <= waiting.limit, true, "bytes held beyond what each stream may: %v, at most %v", waiting.used.Load(), waiting.limit)
	for _, s := range senders {
		_ = s.to.Close()
	}
	rig.Is(t, waiting.used.Load(), 0, "bytes are not given back")
}

// TestRevokedBesideFullOrder: the Peer of a stream hears that the stream was
// revoked although it has stopped reading, since too many requests wait.
func TestRevokedBesideFullOrder(t *testing.T) {
	alone(t, func(t *testing.T) {
		harness, executor := joined(t, func(cfg *streamConfig) { cfg.budget = rpc.NewBudget(16 << 20) })
		closing := make(chan error, 1)
		peer := rpc.NewPeer(executor, rpc.Config{
			Table: rpc.Table{"wait": {Order: rpc.Order{Queue: rpc.InQueue("one")}, Handle: func(ctx context.Context, _ json.RawMessage) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}},
			Closing: func(err error) { closing <- err },
		})
		var ends sync.WaitGroup
		ends.Go(func() { _ = peer.Serve(t.Context()) })
		request := []byte(`{"id":1,"method":"wait","params":{}` + strings.Repeat(" ", 60<<10) + `}`)
		ends.Go(func() {
			for harness.Write(request) == nil {
			}
		})
		synctest.Wait()
		rig.Is(t, executor.heldIn() >= patientUnreadBytes, true, "bytes that are unread: %v, at least %v", executor.heldIn(), patientUnreadBytes)
		executor.revoke()
		rig.Is(t, <-closing, rpc.ErrRevoked, "its end")
		_ = harness.Close()
		ends.Wait()
	})
}
