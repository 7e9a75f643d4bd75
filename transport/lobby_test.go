package transport

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/test/rig"
)

// A seat is given back when the HTTP part ends, one way or the other.
func TestLobbyLeave(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{})
	for range 3 {
		p := dialRaw(t, l)
		accept(t, l)
		p.Close()
		ask(t, l, readyz)
	}
	rig.Is(t, l.lobby.Len() <= 3, true, "seats that are taken, at most one for each HTTP connection: %v, at most %v", l.lobby.Len(), 3)
	l.Close()
	rig.Is(t, l.lobby.Len(), 0, "seats that are taken after Close")
}

// TestBeginOfAClosedConnection: whoever is gone before the connection begins leaves its place at once.
func TestBeginOfAClosedConnection(t *testing.T) {
	t.Parallel()
	_, server := rawPair(t, Config{})
	server.Close()
	left := 0
	server.begin(func() { left++ }, time.Now(), func() { t.Error("the right of a closed connection expires") })
	server.Close()
	rig.Is(t, left, 1, "places that were given back")
	rig.Is(t, server.expiry, nil, "timer")
}

// Connections that stay in their HTTP part keep nobody out, and lose their places,
// the oldest first.
func TestLobbyFull(t *testing.T) {
	t.Parallel()
	for range 5 {
		if lobbyFull(t) {
			return
		}
	}
	t.Error("upgrades wait until the crowd has had its time")
}

// lobbyFull has a crowd in the lobby. It reports whether upgrades succeed before
// the crowd has had its time, which on a busy machine is no proof.
func lobbyFull(t *testing.T) bool {
	t.Helper()
	l := listen(t, Config{})
	// Accepted before the crowd, so closed before any of it.
	silent := connect(t, l)
	var newest net.Conn
	for range share.Strangers() {
		newest = connect(t, l)
		rig.Must(t, rig.Err(io.WriteString(newest, "GET /readyz HTTP/1.1\r\n")))
	}
	for range 3 {
		dialRaw(t, l)
		accept(t, l)
	}
	newest.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := newest.Read(make([]byte, 1))
	wantClosed(t, silent)                         // the oldest
	return errors.Is(err, os.ErrDeadlineExceeded) // the newest connection is still open
}

// An answered request ends its connection, so that no second request renews the
// deadline of the first.
func TestAnswerEndsConnection(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{})
	for _, tt := range []struct {
		request string
		status  int
	}{
		{"GET /readyz HTTP/1.1\r\n", http.StatusOK},
		{"GET /readyz HTTP/1.1\r\nConnection: keep-alive\r\n", http.StatusOK},
		{"GET /readyz HTTP/1.0\r\nConnection: keep-alive\r\n", http.StatusOK},
		{"HEAD /readyz HTTP/1.1\r\n", http.StatusOK},
		{"GET / HTTP/1.1\r\n", http.StatusBadRequest},
		{"GET /x HTTP/1.1\r\n", http.StatusNotFound},
		{"GET / HTTP/1.1\r\nOrigin: x\r\n", http.StatusForbidden},
		{"POST /readyz HTTP/1.1\r\n", http.StatusMethodNotAllowed},
	} {
		conn := connect(t, l)
		conn.SetDeadline(time.Now().Add(handshakeTimeout / 2))
		_, err := io.WriteString(conn, tt.request+"Host: x\r\n\r\n")
		rig.Must(t, err)
		r := bufio.NewReader(conn)
		response, err := http.ReadResponse(r, &http.Request{Method: tt.request[:4]})
		rig.Must(t, err)
		rig.Is(t, fmt.Sprint(response.StatusCode, response.Close), fmt.Sprint(tt.status, true), "%q: status, close", tt.request)
		rig.Is(t, rig.Err(io.Copy(io.Discard, response.Body)), nil, "%q: body", tt.request)
		wantClosed(t, r)
	}
}
