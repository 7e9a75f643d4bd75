package rendezvous

import (
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// Reasons in wire.HeaderRejectionReason of a refused upgrade, in addition to the reasons of
// package ticket (remote.md 4).
const (
	rejectDraining         = "pod_draining"
	rejectUnknownRoute     = "unknown_route"
	rejectRouteUnavailable = "route_unavailable"
	rejectMalformedHeader  = "malformed_header"
)

// refusal is the answer to a request that gets no websocket. After a status of 4xx an
// executor registers again; after any other status it tries the same URL again (remote.md
// 3.5). A harness always asks for another URL.
type refusal struct {
	status int
	reason string
}

// refusals has the statuses of the reasons for which a ticket is refused. The other reasons
// have the status 400.
var refusals = map[string]int{
	ticket.RejectExpired:          http.StatusUnauthorized,
	ticket.RejectInvalidSignature: http.StatusUnauthorized,
}

// ServeHTTP upgrades a request for a rendezvous URL, or refuses it with a reason in a header
// (remote.md 4). The websocket stays open after ServeHTTP has returned.
func (rs *Routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, t, reg, no := rs.admit(r)
	if no == nil {
		no = rs.welcome(w, r, p, t, reg)
	}
	if no != nil {
		rs.metrics.Refused(no.reason)
		level := slog.LevelInfo
		if t.RegistrationID == "" { // the request is from a stranger, who could fill the log
			level = slog.LevelDebug
		}
		rs.log.Tell(level, "websocket refused", t.EnvironmentID, t.RegistrationID, t.Principal, "status", no.status, "reason", no.reason)
		w.Header().Set(wire.HeaderRejectionReason, no.reason)
		http.Error(w, no.reason, no.status)
	}
}

// admit finds the principal, the ticket and the registration of a request, and checks that
// the URL is still valid. It asks the store only if the signature is right, so that strangers
// cost the store nothing. With a refusal the ticket is empty, unless the signature is right.
func (rs *Routes) admit(r *http.Request) (*store.Principal, ticket.Ticket, store.Seen, *refusal) {
	if rs.draining.Load() {
		return nil, ticket.Ticket{}, store.Seen{}, &refusal{http.StatusServiceUnavailable, rejectDraining}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, ticket.Ticket{}, store.Seen{}, &refusal{http.StatusBadRequest, ticket.RejectMalformedQuery}
	}
	t, rejection := rs.signer.Open(query, time.Now())
	if rejection != "" {
		status, ok := refusals[rejection]
		if !ok {
			status = http.StatusBadRequest
		}
		return nil, ticket.Ticket{}, store.Seen{}, &refusal{status, rejection}
	}
	if !wire.ValidEnvironmentID(t.EnvironmentID) || !validSubject(t.RegistrationID) {
		return nil, ticket.Ticket{}, store.Seen{}, &refusal{http.StatusBadRequest, ticket.RejectMalformedQuery}
	}
	unavailable := &refusal{http.StatusServiceUnavailable, rejectRouteUnavailable}
	var p *store.Principal
	var found bool
	var findErr error
	var wg sync.WaitGroup
	wg.Go(func() { p, found, findErr = rs.store.Principal(r.Context(), t.Principal) })
	reg, registered, err := rs.store.See(r.Context(), t.EnvironmentID)
	wg.Wait()
	switch {
	case findErr != nil:
		rs.log.Trouble("looking for a principal", "error", findErr)
		return nil, t, store.Seen{}, unavailable
	case !found || !p.May(t.Role, t.EnvironmentID):
		return nil, t, store.Seen{}, &refusal{http.StatusForbidden, ticket.RejectInvalidRole}
	case err != nil:
		rs.log.Trouble("looking for a registration", "environment", t.EnvironmentID, "error", err)
		return nil, t, store.Seen{}, unavailable
	case !registered || reg.ID != t.RegistrationID:
		return nil, t, store.Seen{}, &refusal{http.StatusGone, rejectUnknownRoute}
	}
	return p, t, reg, nil
}

// validSubject reports whether a registration id may be a part of a NATS subject. Letters
// between servers have the id in their subject.
func validSubject(id string) bool {
	return 0 < len(id) && len(id) <= 128 && !strings.ContainsFunc(id, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-')
	})
}

// welcome upgrades the request and leaves its websocket to a goroutine. If it returns
// nil, the request is answered, even if the upgrade has failed.
func (rs *Routes) welcome(w http.ResponseWriter, r *http.Request, who *store.Principal, t ticket.Ticket, reg store.Seen) *refusal {
	var owners wire.StreamOwners
	if t.Role == ticket.Executor {
		var err error
		if owners, err = wire.ParseStreamOwners(r.Header.Get(wire.HeaderStreamOwners)); err != nil {
			return &refusal{http.StatusBadRequest, rejectMalformedHeader}
		}
	}
	release, ok := rs.limits.Connect(who)
	if !ok {
		// An executor must not get 429. After a status of 4xx it registers again, and if
		// the answer to that request is 429, too, the reference ends forever.
		if t.Role == ticket.Executor {
			return &refusal{http.StatusServiceUnavailable, rejectRouteUnavailable}
		}
		return &refusal{http.StatusTooManyRequests, rejectRouteUnavailable}
	}
	p := peer{rs: rs, role: t.Role, meeting: rs.enter(t.EnvironmentID, t.RegistrationID), principal: who, release: release}
	if t.Role == ticket.Harness {
		if err := rs.findExecutor(r, p.meeting); err != nil {
			p.quit()
			rs.log.Tell(slog.LevelInfo, "no executor for a harness", t.EnvironmentID, t.RegistrationID, t.Principal, "error", err)
			return &refusal{http.StatusServiceUnavailable, rejectRouteUnavailable}
		}
	}
	var err error
	if p.socket, err = socket.Upgrade(w, r, socket.Config{Large: rs.limits.Large(who), Memory: rs.limits.Share(who.ID)}); err != nil {
		p.quit()
		rs.log.Tell(slog.LevelInfo, "websocket not opened", t.EnvironmentID, t.RegistrationID, t.Principal, "error", err)
		return nil
	}
	p.control = p.socket.NewLane(0)
	p.control.Share(rs.limits.Share(who.ID))
	if t.Role == ticket.Executor {
		e := &executor{peer: p, seen: reg, owners: owners}
		rs.start(&e.peer, e.serve)
	} else {
		h := &harness{peer: p}
		rs.start(&h.peer, h.serve)
	}
	return nil
}

// findExecutor returns an error unless the executor of the meeting is connected to this server
// or another server.
func (rs *Routes) findExecutor(r *http.Request, m *meeting) error {
	if m.online() {
		return nil
	}
	if err := rs.locate(r.Context(), m); err != nil {
		return err
	}
	if !m.online() {
		return errAbsent
	}
	return nil
}
