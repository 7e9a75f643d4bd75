package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// heartbeatInterval is the time between two announcements of a server. Two announcements in a
// row may be lost within nodeTTL.
const heartbeatInterval = 5 * time.Second

// sweepInterval is the time between two sweeps of a server, see [Store.sweep].
const sweepInterval = time.Hour

// errSuperseded says that an environment has another registration by now.
var errSuperseded = errors.New("the environment has another registration")

// Presence says that an executor's websocket is open, and names its server.
type Presence struct {
	EnvironmentID  string    `json:"environment_id"`
	RegistrationID string    `json:"registration_id"`
	Node           string    `json:"node"` // the server that has the websocket
	Principal      string    `json:"principal"`
	Since          time.Time `json:"since"`
}

// Seen is a registration together with the revisions that SetOnline compares. It is read
// before a websocket opens, so that SetOnline need not read. The zero value makes
// SetOnline read.
type Seen struct {
	Registration
	revision         uint64 // of the registration; 0: both values have to be read again
	presenceRevision uint64 // of the executor's presence, 0 if there is none
}

// See reads a registration and its presence, in one round trip. found is false if the
// environment has no registration.
func (st *Store) See(ctx context.Context, environmentID string) (reg Seen, found bool, err error) {
	var wg sync.WaitGroup
	var p Presence
	var online bool
	var onlineErr error
	wg.Go(func() { p, reg.presenceRevision, online, onlineErr = get[Presence](ctx, st.presence, environmentID) })
	reg.Registration, reg.revision, found, err = get[Registration](ctx, st.registrations, environmentID)
	wg.Wait()
	if online && p.RegistrationID != reg.ID {
		// The presence belongs to another registration, which is older or newer than the
		// registration that was read. SetOnline has to read both again.
		reg.revision = 0
	}
	return reg, found, errors.Join(err, onlineErr)
}

// seeInOrder reads the presence before the registration, so that SetOnline notices if
// another executor takes over the environment in between. That executor first registers and
// then goes online. If it registers before the registration is read here, the new
// registration is read. If it registers later, the presence gets another revision than the
// revision that was read.
func (st *Store) seeInOrder(ctx context.Context, environmentID string) (reg Seen, found bool, err error) {
	_, online, _, err := get[Presence](ctx, st.presence, environmentID)
	if err != nil {
		return Seen{}, false, err
	}
	reg.Registration, reg.revision, found, err = get[Registration](ctx, st.registrations, environmentID)
	reg.presenceRevision = online
	return reg, found, err
}

// SetOnline notes that an executor's websocket is open. The presence replaces the presence of
// an older websocket. revision is the revision of the presence; SetOffline needs it. The error
// is errSuperseded if the environment has another registration by now: then the websocket must
// be closed.
//
// reg is the result of See from just before. It saves two reads here, because many executors
// that connect at once would wait for these reads. With the zero value SetOnline reads.
func (st *Store) SetOnline(ctx context.Context, p Presence, reg Seen) (revision uint64, err error) {
	for range casRetries {
		if reg.revision == 0 {
			var found bool
			if reg, found, err = st.seeInOrder(ctx, p.EnvironmentID); err != nil {
				return 0, err
			}
			if !found || reg.ID != p.RegistrationID {
				return 0, errSuperseded
			}
		}
		revision, ok, err := st.put(ctx, st.presence, p.EnvironmentID, p, reg.presenceRevision)
		if err != nil {
			return 0, err
		}
		if !ok {
			reg = Seen{}
			continue
		}
		// The registration is touched after the presence is written, because Register
		// reads them in the other order, see doc.go.
		err = st.touch(ctx, p.EnvironmentID, reg)
		switch {
		case err == nil:
			return revision, nil
		case !errors.Is(err, errSuperseded) && st.failing() != nil:
			// The disk is full, so no other executor can have registered either. When the
			// store can be written again, all presences are written again.
			return revision, nil
		}
		return 0, errors.Join(err, st.SetOffline(context.WithoutCancel(ctx), p.EnvironmentID, revision))
	}
	return 0, unavailable("going online", errors.New("too many others change it at the same time"))
}

// touch rewrites the registration unchanged. This restarts its TTL and makes the
// compare-and-swap of a concurrent Register fail.
func (st *Store) touch(ctx context.Context, environmentID string, reg Seen) error {
	id := reg.ID
	for range casRetries {
		if _, ok, err := st.put(ctx, st.registrations, environmentID, reg.Registration, reg.revision); err != nil || ok {
			return err
		}
		var found bool
		var err error
		reg.Registration, reg.revision, found, err = get[Registration](ctx, st.registrations, environmentID)
		if err != nil {
			return err
		}
		if !found || reg.ID != id {
			return errSuperseded
		}
	}
	return unavailable("going online", errors.New("too many others change it at the same time"))
}

// SetOffline removes the presence that SetOnline has noted with this revision. It does
// nothing if the presence of a newer websocket has replaced this presence.
func (st *Store) SetOffline(ctx context.Context, environmentID string, revision uint64) error {
	err := st.presence.Purge(ctx, environmentID, jetstream.LastRevision(revision), jetstream.PurgeTTL(markerTTL))
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
		return nil
	}
	return unavailable("going offline", err)
}

