package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/execagent/execagent/internal/unixsocket"
)

// guarded is a UNIX socket whose clients are this user, root and the users that flags name. If
// flags name users, the mode of the socket file lets everybody connect, and Accept refuses other
// users.
type guarded struct {
	*unixsocket.Listener
	allow []uint32
	log   *slog.Logger
}

// listenUnix listens at a URL unix:///PATH.
func listenUnix(url string, allow []uint32, log *slog.Logger) (net.Listener, error) {
	path, err := unixsocket.Path(url)
	if err != nil {
		return nil, err
	}
	listener, err := unixsocket.Listen(path, len(allow) > 0)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", url, err)
	}
	return guarded{listener, allow, log}, nil
}

// Accept returns the next connection of a user who may connect.
func (g guarded) Accept() (net.Conn, error) {
	for {
		conn, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := unixsocket.Peer(conn)
		if err == nil && unixsocket.May(uid, g.allow...) {
			return conn, nil
		}
		g.log.Debug("refused a user who may not connect", "uid", uid, "error", err)
		_ = conn.Close() // nothing was sent on it
	}
}
