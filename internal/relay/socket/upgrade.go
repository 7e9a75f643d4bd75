package socket

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/gorilla/websocket"
)

// readBuffer is the size of gorilla's read buffer, in bytes. The rest of a large message is
// read directly into the message, and not through this buffer.
const readBuffer = 4 << 10

// upgradeBuffers lend gorilla its write buffer for the upgrade. Without a pool each
// connection would keep a write buffer, though gorilla writes nothing afterwards.
var upgradeBuffers sync.Pool

// Upgrade answers a request for an upgrade. If it fails, it has answered with
// another status, and the error has the reason. The caller must check before whether the
// client may connect, and must close the socket.
//
// As long as the handler runs, net/http keeps its own buffers for the connection. So a
// handler should return and leave the socket to a goroutine.
func Upgrade(w http.ResponseWriter, r *http.Request, cfg Config) (*Socket, error) {
	h := &hijacker{ResponseWriter: w}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: upgradeTimeout,
		ReadBufferSize:   readBuffer,
		WriteBufferPool:  &upgradeBuffers,
		// The origin is not checked, because a page in a browser does not know the
		// signed URL, and no cookie or the like gives it access.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	ws, err := upgrader.Upgrade(h, r, nil)
	if err != nil {
		return nil, fmt.Errorf("upgrading: %w", err)
	}
	return newSocket(ws, h.wire, false, cfg), nil
}

// hijacker puts the wire between gorilla and the connection.
type hijacker struct {
	http.ResponseWriter
	wire *wire
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.wire = newWire(conn)
	return h.wire, buffers, nil
}
