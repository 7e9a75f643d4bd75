package transport

import (
	"bytes"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// TestBudgetOfManyConnections sends messages over many connections that together
// are far above their budget: all arrive, one after the other, and small ones
// arrive meanwhile.
func TestBudgetOfManyConnections(t *testing.T) {
	t.Parallel()
	const size = 6 << 20
	budget := rpc.NewBudget(1 << 20)
	l := listen(t, Config{Budget: budget})
	message := bytes.Repeat([]byte("x"), size)
	var clients sync.WaitGroup
	for range 8 {
		client := dialTo(t, l, DialConfig{})
		server := accept(t, l)
		clients.Go(func() { rig.Check(t, client.Write([]byte("{}")), client.Write(message)) })
		clients.Go(func() {
			for _, want := range []int{2, size} {
				got, err := server.Read()
				if err != nil || len(got) != want {
					t.Errorf("Read: %d bytes, %v; want %d", len(got), err, want)
					return
				}
				rpc.IntakeOf(server).Recycle(got)
			}
		})
	}
	clients.Wait()
}

// TestWebSocketDropsAPeerThatStopsInAMessage: a peer that sends only pongs instead
// of the rest of its message is dropped, since others may wait for the memory.
func TestWebSocketDropsAPeerThatStopsInAMessage(t *testing.T) {
	t.Parallel()
	budget := rpc.NewBudget(1 << 20)
	p, server := rawPair(t, Config{PingInterval: 10 * time.Millisecond, PeerTimeout: time.Second, Budget: budget})
	p.Send(t, rawclient.Frame(0x01, make([]byte, 2<<20)))
	done := readAsync(server)
	for _, _, err := p.Next(); err == nil; _, _, err = p.Next() { // a ping
		_, _ = p.Write(rawclient.Frame(0x8a, nil))
	}
	rig.Is(t, <-done, os.ErrDeadlineExceeded, "Read")
	// The memory that it held is free.
	in := rpc.NewIntake(budget, 0, nil)
	defer in.Close()
	for range 2 {
		if _, granted := in.TrySpace(1<<20, maxMessage); granted != nil {
			t.Fatal("the memory of the message was not given back")
		}
		in.Drop()
	}
}

// TestCloseUnblocksAReadWithoutMemory closes connections whose message waits
// for memory that nobody gives back.
func TestCloseUnblocksAReadWithoutMemory(t *testing.T) {
	t.Parallel()
	budget := rpc.NewBudget(1 << 20)
	for range 2 {
		in := rpc.NewIntake(budget, 0, nil)
		if _, granted := in.TrySpace(2<<20, maxMessage); granted != nil {
			break // this one waits: the first has the place beyond the limit
		}
	}
	line := strings.Repeat("x", 1<<20) + "\n"
	in, out := io.Pipe()
	defer out.Close()
	lines := Stdio(in, nopWriteCloser{io.Discard}, budget)
	go io.WriteString(out, line)
	p, server := rawPair(t, Config{Budget: budget})
	go p.Write(rawclient.Frame(0x81, []byte(line)))
	for _, conn := range []rpc.Conn{lines, server} {
		done := readAsync(conn)
		rig.Check(t, conn.Close())
		rig.Is(t, <-done, net.ErrClosed, "%v: Read", conn)
	}
}

// TestReadAllGrowsForBytesOnly: a message that fills its buffer exactly does
// not get a larger one.
func TestReadAllGrowsForBytesOnly(t *testing.T) {
	t.Parallel()
	for _, size := range []int{firstBuffer, 5 << 20, 5<<20 + 1} {
		want := bytes.Repeat([]byte("x"), size)
		got := rig.Value(readAll(rpc.NewIntake(nil, 0, nil), bytes.NewReader(want), 5<<20))
		rig.Is(t, bytes.Equal(got, want), true, "%d bytes are those of the message", len(got))
		if size <= 5<<20 {
			rig.Is(t, max(cap(got), 8<<20), 8<<20, "room for %d bytes, at most", size)
		}
	}
}

// TestPartsOfAnotherSize: a message that is not as long as its writer had said ends
// the connection, since the peer has been told the length.
func TestPartsOfAnotherSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{99_999, 100_001} {
		p, server := rawPair(t, Config{})
		readAsync(server)
		go io.Copy(io.Discard, p)
		parts := slices.Values([][]byte{make([]byte, 60_000), make([]byte, 40_000)})
		rig.Is(t, server.WriteParts(size, parts) == nil, false, "100,000 bytes were written as %d", size)
		rig.Is(t, server.Write([]byte("{}")), net.ErrClosed, "Write behind it")
	}
}
