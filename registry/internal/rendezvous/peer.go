package rendezvous

import (
	"cmp"
	"errors"
	"io"
	"log/slog"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
)

// peer is one websocket in a meeting. It has the fields and methods that an executor's and a
// harness's websocket have in common.
type peer struct {
	rs        *Routes
	role      ticket.Role
	meeting   *meeting
	principal *store.Principal
	socket    *socket.Socket
	control   *socket.Lane // for the resets of streams that have no lane or a full one
	release   func()       // frees the principal's place for a websocket
}

// start runs serve in a goroutine of its own, and calls p.quit when serve has returned. If the
// server drains or is closed, it calls only p.quit.
func (rs *Routes) start(p *peer, serve func()) {
	rs.mu.Lock()
	open := !rs.closed && !rs.draining.Load()
	if open {
		rs.sockets[p] = struct{}{}
		rs.serving.Go(func() {
			serve()
			p.quit()
			rs.remove(p)
		})
	}
	rs.mu.Unlock()
	if !open {
		p.quit()
	}
}

// remove forgets a websocket that has ended. The last one ends Drain.
func (rs *Routes) remove(p *peer) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.sockets, p)
	if rs.drained != nil && len(rs.sockets) == 0 {
		close(rs.drained)
	}
}

// quit closes the websocket, and frees the peer's place and its hold on the meeting.
func (p *peer) quit() {
	if p.socket != nil {
		_ = p.socket.Close() // never fails
	}
	p.release()
	p.rs.leave(p.meeting)
}

// read calls forward with every message until the websocket ends, and returns the reason
// of the end. forward takes over the hold on its message. If the principal has used up its
// bytes per second, read waits, so that TCP slows down a peer that sends too fast.
func (p *peer) read(forward func(*socket.Message)) error {
	rs := p.rs
	warned := false
	for {
		message, err := p.socket.Read()
		if err == socket.ErrText { // dropped, and the websocket stays (remote.md 4)
			if !warned {
				p.tell(slog.LevelWarn, "text message dropped")
				warned = true
			}
			// The length of a dropped message is unknown, so the longest counts.
			if err := rs.limits.Bytes(p.socket.Done(), p.principal, socket.MaxMessage); err != nil {
				return cmp.Or(p.socket.Err(), err)
			}
			continue
		}
		if err != nil {
			return err
		}
		n := len(message.Bytes)
		if err := rs.limits.Bytes(p.socket.Done(), p.principal, n+limits.FrameCost); err != nil {
			message.Release()
			return cmp.Or(p.socket.Err(), err)
		}
		rs.metrics.Frames.Add(1)
		rs.metrics.Bytes.Add(uint64(n))
		forward(message)
	}
}

// kick closes the websocket. The goroutine that reads it then leaves the meeting. kick
// waits for nothing, so it may be called under the meeting's mutex.
func (p *peer) kick(why string) {
	p.tell(slog.LevelInfo, "closing a websocket", "reason", why)
	_ = p.socket.Close() // never fails
}

// tell logs something about the websocket.
func (p *peer) tell(level slog.Level, message string, more ...any) {
	p.rs.log.Tell(level, message, p.meeting.environmentID, p.meeting.id, p.principal.ID, more...)
}

func (p *peer) info(message string) { p.tell(slog.LevelInfo, message) }

// ended logs the end of a websocket, as a warning if the store has caused that end.
func (p *peer) ended(message string, err error) {
	level := slog.LevelInfo
	if errors.Is(err, store.ErrUnavailable) {
		level = slog.LevelWarn
	}
	key := "error"
	if errors.Is(err, io.EOF) {
		key = "reason" // the peer has ended the connection, which is no error
	}
	p.tell(level, message, key, err)
}
