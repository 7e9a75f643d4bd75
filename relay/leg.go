package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// resetReason is the only reason in our resets, whatever the cause, so that the
// peer does not learn why its stream ended (remote.md 8.2).
const resetReason = "noise_relay_protocol_error"

// leg is one websocket of a link, from its opening to its end.
//
//	reader   decodes frames and passes them to streams; never waits for one
//	attempt  one goroutine per handshake: read it, ask the registry, answer
//	linger   one goroutine per ended stream whose lane is too full for its reset
type leg struct {
	link           *Link
	registrationID string
	socket         *socket.Socket
	control        *socket.Lane // for resets that fit no stream's lane
	wg             sync.WaitGroup

	frame frame.Frame // used by the reader only
}

// read serves the frames of the websocket until it ends.
func (g *leg) read(ctx context.Context) error {
	warned := false
	for {
		m, err := g.socket.Read()
		if errors.Is(err, socket.ErrText) {
			level := slog.LevelWarn
			if warned { // so that a peer cannot flood the log
				level = slog.LevelDebug
			}
			warned = true
			g.link.log.Log(ctx, level, "text message from the rendezvous dropped")
			continue
		}
		if err != nil {
			return err
		}
		// A message that is no valid frame is dropped silently (remote.md 5).
		if frame.Decode(m.Bytes, &g.frame) == nil {
			g.receive(ctx, m, &g.frame)
		}
		m.Release()
	}
}

// receive handles one frame as the table of remote.md 8.2 says.
func (g *leg) receive(ctx context.Context, m *socket.Message, f *frame.Frame) {
	t := g.link.streams
	switch f.Body {
	case frame.Handshake:
		g.admit(ctx, m, f)
	case frame.Reset:
		g.reset(f)
	case frame.Data, frame.Ack, frame.Resume:
		s, pending := t.find(f.StreamID)
		switch {
		case s != nil:
			// A violation has ended the stream, which has told the link.
			_ = s.receive(f)
		case pending:
			if f.Body == frame.Data && t.disturb(f.StreamID) {
				g.refuse(f.StreamID, errEarlyData)
			}
		case needsNoReset(f):
		default:
			g.sendReset(f.StreamID)
		}
	}
}

// needsNoReset reports whether f, a frame of a stream unknown here, is dropped
// without a reset, because its sender does not expect an active stream. Such a frame
// is an acknowledgement, or the empty resume that a harness sends before its
// handshake. A harness that resumes an earlier stream gets a reset, because it must
// learn that the stream is gone (remote.md 8.1).
func needsNoReset(f *frame.Frame) bool {
	return f.Body == frame.Ack || f.Body == frame.Resume && f.NextSeq == 0 && !f.Acknowledges()
}

// admit accepts a handshake for processing, or refuses it.
func (g *leg) admit(ctx context.Context, m *socket.Message, f *frame.Frame) {
	ctx, cancel := context.WithCancel(ctx)
	h, err := g.link.streams.admit(f.StreamID, f.Payload, cancel)
	if err != nil {
		cancel()
		g.refuse(f.StreamID, err)
		return
	}
	h.acknowledges = f.Acknowledges()
	m.Retain()
	message1 := f.Payload
	g.wg.Go(func() {
		defer m.Release()
		defer g.link.streams.released()
		defer cancel()
		g.attempt(ctx, h, message1)
	})
}

// attempt runs a handshake, up to an active stream or a reset.
func (g *leg) attempt(ctx context.Context, h *attempt, message1 []byte) {
	message2, s, principal, err := g.agree(ctx, h, message1)
	if err != nil {
		if g.link.streams.fail(h) {
			g.refuse([]byte(h.id), err)
		}
		return
	}
	if err := g.open(h, s, principal, message2); err != nil {
		s.Wipe()
		if err != errDropped {
			g.refuse([]byte(h.id), err)
		}
		return
	}
	g.link.cfg.Identity.Prepare()
}

// agree reads message 1, asks the registry whether its sender may connect, and makes message 2 at
// the same time. principal is the registry's name for the harness's principal. Only one handshake
// at a time computes, so that a flood of handshakes keeps only one processor busy.
func (g *leg) agree(ctx context.Context, h *attempt, message1 []byte) (message2 []byte, s *noise.Session, principal string, err error) {
	registry, computing := g.link.cfg.Registry, &g.link.computing
	id := []byte(h.id)
	computing.Lock()
	if err := ctx.Err(); err != nil { // dropped in the meantime
		computing.Unlock()
		return nil, nil, "", err
	}
	r, err := noise.ReadInitiation(g.link.cfg.Identity, noise.Prologue(registry.environmentID, g.registrationID, id), message1)
	computing.Unlock()
	if err != nil {
		return nil, nil, "", err
	}
	key, authorization := r.HarnessKey, r.Authorization
	if err := g.link.streams.validate(h, "key:"+string(key.X25519)); err != nil {
		r.Wipe()
		return nil, nil, "", err
	}
	validated := make(chan error, 1)
	var answer string
	go func() {
		var err error
		answer, err = registry.validate(ctx, g.registrationID, key, authorization, id)
		validated <- err
	}()
	computing.Lock()
	message2, s, err = r.Respond()
	computing.Unlock()
	invalid := <-validated
	if g.link.Refused() {
		select {
		case g.link.unwelcome <- struct{}{}:
		default: // it was reported already
		}
	}
	if err == nil && invalid != nil {
		s.Wipe()
		err = fmt.Errorf("validating the harness: %w", invalid)
	}
	if err != nil {
		return nil, nil, "", err
	}
	return message2, s, answer, nil
}

