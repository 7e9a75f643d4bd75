package agent

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/sandbox"
)

// openedSocket lets the data of a socket flow once the client has its answer.
type openedSocket struct {
	protocol.Empty
	flow
}

// resumedSocket does the same.
type resumedSocket struct {
	protocol.SocketReceived
	flow
}

// flow starts the data of a socket when an answer was sent.
type flow struct {
	id     string
	socket *sockets.Socket
	turn   int
	peer   *rpc.Peer
}

// Sent starts to send the client the data that has come.
func (f *flow) Sent() {
	f.socket.Tell(f.turn, func(d sockets.Data) error {
		n := protocol.SocketData{SocketID: f.id, Offset: d.Offset, Chunk: d.Bytes, EOF: d.End == io.EOF}
		if d.End != nil && d.End != io.EOF {
			n.Error = errorText(d.End)
		}
		return f.peer.Notify(protocol.MethodSocketData, &n)
	})
}

func (c *connection) openSocket(ctx context.Context, p protocol.SocketOpenParams) (*openedSocket, error) {
	address, err := sockets.ParseAddress(p.Address)
	if err != nil {
		return nil, protocol.InvalidParams("address: %v", err)
	}
	if c.agent.cfg.offline() {
		return nil, errOffline
	}
	asked, err := c.agent.sandboxOf(p.Sandbox)
	if err != nil {
		return nil, err
	}
	profile, err := c.agent.socketProfile(asked)
	if err != nil {
		return nil, err
	}
	window := uint64(protocol.MaxSocketWindow)
	if p.Window != nil {
		window = *p.Window
	}
	dial := func(ctx context.Context) (sockets.Conn, error) { return c.agent.dial(ctx, c.owner, profile, address) }
	// Once this request only waits, a request to close the socket may overtake it.
	wait := func() error { return rpc.Block(ctx) }
	socket, err := c.session.sockets.Open(ctx, p.SocketID, window, dial, wait)
	if err != nil {
		return nil, socketError(p.SocketID, err)
	}
	return &openedSocket{flow: flow{p.SocketID, socket, 0, c.peer}}, nil
}

// dial connects to an address, under a profile if there is one. If the operator requires that the
// network is enforced, it connects only where the operator's policy leads, unless the sandbox has no
// network.
func (a *Agent) dial(ctx context.Context, owner string, profile *sandbox.Profile, address sockets.Address) (conn sockets.Conn, err error) {
	var held *confine.Held
	if profile != nil {
		if held, err = a.enterToDial(*profile); err != nil {
			return nil, err
		}
		defer held.Release()
	}
	confined := held != nil && !held.Unconfined()
	free := held == nil || held.HasNetwork()
	switch {
	case a.cfg.RequireNetworkEnforcement && (free || a.leadsAside(held)) && address.Network != "tcp":
		return nil, errFreeSocket
	case a.cfg.RequireNetworkEnforcement && free:
		places, err := a.admit(ctx, address.Target, "", "", "")
		if err != nil {
			return nil, err
		}
		if !confined || len(places) == 0 {
			conn, err := netproxy.Dial(ctx, places)
			if err != nil {
				return nil, err
			}
			return conn.(sockets.Conn), nil // it is a *net.TCPConn
		}
		for _, place := range places {
			conn, err = a.dialConfined(ctx, owner, held, sockets.Address{Network: "tcp", Target: place.String()})
			if err == nil {
				break
			}
		}
		return conn, err
	case confined:
		return a.dialConfined(ctx, owner, held, address)
	}
	return sockets.Dial(ctx, address)
}

// errFreeSocket refuses what no policy about hosts can judge.
var errFreeSocket = protocol.InvalidRequest("the operator of this agent requires that the network is enforced " +
	"(--require-network-enforcement), and a UNIX socket may lead to any host; nothing was sent")

// socketProfile translates the sandbox of a socket, nil for none.
func (a *Agent) socketProfile(s *protocol.Sandbox) (*sandbox.Profile, error) {
	if s == nil {
		return nil, nil
	}
	asked, err := a.folderlessProfile(s)
	if err != nil {
		return nil, err
	}
	if !a.sandboxes.confines {
		return nil, errNoHelpers
	}
	return &asked, nil
}

// maxConfinedDials is how many processes of all sessions connect at once for sockets
// with a sandbox. Others wait, within the time limit of a dial, and nobody waits for the dials of
// another owner.
const maxConfinedDials = 16

