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

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
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
	defer buffer.Recycle(message)
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

func (c *metered) Intake() *Intake { return c.in }

func (c *metered) Close() error {
	c.in.Close()
	return c.Conn.Close()
}

// meteredPeer serves a method, wait, whose handler runs until it gets an element
// from end. meteredPeer returns the client's end of the connection, and end.
func meteredPeer(t *testing.T, b *Budget) (client Conn, end chan struct{}) {
	client, theirs := Pipe()
	end = make(chan struct{})
	p := NewPeer(&metered{theirs, NewIntake(b, 0, nil)}, Config{Table: Table{"wait": {Handle: func(context.Context, json.RawMessage) (any, error) {
		<-end
		return protocol.Empty{}, nil
	}}}})
	done := make(chan error, 1)
	go func() { done <- p.Serve(context.WithoutCancel(t.Context())) }() // it is the client who ends it
	t.Cleanup(func() {
		_ = client.Close()
		if err := <-done; err != nil && err != io.ErrClosedPipe {
			t.Errorf("Serve: %v", err)
		}
		rig.Is(t, b.idle(), true, "given back: %+v, %+v", b.large, b.small)
	})
	return client, end
}

// send sends a request of about so many bytes.
func send(t *testing.T, c Conn, id int, method string, size int) {
	t.Helper()
	rig.Must(t, c.Write(fmt.Appendf(nil, `{"id":%d,"method":%q,"params":{"p":%q}}`, id, method, strings.Repeat("x", size))))
}

// TestServedRequestIsGivenBack: what a request takes is given back when it has
// been served, however long its client takes to read the answer.
func TestServedRequestIsGivenBack(t *testing.T) {
	t.Parallel()
	for _, size := range []int{8 << 10, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			b := NewBudget(1 << 20)
			client, end := meteredPeer(t, b)
			send(t, client, 1, "wait", size)
			synctest.Wait()
			used := b.account(size).used
			rig.Is(t, max(used, int64(size)), used, "bytes that count while a request is served, at least")
			close(end)
			synctest.Wait() // the answer is being written
			rig.Is(t, b.account(size).used, 0, "bytes that count for a request of %d that has been served", size)
			rig.Check(t, rig.Err(client.Read()))
		})
	}
}

// TestReadParamsAreGivenBack: when params have been read that hold nothing of their
// message, its memory is given back; that of other requests is kept.
func TestReadParamsAreGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		client, theirs := Pipe()
		end := make(chan struct{})
		p := NewPeer(&metered{theirs, NewIntake(b, 0, nil)}, Config{Table: Table{
			"light": {Handle: Handle(func(context.Context, protocol.HandleParams) (protocol.Empty, error) {
				<-end
				return protocol.Empty{}, nil
			})},
			"heavy": {Handle: Handle(func(_ context.Context, p protocol.WriteBlockParams) (protocol.Empty, error) {
				<-end
				rig.Is(t, string(p.Chunk), "abc", "chunk")
				return protocol.Empty{}, nil
			})},
		}})
		done := make(chan error, 1)
		go func() { done <- p.Serve(t.Context()) }()
		for i, tt := range []struct {
			method string
			holds  bool
		}{{"light", false}, {"heavy", true}} {
			const size = 1 << 20
			rig.Must(t, client.Write(fmt.Appendf(nil, `{"id":%d,"method":%q,"params":{"handleId":"h","offset":0,"chunk":"YWJj"%s}}`,
				i, tt.method, strings.Repeat(" ", size))))
			synctest.Wait()
			rig.Is(t, b.used() >= size, tt.holds, "%s: the message counts while it is served", tt.method)
		}
		close(end)
		for range 2 {
			answer := rig.Value(client.Read())
			rig.Is(t, bytes.Contains(answer, []byte("error")), false, "%s is an error", answer)
		}
		_ = client.Close()
		<-done
		rig.Is(t, b.idle(), true, "given back: %+v, %+v", b.large, b.small)
	})
}

// TestEndBesideFullOrder: a peer that has stopped reading, since too many requests
// wait for one that takes long, hears of the end of its connection all the same.
func TestEndBesideFullOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, theirs := Pipe()
		conn := &metered{theirs, NewIntake(NewBudget(1<<20), 0, nil)}
		closing := make(chan error, 1)
		p := NewPeer(conn, Config{
			Table: Table{"wait": {Order: Order{Queue: InQueue("one")}, Handle: func(ctx context.Context, _ json.RawMessage) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}},
			Closing: func(err error) { closing <- err },
		})
		done := make(chan error, 1)
		go func() { done <- p.Serve(t.Context()) }()
		writing := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 2*maxParked && err == nil; i++ {
				err = client.Write(fmt.Appendf(nil, `{"id":%d,"method":"wait","params":{}}`, i))
			}
			writing <- err
		}()
		synctest.Wait()
		rig.Is(t, len(writing), 0, "everything was read")
		_ = conn.Close() // as one that was reset is
		rig.Is(t, <-closing == nil, false, "there is no reason")
		<-done
		_ = client.Close()
		<-writing
	})
}
