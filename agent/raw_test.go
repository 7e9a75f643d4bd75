package agent

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/execagent/execagent/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// raw is a client that sends without waiting for answers.
type raw struct {
	t        *testing.T
	conn     rpc.Conn
	messages <-chan string
}

func (r *rig) raw(t *testing.T) *raw {
	conn, _ := r.dial()
	c := &raw{t, conn, drain(conn)}
	c.send(`{"id":"i","method":"initialize","params":{"clientName":"raw"}}`)
	c.next()
	c.send(`{"method":"initialized"}`)
	return c
}

func (c *raw) send(format string, args ...any) {
	c.t.Helper()
	if err := c.conn.Write(fmt.Appendf(nil, format, args...)); err != nil {
		c.t.Fatalf("sending %s: %v", format, err)
	}
}

func (c *raw) call(id any, method string, params object) {
	c.t.Helper()
	data, err := json.Marshal(object{"id": id, "method": method, "params": params})
	if err != nil {
		c.t.Fatal(err)
	}
	c.send("%s", data)
}

// message has the members of any message of the server.
type message struct {
	ID     any
	Method string
	Error  *protocol.Error
	Result json.RawMessage
	Params struct {
		ProcessID string
		Seq       uint64
		Chunk     []byte
	}
}

func (c *raw) next() message {
	c.t.Helper()
	select {
	case text, ok := <-c.messages:
		if !ok {
			c.t.Fatal("the connection has ended")
		}
		var m message
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			c.t.Fatalf("%s: %v", text, err)
		}
		return m
	case <-time.After(patience):
		c.t.Fatalf("the server said nothing for %s", patience)
	}
	return message{}
}

// drain reads raw messages of a connection until it ends.
func drain(conn rpc.Conn) <-chan string {
	messages := make(chan string, 4096) // more than any test sends
	go func() {
		defer close(messages)
		for {
			data, err := conn.Read()
			if err != nil {
				return
			}
			messages <- string(data)
			buffer.Recycle(data)
		}
	}()
	return messages
}
