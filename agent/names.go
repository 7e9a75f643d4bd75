package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
)

const (
	// DefaultNamedSessionTTL is the longest time that a session with a name is kept
	// while nothing holds it.
	DefaultNamedSessionTTL = 24 * time.Hour
	// maxNamedOfOne is how many named sessions one owner may have, maxNamed how many
	// all owners may have together.
	maxNamedOfOne, maxNamed = 256, 4096
	// maxClientName is how many bytes of a client's name for itself are remembered.
	maxClientName = 128
)

// directory has the sessions with names. A name belongs to a principal (rpc.md 8.2). Its place counts
// for an owner: the principal, or else the holder of the client's key. Logs and docs call the owner
// principal. The agent's mutex guards the directory.
type directory struct {
	sessions map[string]map[string]*Session // by principal and name
	places   share.Pool
}

func newDirectory() directory {
	return directory{places: share.Pool{What: "named sessions", Max: maxNamed, Most: maxNamedOfOne}}
}

func (d *directory) find(principal, name string) *Session { return d.sessions[principal][name] }

// add enters a session under its name, which is not taken.
func (d *directory) add(s *Session) error {
	if err := d.places.Take(s.owner, 1); err != nil {
		return err
	}
	own := d.sessions[s.principal]
	if own == nil {
		if d.sessions == nil {
			d.sessions = map[string]map[string]*Session{}
		}
		own = map[string]*Session{}
		d.sessions[s.principal] = own
	}
	own[s.name] = s
	return nil
}

// remove undoes add. It does nothing for a session that was not added.
func (d *directory) remove(s *Session) {
	own := d.sessions[s.principal]
	if own[s.name] != s {
		return
	}
	d.places.Give(s.owner, 1)
	if delete(own, s.name); len(own) == 0 {
		delete(d.sessions, s.principal)
	}
}

// opening is a client's wish for a session.
type opening struct {
	name     string // "" for a new one without a name
	existing bool   // not a new one
	take     bool   // also from the client that has it
	retain   *time.Duration
	client   string // how the client calls itself
}

// openingOf reads the wish from the params of initialize.
func openingOf(p *protocol.InitializeParams) opening {
	o := opening{existing: p.Existing, take: p.Take, client: p.ClientName}
	if p.SessionName != nil {
		o.name = *p.SessionName
	}
	if p.RetainMs != nil {
		o.retain = new(milliseconds(*p.RetainMs))
	}
	if len(o.client) > maxClientName {
		o.client = o.client[:maxClientName]
	}
	// A rune that was cut in two is removed. The clone is needed because the name may outlive the
	// message.
	o.client = strings.Clone(strings.ToValidUTF8(o.client, ""))
	return o
}

// open gives a connection the session that it asks for: the one with that name of its
// principal, or a new one.
func (a *Agent) open(c *connection, o opening) (s *Session, created bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, false, protocol.InvalidRequest("the agent is shutting down")
	}
	if o.name != "" {
		if s = a.named.find(c.principal, o.name); s != nil {
			return s, false, s.attachTo(c, o)
		}
		if o.existing {
			return nil, false, protocol.InvalidRequest("unknown session name %s", o.name)
		}
	}
	s = newSession(a, uuid.NewString(), c.owner)
	s.principal, s.name = c.principal, strings.Clone(o.name)
	if c.holder != "" {
		s.holders = []string{c.holder}
	}
	if s.name != "" {
		s.retention = a.cfg.NamedSessionTTL
		if err := a.named.add(s); err != nil {
			return nil, false, err
		}
	}
	a.sessions[s.id] = s
	return s, true, s.attachTo(c, o)
}

// resume attaches a connection to a detached session. A session with a name is unknown to
// all but its principal.
func (a *Agent) resume(id string, c *connection, o opening) (*Session, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.sessions[id]
	if s == nil || s.name != "" && s.principal != c.principal {
		return nil, unknownSession(id)
	}
	return s, s.attachTo(c, o)
}

func unknownSession(id string) error { return protocol.InvalidRequest("unknown session id %.128s", id) }

// sessionFor returns the session that a request of c is about: the session of c, or another
// named session of the same principal.
func (c *connection) sessionFor(id *string) (*Session, error) {
	if id == nil || *id == c.session.id {
		return c.session, nil
	}
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.sessions[*id]; s != nil && s.name != "" && s.principal == c.principal {
		return s, nil
	}
	return nil, unknownSession(*id)
}

// takenPatience is how long a client may take to read that another client has taken its
// session.
const takenPatience = 5 * time.Second

// leaveLocked tells the client of c that another client now has its session, and ends the
// connection. The caller holds the mutex of that session.
func (c *connection) leaveLocked(taker string) {
	c.phase.Store(phaseTaken)
	c.notifiers.Go(func() {
		late := time.AfterFunc(takenPatience, c.peer.Close)
		defer late.Stop()
		_ = c.peer.Notify(protocol.MethodSessionTaken, &protocol.TakenNotification{ClientName: taker})
		c.peer.Close()
	})
}

func (c *connection) listSessions(context.Context, protocol.SessionListParams) (*protocol.SessionListResult, error) {
	a := c.agent
	a.mu.Lock()
	var own []*Session
	for _, s := range a.named.sessions[c.principal] {
		own = append(own, s)
	}
	a.mu.Unlock()
	slices.SortFunc(own, func(a, b *Session) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name))
	})
	r := &protocol.SessionListResult{Sessions: make([]protocol.ListedSession, len(own))}
	for i, s := range own {
		r.Sessions[i] = s.listed()
	}
	return r, nil
}

// listed describes a session with a name.
func (s *Session) listed() protocol.ListedSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := protocol.ListedSession{
		SessionID: s.id, Name: s.name, Attached: s.connection != nil, ClientName: s.client,
		CreatedAtMs: s.created.UnixMilli(), RetainMs: uint64(s.retention.Milliseconds()),
		Running: s.live, Ended: len(s.processes) - s.live,
	}
	if s.expiry != nil {
		l.ExpiresAtMs = new(s.expires.UnixMilli())
	}
	return l
}

// endedSession answers session/end. If the session is the connection's own, the connection ends
// after the answer.
type endedSession struct {
	protocol.Empty
	last func()
}

func (r *endedSession) Sent() { r.last() }

// endedPatience is how long a client that ends its own session may take to read the
// pending messages and the answer, before it loses its connection.
const endedPatience = 5 * time.Second

// endSession ends a session with a name, and kills its processes. An attached client loses its
// connection, and finds no session when it comes back.
func (c *connection) endSession(ctx context.Context, p protocol.SessionParams) (*endedSession, error) {
	s, err := c.sessionFor(&p.SessionID)
	if err != nil {
		return nil, err
	}
	a := c.agent
	if s.name == "" || !a.forgetIf(s, func() bool { return true }) {
		return nil, unknownSession(p.SessionID)
	}
	defer a.ending.Done()
	r := &endedSession{last: func() {}}
	if own := s.silence(); own == c {
		// The session's processes may wait for this client to read, and so may the answer.
		late := time.AfterFunc(endedPatience, c.peer.Close)
		r.last = func() {
			late.Stop()
			c.peer.Close()
		}
	} else if own != nil {
		own.peer.Close() // a process or socket may wait for its client to read
	}
	s.audit.Ended("by a client")
	s.end()
	return r, nil
}

// silence ends the notifications and questions of a session. It returns the attached connection.
func (s *Session) silence() *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.muteLocked()
	return s.connection
}
