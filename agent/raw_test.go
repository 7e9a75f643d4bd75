package agent

import (
	"encoding/json"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rawclient"
	testrig "github.com/execagent/execagent/test/rig"
)

// raw is a client that sends messages without waiting for their answers. Its
// methods fail the test on an error.
type raw struct {
	*rawclient.Client
	t *testing.T
}

func (r *rig) raw(t *testing.T) *raw {
	conn, _ := r.dial()
	c := r.rawOn(t, conn)
	c.send(`{"id":"i","method":"initialize","params":{"clientName":"raw"}}`)
	c.next()
	c.send(`{"method":"initialized"}`)
	return c
}

// rawOn returns a client before its handshake.
func (r *rig) rawOn(t *testing.T, conn rpc.Conn) *raw { return &raw{rawclient.New(conn), t} }

func (c *raw) send(format string, args ...any) {
	c.t.Helper()
	c.Sendf(c.t, format, args...)
}

func (c *raw) call(id any, method string, params object) {
	c.t.Helper()
	data, err := json.Marshal(object{"id": id, "method": method, "params": params})
	testrig.Check(c.t, err)
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
	text := c.Next(c.t)
	var m message
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		c.t.Fatalf("%s: %v", text, err)
	}
	return m
}
