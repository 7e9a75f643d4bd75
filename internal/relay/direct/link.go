package direct

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// maxWebsockets is how many websockets a link opens at once, whatever the registry would accept.
const maxWebsockets = 128

// LinkConfig configures a [Link]. Registry is required.
type LinkConfig struct {
	// Registry is where the executor registers. The caller closes it after Run.
	Registry *relay.Registry
	// Logger logs the states of the connections, but never a credential or a signed URL. Nil
	// discards.
	Logger *slog.Logger
	// Budget bounds the memory of the messages of all websockets together. Nil: it has no bound.
	Budget *rpc.Budget
	// Patient repeats a registration while another executor of the environment is in the way or the
	// registry cannot check credentials. Otherwise every refusal is final, as in the reference.
	Patient bool
	// Revoked is called with the [rpc.Revocable] holder of a harness that lost its right to
	// connect. It may be nil.
	Revoked func(holder string)
}

// Link is the executor's side of the direct transport: an [rpc.Listener] whose connections are
// websockets that it has dialled itself, each for one harness. It keeps one websocket open that
// waits for a harness. If the registry accepts several, it opens the next one as soon as a harness
// has come, otherwise when that harness has left. [Link.Run] does all that.
type Link struct {
	cfg      LinkConfig
	log      *slog.Logger
	accepted chan rpc.Conn
	open     atomic.Int64   // websockets
	opened   atomic.Uint64  // so far
	calls    sync.WaitGroup // of Revoked
	closing  sync.Once
	closed   chan struct{}
}

// NewLink returns a link that does nothing until [Link.Run].
func NewLink(cfg LinkConfig) *Link {
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Link{
		cfg: cfg, log: log.With("environment", cfg.Registry.EnvironmentID()),
		accepted: make(chan rpc.Conn), closed: make(chan struct{}),
	}
}

// conn is a websocket to a harness that has sent its first message.
type conn struct {
	*transport.WebSocket

	link      *Link
	principal string // of the harness; "": the rendezvous has not said
	first     []byte // the message, until it is read
	arrived   bool   // the message has come: only the reading goroutine uses this and first
	ended     chan struct{}
	once      sync.Once
}

func (c *conn) Read() ([]byte, error) {
	if first := c.first; first != nil {
		c.first = nil
		return first, nil
	}
	message, err := c.WebSocket.Read()
	if err != nil {
		c.end()
	}
	return message, err
}

func (c *conn) Close() error {
	c.end()
	return c.WebSocket.Close()
}

func (c *conn) end() {
	c.once.Do(func() {
		c.link.open.Add(-1)
		close(c.ended)
	})
}

// Holder returns the harness's principal, see [rpc.Revocable]. As with the relay, it is no
// principal of sessions: those with names are for every harness of the environment.
func (c *conn) Holder() string { return c.principal }

// pinged handles what the rendezvous reports about harnesses. It runs in the reading goroutine,
// which must not wait for the calls of Revoked.
func (c *conn) pinged(payload string) {
	if name, ok := strings.CutPrefix(payload, wire.PingPrincipal); ok && !c.arrived {
		c.principal = api.Printable(name, "")
	}
	name, ok := strings.CutPrefix(payload, wire.PingRevoked)
	if ok && name != "" && name == c.principal && c.link.cfg.Revoked != nil {
		c.link.log.Info("sessions of a harness end", "reason", "the harness's key was revoked")
		c.link.calls.Go(func() { c.link.cfg.Revoked(name) })
	}
}

// Run registers, opens websockets and passes them to Accept for as long as ctx lives. It may be
// called only once. When it returns, all of them are closed, and Accept returns net.ErrClosed.
//
// It returns nil when ctx ends, and an error if the registry refuses the executor: with any answer
// to a registration that is not 2xx, or any 4xx to a websocket except 408, 429 and 409, after which
// the executor registers again (capabilities.md 7).
func (l *Link) Run(ctx context.Context) error {
	defer func() { _ = l.Close() }() // it has no error
	defer l.calls.Wait()
	var serving sync.WaitGroup
	defer serving.Wait()
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := l.run(ctx, &serving)
	if outer.Err() != nil {
		l.log.Info("disconnected from the rendezvous")
		return nil
	}
	return err
}