// Online returns the presence of an environment's executor, if its websocket is at a
// server that lives.
func (st *Store) Online(ctx context.Context, environmentID string) (Presence, bool, error) {
	p, _, found, err := get[Presence](ctx, st.presence, environmentID)
	if err != nil || !found {
		return Presence{}, false, err
	}
	_, _, alive, err := get[time.Time](ctx, st.nodes, p.Node)
	return p, alive, err
}

// presences returns the presences of all executors that are online, sorted by environment.
func (st *Store) presences(ctx context.Context) ([]Presence, error) {
	nodes, err := all[time.Time](ctx, st.nodes)
	if err != nil {
		return nil, err
	}
	entries, err := all[Presence](ctx, st.presence)
	if err != nil {
		return nil, err
	}
	var online []Presence
	for _, p := range entries {
		if _, alive := nodes[p.Node]; alive {
			online = append(online, p)
		}
	}
	slices.SortFunc(online, func(a, b Presence) int { return strings.Compare(a.EnvironmentID, b.EnvironmentID) })
	return online, nil
}

// Environment is an environment whose executor is online.
type Environment struct {
	ID             string    `json:"id"`
	RegistrationID string    `json:"registration_id"`
	Node           string    `json:"node"`      // the server that the executor is connected to
	Principal      string    `json:"principal"` // of the executor
	Since          time.Time `json:"since"`
}

// Environments returns the environments whose executors are online, sorted by id.
func (st *Store) Environments(ctx context.Context) ([]Environment, error) {
	online, err := st.presences(ctx)
	if err != nil {
		return nil, err
	}
	environments := make([]Environment, 0, len(online))
	for _, p := range online {
		environments = append(environments, Environment{
			ID: p.EnvironmentID, RegistrationID: p.RegistrationID, Node: p.Node, Principal: p.Principal, Since: p.Since,
		})
	}
	return environments, nil
}

// Announce notes that a node lives. After nodeTTL without another announcement the node counts
// as dead.
func (st *Store) Announce(ctx context.Context, node string) error {
	text, err := time.Now().UTC().MarshalJSON()
	if err != nil {
		return err
	}
	_, err = st.nodes.Put(ctx, node, text)
	return unavailable("announcing the node", err)
}

// Withdraw notes that a node has ended.
func (st *Store) Withdraw(ctx context.Context, node string) error {
	return unavailable("withdrawing the node", st.nodes.Purge(ctx, node))
}

// Heartbeat announces a server, with its description, every 5 s until ctx ends. It sweeps the
// store once an hour.
func (st *Store) Heartbeat(ctx context.Context, self Server) {
	node := self.Node
	beat, sweep := time.NewTicker(heartbeatInterval), time.NewTicker(sweepInterval)
	defer beat.Stop()
	defer sweep.Stop()
	// After an outage of NATS this node is announced at once, because other servers must not
	// regard it as dead until the next beat.
	back := st.nc.StatusChanged(nats.CONNECTED)
	defer st.nc.RemoveStatusListener(back)
	for {
		// The level is debug, because only an operator's command reads the description.
		if err := st.introduce(ctx, self); err != nil && ctx.Err() == nil {
			st.log.Debug("introducing the node", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		case <-back:
		case <-sweep.C:
			if err := st.sweep(ctx, node); err != nil && ctx.Err() == nil {
				st.warn("sweeping the store", err)
			}
		}
		if err := st.Announce(ctx, node); err != nil && ctx.Err() == nil {
			st.warn("announcing the node", err)
		}
	}
}

// warn logs an error of the store, unless the log has the error already.
func (st *Store) warn(message string, err error) {
	if !errors.Is(err, errAway) {
		st.log.Warn(message, "error", err)
	}
}

// sweep removes the presences that dead servers have left, and keeps the registrations of
// executors at this server from expiring.
func (st *Store) sweep(ctx context.Context, node string) error {
	nodes, err := all[time.Time](ctx, st.nodes)
	if err != nil {
		return err
	}
	entries, err := all[Presence](ctx, st.presence)
	if err != nil {
		return err
	}
	for environmentID, p := range entries {
		_, alive := nodes[p.Node]
		switch {
		case p.Node == node:
			var reg Seen
			reg.Registration, reg.revision, _, err = get[Registration](ctx, st.registrations, environmentID)
			if err == nil && reg.ID == p.RegistrationID {
				err = st.touch(ctx, environmentID, reg)
			}
			if errors.Is(err, errSuperseded) {
				err = nil // the executor's websocket is about to be closed
			}
		case !alive:
			var now Presence
			var revision uint64
			var found bool
			now, revision, found, err = get[Presence](ctx, st.presence, environmentID)
			if err == nil && found && now.Node == p.Node {
				err = st.SetOffline(ctx, environmentID, revision)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Presence returns the presence of an environment's executor, and the revision that SetOffline
// needs. The server of the presence may be dead.
func (st *Store) Presence(ctx context.Context, environmentID string) (p Presence, revision uint64, found bool, err error) {
	return get[Presence](ctx, st.presence, environmentID)
}

// Alive reports whether a server was announced within the last 15 s.
func (st *Store) Alive(ctx context.Context, node string) (bool, error) {
	_, _, alive, err := get[time.Time](ctx, st.nodes, node)
	return alive, err
}