// enterToDial enters the sandbox of a socket. The caller releases it.
func (a *Agent) enterToDial(profile sandbox.Profile) (*confine.Held, error) {
	held, err := a.sandboxes.door.Enter(profile)
	if err != nil {
		a.metrics.Refused(refusal(err))
	}
	if errors.Is(err, sandbox.ErrNeedsCwd) {
		return nil, protocol.InvalidParams("sandbox.cwd: %v", err)
	}
	if err != nil {
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	return held, nil
}

// dialConfined connects as a command in the sandbox would: through a process
// of ours that is confined and limited like a command.
func (a *Agent) dialConfined(ctx context.Context, owner string, held *confine.Held, address sockets.Address) (sockets.Conn, error) {
	if err := a.sandboxes.dials.Wait(ctx, owner, 1); err != nil {
		return nil, err
	}
	defer a.sandboxes.dials.Give(owner, 1)
	connecting, err := held.Connect(confine.Endpoint{Network: address.Network, Target: address.Target})
	if err != nil {
		return nil, err
	}
	defer connecting.Close()
	spec := procs.Spec{
		Argv: []string{"connect"}, Dir: "/", Stage: connecting.Stage, Sink: func(procs.Event) {},
		Reaper: a.cfg.Reaper, Guard: a.cfg.Guard,
	}
	if a.cfg.Cgroups != nil {
		if spec.Cgroup, err = a.cfg.Cgroups.New(); err != nil {
			return nil, protocol.InvalidRequest("sandbox: %v", err)
		}
	}
	p, err := procs.Start(spec)
	if err != nil {
		_ = spec.Cgroup.Close() // no process is in it
		return nil, err
	}
	defer p.Close()
	p.Begin()
	conn, err := connecting.Await(ctx)
	if errors.Is(err, confine.ErrNoResult) {
		return nil, protocol.InvalidRequest("%s", lastWords(ctx, p, err))
	}
	if err != nil {
		return nil, err
	}
	return conn.(sockets.Conn), nil
}

// lastWords returns the first line of an ending process's output, or the text of known if there is
// none.
func lastWords(ctx context.Context, p *procs.Process, known error) string {
	select {
	case <-p.Done():
	case <-ctx.Done():
		return known.Error()
	}
	var said strings.Builder
	for _, chunk := range p.Read(0, nil).Chunks {
		said.Write(chunk.Data)
	}
	line, _, _ := strings.Cut(said.String(), "\n")
	if line == "" {
		return known.Error()
	}
	return line
}

// socketError gives errors of package sockets their codes.
func socketError(id string, err error) error {
	if _, ok := errors.AsType[*sockets.GapError](err); ok {
		return protocol.InvalidParams("offset: %v", err)
	}
	if _, ok := errors.AsType[*sockets.ReceivedError](err); ok {
		return protocol.InvalidParams("received: %v", err)
	}
	switch {
	case errors.Is(err, sockets.ErrUnknown):
		return protocol.InvalidRequest("unknown socket id %s", id)
	case errors.Is(err, sockets.ErrExists):
		return protocol.InvalidRequest("socketId already exists: %s", id)
	case errors.Is(err, sockets.ErrTooMany), errors.Is(err, sockets.ErrClosed), errors.Is(err, sockets.ErrInputEnded):
		return protocol.InvalidRequest("socket %s: %v", id, err)
	}
	return err
}

// socket finds a socket. It waits for a socket that is being connected: only an
// earlier connection can have asked for it.
func (c *connection) socket(ctx context.Context, id string) (*sockets.Socket, error) {
	socket, err := c.session.sockets.Get(ctx, id, func() error { return rpc.Block(ctx) })
	if err != nil {
		return nil, socketError(id, err)
	}
	return socket, nil
}

func (c *connection) writeSocket(ctx context.Context, p protocol.SocketWriteParams) (*protocol.SocketReceived, error) {
	socket, err := c.socket(ctx, p.SocketID)
	if err != nil {
		return nil, err
	}
	received, err := socket.Write(ctx, p.Offset, p.Chunk, p.EOF, func() error { return rpc.Block(ctx) })
	if err != nil {
		return nil, socketError(p.SocketID, err)
	}
	return &protocol.SocketReceived{Received: received}, nil
}

func (c *connection) acknowledgeSocket(ctx context.Context, p protocol.SocketReceivedParams) (protocol.Empty, error) {
	socket, err := c.socket(ctx, p.SocketID)
	if err != nil {
		return protocol.Empty{}, err
	}
	if err := socket.Ack(p.Received); err != nil {
		return protocol.Empty{}, socketError(p.SocketID, err)
	}
	return protocol.Empty{}, nil
}

func (c *connection) resumeSocket(ctx context.Context, p protocol.SocketReceivedParams) (*resumedSocket, error) {
	socket, err := c.socket(ctx, p.SocketID)
	if err != nil {
		return nil, err
	}
	turn, written, err := socket.Rewind(ctx, p.Received)
	if err != nil {
		return nil, socketError(p.SocketID, err)
	}
	return &resumedSocket{protocol.SocketReceived{Received: written}, flow{p.SocketID, socket, turn, c.peer}}, nil
}

func (c *connection) closeSocket(_ context.Context, p protocol.SocketParams) (protocol.Empty, error) {
	c.session.sockets.Close(p.SocketID)
	return protocol.Empty{}, nil
}
