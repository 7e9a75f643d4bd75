package rawclient

import (
	"context"
	"net"

	"github.com/gorilla/websocket"
)

// A WebSocket is an [rpc.Conn] as another program's would be: of the product's transport it has
// nothing. Pings are answered by Read.
type WebSocket struct{ ws *websocket.Conn }

// Dial connects to a URL of ws.
func Dial(ctx context.Context, url string) (*WebSocket, error) {
	dialer := websocket.Dialer{HandshakeTimeout: patience}
	ws, _, err := dialer.DialContext(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	return &WebSocket{ws}, nil
}

// Read returns the next message, text or binary.
func (w *WebSocket) Read() ([]byte, error) {
	_, data, err := w.ws.ReadMessage()
	return data, err
}

// Write sends a text frame. One goroutine may call it at a time, other than the rule for an
// rpc.Conn.
func (w *WebSocket) Write(message []byte) error {
	return w.ws.WriteMessage(websocket.TextMessage, message)
}

// WriteBinary sends a binary frame, as Write does a text frame.
func (w *WebSocket) WriteBinary(message []byte) error {
	return w.ws.WriteMessage(websocket.BinaryMessage, message)
}

// Close closes the socket without a close frame.
func (w *WebSocket) Close() error { return w.ws.Close() }

// Socket returns the TCP connection below.
func (w *WebSocket) Socket() *net.TCPConn {
	socket, _ := w.ws.NetConn().(*net.TCPConn) // dialled as ws://, so it is one
	return socket
}