func (l *Link) run(ctx context.Context, serving *sync.WaitGroup) error {
	p, err := l.register(ctx, nil)
	if err != nil {
		return err
	}
	seats := make(chan struct{}, max(1, min(p.websockets, maxWebsockets)))
	for failed := 0; ; {
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := l.connect(ctx, p)
		if err == nil {
			failed = 0
			if l.await(ctx, c) && cap(seats) > 1 {
				serving.Go(func() {
					l.serve(ctx, c)
					<-seats
				})
				continue // the next harness should find a waiting websocket
			}
			l.serve(ctx, c)
		}
		<-seats
		if ctx.Err() != nil {
			return nil
		}
		delay := api.Delay(failed)
		if err != nil {
			failed++
			l.log.Warn("connection to the rendezvous not made", "error", err, "delay", delay)
			if p, err = l.overcome(ctx, p, err); err != nil {
				return err
			}
		}
		if api.Sleep(ctx, delay) != nil {
			return nil
		}
	}
}

// overcome registers again if that helps after a websocket was refused. Its error is final.
func (l *Link) overcome(ctx context.Context, p *endpoint, err error) (*endpoint, error) {
	refused, answered := errors.AsType[*socket.RefusedError](err)
	_, network := errors.AsType[*api.NetworkError](err)
	switch {
	case answered && refused.Status == http.StatusConflict:
		return l.register(ctx, p)
	case answered && (refused.Status/100 != 4 || api.Busy(refused.Status)), network, errors.Is(err, auth.ErrTemporary):
		return p, nil
	}
	return nil, fmt.Errorf("opening the websocket: %w", err)
}

// register asks the registry for an endpoint. former is the previous one; a registry that
// accepts several websockets gets it too, because the open websockets belong to it.
func (l *Link) register(ctx context.Context, former *endpoint) (p *endpoint, err error) {
	var request wire.DirectRequest
	if former != nil && former.websockets > 0 {
		request.RegistrationID = former.registrationID
	}
	again := func(err error) bool { return l.cfg.Patient && api.RegisterAgain(err) }
	err = api.Repeat(ctx, l.log, "registration is repeated", again, func() error {
		// A failure of the network is final. On an idle connection the call would fail if the
		// registry was just closing it, so use a new one.
		l.cfg.Registry.Close()
		p, err = ask(ctx, l.cfg.Registry, wire.PathDirectRegister, request, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("registering the executor: %w", err)
	}
	l.log.Info("registered", "registration", api.Printable(p.registrationID, ""), "transport", wire.TransportDirect)
	return p, nil
}

func (l *Link) connect(ctx context.Context, p *endpoint) (*conn, error) {
	c := &conn{link: l, ended: make(chan struct{})}
	ws, err := open(ctx, l.cfg.Registry, p, l.cfg.Budget, c.pinged)
	if err != nil {
		return nil, err
	}
	c.WebSocket = ws
	l.open.Add(1)
	l.opened.Add(1)
	l.log.Info("connected to the rendezvous")
	return c, nil
}

// await waits for a harness, which shows itself with its first message, and passes the websocket to
// Accept. It returns false if the websocket ends before that.
func (l *Link) await(ctx context.Context, c *conn) bool {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // ends the reading
	message, err := c.Read()
	if err != nil {
		return false
	}
	c.first, c.arrived = message, true
	select {
	case l.accepted <- c:
		l.log.Info("a harness has come")
		return true
	case <-l.closed:
	case <-ctx.Done():
	}
	return false
}

// serve waits for the end of a websocket, and makes it end with ctx or the link.
func (l *Link) serve(ctx context.Context, c *conn) {
	select {
	case <-c.ended:
	case <-l.closed:
	case <-ctx.Done():
	}
	_ = c.Close() // it is over, whatever Close says
	l.log.Info("connection to the rendezvous ended")
}

// Accept returns the next websocket.
func (l *Link) Accept() (rpc.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close makes Accept return net.ErrClosed. It ends the websockets of harnesses. The waiting
// websocket ends when a harness comes, or with Run.
func (l *Link) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// Addr is nil: a link listens nowhere.
func (l *Link) Addr() net.Addr { return nil }

// Open returns how many websockets are open.
func (l *Link) Open() int { return int(l.open.Load()) }

// Opened returns how many websockets were opened so far.
func (l *Link) Opened() uint64 { return l.opened.Load() }

// Refused reports whether the registry refused the executor's credential and has not accepted it
// since.
func (l *Link) Refused() bool { return l.cfg.Registry.Refused() != 0 }

// Unready returns the reason why no harness can connect, "" if one can.
func (l *Link) Unready() string {
	if l.Open() == 0 {
		return "there is no connection to the registry's rendezvous"
	}
	return ""
}
