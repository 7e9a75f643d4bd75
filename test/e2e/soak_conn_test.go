package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/execagent/execagent/test/rawclient"
)

// errCut says that the connection ended before the answer came: the request may or may not have
// been carried out.
var errCut = errors.New("connection cut")

// A remoteError is the error member of an answer.
type remoteError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *remoteError) Error() string { return fmt.Sprintf("code %d: %s", e.Code, e.Message) }

// A soakConn is a JSON-RPC client of its own, so that the test decides how its socket ends. It is
// no rawclient.Client since many goroutines call at once, each waiting for its own answer.
type soakConn struct {
	ws     *rawclient.WebSocket
	notify func(method string, params json.RawMessage)
	ended  chan struct{} // closed when nothing more can be read

	writing sync.Mutex // not mu: answers must be taken while a write waits for the agent to read

	mu      sync.Mutex // guards the fields below
	lastID  int
	waiting map[int]chan answer
}

type answer struct {
	result json.RawMessage
	err    error
}

// dialSoak connects; notify gets every notification, in order, on one goroutine.
func dialSoak(ctx context.Context, url string, notify func(string, json.RawMessage)) (*soakConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ws, err := rawclient.Dial(ctx, url)
	if err != nil {
		return nil, err
	}
	c := &soakConn{ws: ws, notify: notify, ended: make(chan struct{}), waiting: map[int]chan answer{}}
	go c.read()
	return c, nil
}

func (c *soakConn) read() {
	defer close(c.ended)
	for {
		data, err := c.ws.Read()
		if err != nil {
			return
		}
		var m struct {
			ID     *int            `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
			Result json.RawMessage `json:"result"`
			Error  *remoteError    `json:"error"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			c.notify("", json.RawMessage(data)) // no method has this name: the session reports it
			continue
		}
		if m.ID == nil {
			c.notify(m.Method, m.Params)
			continue
		}
		a := answer{result: m.Result}
		if m.Error != nil {
			a.err = m.Error
		}
		c.mu.Lock()
		ch := c.waiting[*m.ID]
		delete(c.waiting, *m.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	}
}

// call sends a request and waits for its answer; errCut when the connection ends first.
func (c *soakConn) call(ctx context.Context, method string, params, result any) error {
	ch := make(chan answer, 1) // the reader never waits for a caller that gave up
	c.mu.Lock()
	c.lastID++
	id := c.lastID
	c.waiting[id] = ch
	c.mu.Unlock()
	if err := c.write(map[string]any{"id": id, "method": method, "params": params}); err != nil {
		return err
	}
	var a answer
	select {
	case a = <-ch:
	case <-c.ended:
		select {
		case a = <-ch: // it came with the last bytes
		default:
			return errCut
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if a.err != nil {
		return fmt.Errorf("%s: %w", method, a.err)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(a.result, result); err != nil {
		return fmt.Errorf("%s: result %s: %w", method, a.result, err)
	}
	return nil
}

func (c *soakConn) notification(method string) error {
	return c.write(map[string]any{"method": method, "params": struct{}{}})
}

func (c *soakConn) write(message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.ws.Write(data); err != nil {
		return errCut
	}
	return nil
}

// A cut is a way to lose a connection.
type cut int

const (
	cutReset  cut = iota // RST; what the agent sent and we did not read is gone
	cutFinish            // FIN, and nothing more is read
	cutHalf              // FIN, then read until the agent ends its side
	cutTorn              // RST in the middle of a frame
	cutKinds
)

// end cuts the connection and waits for the reader.
func (c *soakConn) end(how cut) {
	socket := c.ws.Socket()
	switch how {
	case cutReset:
		socket.SetLinger(0)
	case cutHalf:
		socket.CloseWrite() // a write that waits fails by this
		socket.SetReadDeadline(time.Now().Add(5 * time.Second))
		<-c.ended
	case cutTorn:
		if c.writing.TryLock() { // else a frame is being written, which is torn as well
			socket.Write([]byte{0x81, 0xfe, 0x10, 0x00, 1, 2, 3, 4, '{'}) // a text frame of 4096 bytes, one of them sent
			c.writing.Unlock()
		}
		socket.SetLinger(0)
	}
	socket.Close()
	<-c.ended
}
