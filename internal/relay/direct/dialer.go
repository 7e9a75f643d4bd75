package direct

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/rpc"
)

// Dialer is a harness that connects to an executor by the direct transport. Registry is required.
// Dial may run any number of times at once. After the first connection, all others must go to the
// same registration.
type Dialer struct {
	// Registry returns the address of the executor. It must outlive the connections.
	Registry *relay.Registry
	// Logger logs repeated attempts, but never a signed URL. Nil discards.
	Logger *slog.Logger
	// Failed is called after each failed attempt of Dial that would be repeated, in the
	// goroutine of that Dial. If it returns true, Dial ends with this error. Nil: all are
	// repeated.
	Failed func(error) (enough bool)

	mu           sync.Mutex // guards the field below
	registration string     // of the first connection; empty before it
}

// Dial asks the registry for the executor and opens a websocket to it. After a temporary failure it
// starts over, until ctx ends. The connection outlives ctx.
func (d *Dialer) Dial(ctx context.Context) (rpc.Conn, error) {
	log := cmp.Or(d.Logger, slog.New(slog.DiscardHandler))
	var c rpc.Conn
	again := func(err error) bool { return connectAgain(err) && (d.Failed == nil || !d.Failed(err)) }
	err := api.Repeat(ctx, log.With("environment", d.Registry.EnvironmentID()), "connecting is repeated", again, func() (err error) {
		c, err = d.connect(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Dialer) connect(ctx context.Context) (rpc.Conn, error) {
	p, err := d.ask(ctx)
	if err != nil {
		return nil, err
	}
	if !d.pin(p.registrationID, false) {
		return nil, api.ErrExecutorChanged
	}
	ws, err := open(ctx, d.Registry, p, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("connecting to the rendezvous: %w", err)
	}
	if !d.pin(p.registrationID, true) {
		_ = ws.Close() // the error about another executor says more
		return nil, api.ErrExecutorChanged
	}
	return ws, nil
}

func (d *Dialer) ask(ctx context.Context) (*endpoint, error) {
	p, err := ask(ctx, d.Registry, wire.PathDirectConnect, wire.DirectRequest{}, http.Header{"Idempotency-Key": {}})
	if err != nil {
		return nil, fmt.Errorf("asking the registry for the executor: %w", err)
	}
	return p, nil
}

// pin reports whether a connection may go to this registration; set notes that there is one.
func (d *Dialer) pin(registration string, set bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if set && d.registration == "" {
		d.registration = registration
	}
	return d.registration == "" || d.registration == registration
}

// Same asks the registry, and reports whether the executor is still the one of the last connection
// of Dial. Before the first connection it returns false.
func (d *Dialer) Same(ctx context.Context) (bool, error) {
	p, err := d.ask(ctx)
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.registration == p.registrationID, nil
}

// connectAgain reports whether a failed attempt may be repeated. Status 410 means that
// another executor has registered since we asked the registry.
func connectAgain(err error) bool {
	if refused, ok := errors.AsType[*socket.RefusedError](err); ok {
		return refused.Status == http.StatusGone || api.Busy(refused.Status)
	}
	return api.ConnectAgain(err)
}

// Final reports whether the next attempt of [Dialer.Dial] would fail with the same error.
func Final(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return !connectAgain(err)
}
