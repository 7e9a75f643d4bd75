package rawclient

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/execagent/execagent/rpc"
)

// patience is how long a message is waited for, before the test fails. The machine may have much
// else to do.
const patience = 5 * time.Minute

// A Client sends without waiting for answers.
type Client struct {
	rpc.Conn
	messages chan string
}

// New returns the client of a connection. It reads, until that ends.
func New(conn rpc.Conn) *Client {
	c := &Client{Conn: conn, messages: make(chan string, 4096)} // more than any test leaves unread
	go func() {
		defer close(c.messages)
		for {
			data, err := conn.Read()
			if err != nil {
				return
			}
			c.messages <- string(data)
		}
	}()
	return c
}

// Sendf sends a message.
func (c *Client) Sendf(t testing.TB, format string, args ...any) {
	t.Helper()
	if err := c.Write(fmt.Appendf(nil, format, args...)); err != nil {
		t.Fatalf("sending %s: %v", format, err)
	}
}

// Messages yields what comes, and is closed behind the last message of the connection.
func (c *Client) Messages() <-chan string { return c.messages }

// ErrEnded says that the other side has ended the connection.
var ErrEnded = errors.New("the connection has ended")

// Receive returns the next message, ErrEnded behind the last one, or another error when none
// comes in time.
func (c *Client) Receive() (string, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case m, ok := <-c.messages:
		if !ok {
			return "", ErrEnded
		}
		return m, nil
	case <-late.C:
		return "", fmt.Errorf("the server said nothing for %s", patience)
	}
}

// Next returns the next message, which must come.
func (c *Client) Next(t testing.TB) string {
	t.Helper()
	m, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return m
}
