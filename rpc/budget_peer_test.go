package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/protocol"
)

// metered is a Conn whose messages take from a budget.
type metered struct {
	Conn
	in *Intake
}

func (c *metered) Read() ([]byte, error) {
	if err := c.in.Begin(); err != nil {
		return nil, err
	}
	message, err := c.Conn.Read()
	if err != nil {
		return nil, err
	}
	defer Recycle(message)
	for r := bytes.NewReader(message); r.Len() > 0; {
		space, err := c.in.Space(r.Len(), testMost)
		if err != nil {
			return nil, err
		}
		n, _ := r.Read(space)
		c.in.Filled(n)
	}
	return c.in.Message(), nil
}

func (c *metered) Budget() *Budget { return c.in.Budget() }

func (c *metered) Close() error {
	c.in.Close()
	return c.Conn.Close()
}

// meteredPeer serves the methods wait, which waits for its turn to end, block,
// which holds its queue meanwhile, and pass, all in one queue. It returns the
// client's end and what lets the handlers end.
func meteredPeer(t *testing.T, b *Budget) (client Conn, end chan struct{}) {
	client, theirs := Pipe()
	end = make(chan struct{})
	handler := func(block bool) Handler {
		return func(ctx context.Context, params json.RawMessage) (any, error) {
			if block {
				if err := Block(ctx); err != nil {
					return nil, err
				}
			}
			<-end
			return json.RawMessage(fmt.Sprint(len(params))), nil
		}
	}
	one := Order{Queue: InQueue("one")}
	p := NewPeer(&metered{theirs, NewIntake(b, 0, nil)}, Config{Table: Table{
		"wait":  {Handle: handler(false), Order: one},
		"block": {Handle: handler(true), Order: one},
	}})
	done := make(chan error, 1)
	go func() { done <- p.Serve(t.Context()) }()
	t.Cleanup(func() {
		_ = client.Close()
		if err := <-done; err != nil && err != io.ErrClosedPipe {
			t.Errorf("Serve: %v", err)
		}
		if b.large.used != 0 || b.small.used != 0 || b.large.suspended != 0 || b.small.suspended != 0 {
			t.Errorf("not given back: %+v, %+v", b.large, b.small)
		}
	})
	return client, end
}

// send sends a request of about so many bytes.
func send(t *testing.T, c Conn, id int, method string, size int) {
	t.Helper()
	if err := c.Write(fmt.Appendf(nil, `{"id":%d,"method":%q,"params":{"p":%q}}`, id, method, strings.Repeat("x", size))); err != nil {
		t.Fatal(err)
	}
}

// TestServedRequestIsGivenBack: what a large request takes is given back when
// it has been served, however long its client takes to read the answer.
func TestServedRequestIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		client, end := meteredPeer(t, b)
		send(t, client, 1, "wait", 1<<20)
		synctest.Wait()
		if b.used() < 1<<20 {
			t.Errorf("%d bytes count while the request is served", b.used())
		}
		close(end)
		synctest.Wait() // the answer is being written
		if used := b.used(); used != 0 {
			t.Errorf("%d bytes count for a request that has been served", used)
		}
		if _, err := client.Read(); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitingRequestWithoutMemory: of large requests behind one that is blocked
// the first may wait, and the others are refused, those too that came before it
// was blocked.
func TestWaitingRequestWithoutMemory(t *testing.T) {
	t.Parallel()
	const large = ownSuspended + 1<<20
	for _, behind := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := NewBudget(1 << 20)
			// Another connection's request waits.
			if !b.suspend(1<<20, 0) {
				t.Fatal("no memory at all")
			}
			defer b.give(1<<20, true)
			b.large.used += 1 << 20 // suspend takes it from there
			client, end := meteredPeer(t, b)
			refused := 2
			if behind { // they are parked first
				send(t, client, 1, "wait", 1)
				send(t, client, 2, "block", 1)
				send(t, client, 3, "wait", large)
				synctest.Wait()
				end <- struct{}{} // of the first; the second blocks now
				refused = 3
				if _, err := client.Read(); err != nil {
					t.Fatal(err)
				}
			} else {
				send(t, client, 1, "block", 1)
				synctest.Wait()
				send(t, client, 2, "wait", large)
			}
			answer, err := client.Read()
			if err != nil {
				t.Fatal(err)
			}
			m, err := protocol.Decode(answer)
			if err != nil {
				t.Fatal(err)
			}
			if m.ID != protocol.NumberID(int64(refused)) || m.Kind != protocol.KindError || m.Error.Code != protocol.CodeInvalidRequest {
				t.Errorf("answer %s, want that %d is refused", answer, refused)
			}
			close(end)
			if _, err := client.Read(); err != nil {
				t.Error(err)
			}
		})
	}
}