// open makes an active stream from a handshake, and then answers the handshake. The
// other order would lose frames, because a harness may send as soon as it has the
// answer.
func (g *leg) open(h *attempt, keys *noise.Session, principal string, message2 []byte) error {
	l := g.link
	id := []byte(h.id)
	member := &member{id: h.id, owner: cmp.Or(principal, h.key), lane: g.socket.NewLane(0)}
	member.stream = newStream(streamConfig{
		id:             id,
		session:        keys,
		principal:      principal,
		acknowledges:   h.acknowledges,
		budget:         l.cfg.Budget,
		waitingReserve: &l.waitingReserve,
		keptReserve:    &l.keptReserve,
		send:           member.lane.Send,
		ended:          func(s *stream, err error) { l.streamEnded(h.id, s, err) },
	})
	err := l.streams.activate(h, member)
	if err != nil {
		member.stream.end(err)
		member.lane.Close()
		return err
	}
	// Send fails when the websocket has ended, which the reader notices as well.
	_ = member.lane.Send(newHandshake(id, message2))
	if !l.offer(member.stream) {
		_ = member.stream.Close() // which sends the harness a reset
		l.logStream(slog.LevelWarn, "stream refused", id, "error", errNoListener)
		return nil
	}
	l.logStream(slog.LevelInfo, "stream opened", id)
	return nil
}

// askForHolders asks the rendezvous whether the holders of sessions here may still connect. The
// rendezvous reports later changes by itself.
func (g *leg) askForHolders() {
	if g.link.cfg.Holders == nil {
		return
	}
	lane := g.socket.NewLane(0)
	for _, holder := range g.link.cfg.Holders() {
		if lane.Send(newFrame(&frame.Frame{StreamID: []byte(wire.PrincipalStream + holder), Body: frame.Heartbeat})) != nil {
			return // the websocket has ended
		}
	}
}

// reset ends the stream or handshake that the peer, or the rendezvous, has
// ended. It sends no answer.
func (g *leg) reset(f *frame.Frame) {
	if holder, ok := bytes.CutPrefix(f.StreamID, []byte(wire.PrincipalStream)); ok && string(f.Reason) == wire.ResetRevoked {
		if g.link.cfg.Revoked != nil {
			g.link.cfg.Revoked(string(holder))
		}
		return
	}
	member := g.link.streams.endedByPeer(f.StreamID)
	if member == nil {
		g.link.streams.disturb(f.StreamID)
		return
	}
	member.lane.Close()
	reason := "the harness has ended it"
	if string(f.Reason) == wire.ResetRevoked {
		reason = "the harness's key was revoked"
		member.stream.revoke()
	} else {
		member.stream.end(nil)
	}
	g.link.logStream(slog.LevelInfo, "stream ended", f.StreamID, "reason", reason)
}

// refuse answers a handshake with a reset and logs a warning. If there is no room,
// or the stream is already active, the line has level debug, because both are
// normal.
func (g *leg) refuse(id []byte, err error) {
	g.sendReset(id)
	g.link.refused.Add(1)
	level := slog.LevelWarn
	if err == errBusy || err == errFull || err == errActive {
		level = slog.LevelDebug
	}
	g.link.logStream(level, "handshake refused", id, "error", err)
}

// sendReset tells the peer that a stream is over. If the lane is full, the reset
// is dropped, because a peer that causes more resets than it reads must not make
// us hold them.
func (g *leg) sendReset(id []byte) { g.control.TrySend(newReset(id)) }

// farewell sends the reset of a stream after everything that the stream has already
// sent, and closes its lane. If the lane is full, a goroutine waits for room. If
// too many such goroutines wait, the reset takes the control lane, where it may
// arrive before the last frames of the stream.
func (g *leg) farewell(member *member) {
	reset := newReset([]byte(member.id))
	reset.Retain()
	if member.lane.TrySend(reset) {
		reset.Release()
		member.lane.Close()
		return
	}
	lingers := g.link.streams.linger(g, func() {
		// A writer of the stream may be stuck in Send on this lane before us.
		// Closing the lane after a second frees the writer and this goroutine.
		limit := time.AfterFunc(orDefault(g.link.cfg.timing.farewell, defaultFarewell), member.lane.Close)
		defer limit.Stop()
		if member.lane.Send(reset) != nil {
			g.sendReset([]byte(member.id))
		}
		member.lane.Close()
	})
	if !lingers {
		member.lane.Close()
		g.control.TrySend(reset)
	}
}

func newReset(id []byte) *socket.Message {
	return newFrame(&frame.Frame{StreamID: id, Body: frame.Reset, Reason: []byte(resetReason)})
}

// newHandshake makes the frame of a handshake's message. It says that this end
// acknowledges.
func newHandshake(id, message []byte) *socket.Message {
	return newFrame(&frame.Frame{StreamID: id, AckBits: frame.WillAcknowledge, Body: frame.Handshake, Payload: message})
}

// newFrame encodes any frame except those with data, which sealRecord makes.
func newFrame(f *frame.Frame) *socket.Message {
	m := socket.NewMessage(len(f.StreamID) + len(f.Payload) + len(f.Reason) + frame.MaxDataHeader)
	m.Bytes = f.Append(m.Bytes)
	return m
}
