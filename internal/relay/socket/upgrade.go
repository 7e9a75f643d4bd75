package socket

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/gorilla/websocket"
)

// readBuffer is what one system call reads at most, in bytes. The rest of a large
// message is not read through it, but straight into the message.
const readBuffer = 4 << 10

// upgradeBuffers lend gorilla its write buffer for the upgrade. Without a pool each
// connection would keep one, though gorilla writes nothing afterwards.
var upgradeBuffers sync.Pool

// Upgrade answers a request for an upgrade. When it fails it has answered with
// another status, and the error says why. The caller has checked before whether the
// client may connect, and closes the socket.
//
// As long as the handler runs, net/http keeps its own buffers for the
// connection: a handler should return and leave the socket to a goroutine.
func Upgrade(w http.ResponseWriter, r *http.Request, cfg Config) (*Socket, error) {
	h := &hijacker{ResponseWriter: w}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: upgradeTimeout,
		ReadBufferSize:   readBuffer,
		WriteBufferPool:  &upgradeBuffers,
		// A page in a browser does not know the signed URL, and there is
		// nothing else, such as a cookie, that it could make use of.
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
