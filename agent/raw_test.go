package agent

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// raw is a client that sends messages without waiting for their answers. Its
// methods fail the test on an error.
type raw struct {
	*rawclient.Client
	t *testing.T
}

func (r *harness) raw(t *testing.T) *raw {
	c, _, _ := r.opens(t, nil)
	return c
}

// opens returns a client that has sent initialize, with more params than it needs, the id of its
// session, and what loses its connection.
func (r *harness) opens(t *testing.T, more object) (c *raw, session string, lose func()) {
	t.Helper()
	conn, served := r.dial()
	c = &raw{rawclient.New(conn), t}
	params := object{"clientName": "raw"}
	maps.Copy(params, more)
	c.call("i", "initialize", params)
	m := c.next()
	if m.Error != nil {
		t.Fatal(m.Error)
	}
	var result struct{ SessionID string }
	rig.Must(t, json.Unmarshal(m.Result, &result))
	c.send(`{"method":"initialized"}`)
	return c, result.SessionID, func() {
		_ = conn.Close()
		waitFor(t, served, "the agent to let go of a connection")
	}
}

func (c *raw) send(format string, args ...any) {
	c.t.Helper()
	c.Sendf(c.t, format, args...)
}

func (c *raw) call(id any, method string, params object) {
	c.t.Helper()
	data, err := json.Marshal(object{"id": id, "method": method, "params": params})
	rig.Must(c.t, err)
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
