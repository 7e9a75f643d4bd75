package registry

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
)

const (
	// maxEnvironments is how many environments one answer lists.
	maxEnvironments = 500
	// directoryFresh is how long the list of all environments is used before it is read
	// again.
	directoryFresh = time.Second
)

// serveEnvironments lists for a harness the registered environments that its key is for,
// and which of them are online (remote.md 3.6).
func (s *Server) serveEnvironments(w http.ResponseWriter, r *http.Request) {
	const operation = "environments"
	defer s.metrics.took(operation, time.Now())
	ctx, cancel := context.WithTimeout(r.Context(), apiTimeout)
	defer cancel()
	r.Body = http.MaxBytesReader(w, r.Body, 0) // the body is not read
	result, failure := s.environments(ctx, w, r, operation)
	if failure == nil {
		s.answer(w, operation, http.StatusOK, result)
		return
	}
	if failure.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodGet)
	}
	s.log.Debug("request refused", "operation", operation, "status", failure.status, "reason", failure.code)
	s.fail(w, operation, failure)
}

func (s *Server) environments(ctx context.Context, w http.ResponseWriter, r *http.Request, operation string) (*wire.EnvironmentsResponse, *apiError) {
	if r.Method != http.MethodGet {
		return nil, &apiError{status: http.StatusMethodNotAllowed, code: codeMethod, message: "the method is not GET"}
	}
	p, failure := s.admit(ctx, r, operation, "", (*limits.Limiter).Request)
	if failure != nil {
		return nil, failure
	}
	if p.Role != ticket.Harness {
		return nil, forbidden(p, ticket.Harness)
	}
	after, ok := afterOf(r.URL.RawQuery)
	if !ok {
		return nil, &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: "the query is neither empty nor one environment id as " + wire.QueryAfter}
	}
	keep(w, r, p)
	known, err := s.directory.read(ctx, s.store)
	if err != nil {
		return nil, s.broken(operation, "", err)
	}
	return page(known, p, after), nil
}

// afterOf reads the query of a request: nothing, or the id of an environment.
func afterOf(query string) (after string, ok bool) {
	if query == "" {
		return "", true
	}
	values, err := url.ParseQuery(query)
	if err != nil || len(values) != 1 || len(values[wire.QueryAfter]) != 1 {
		return "", false
	}
	after = values.Get(wire.QueryAfter)
	return after, wire.ValidEnvironmentID(after)
}

// page lists the environments after an id that a harness may use.
func page(known []store.Known, p *store.Principal, after string) *wire.EnvironmentsResponse {
	answer := &wire.EnvironmentsResponse{Environments: []wire.Environment{}}
	begin, found := slices.BinarySearchFunc(known, after, func(k store.Known, id string) int { return strings.Compare(k.ID, id) })
	if found {
		begin++
	}
	for _, k := range known[begin:] {
		if !p.May(ticket.Harness, k.ID) {
			continue
		}
		if len(answer.Environments) == maxEnvironments {
			answer.Next = answer.Environments[maxEnvironments-1].ID
			break
		}
		answer.Environments = append(answer.Environments, wire.Environment{ID: k.ID, Online: !k.Since.IsZero(), Since: k.Since, Executor: k.Executor})
	}
	return answer
}

// directory has the list of all environments. Reading the list looks at each of them, so
// all requests within a second share one reading.
type directory struct {
	mu    sync.Mutex // protects the fields below; held while the list is read
	at    time.Time
	known []store.Known // never changed
}

// read returns all registered environments, sorted by id, at most directoryFresh old.
func (d *directory) read(ctx context.Context, st *store.Store) ([]store.Known, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && time.Since(d.at) < directoryFresh {
		return d.known, nil
	}
	// The first request may be cancelled, but the others still need the answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
	defer cancel()
	known, err := st.Known(ctx)
	if err != nil {
		return nil, err
	}
	d.known, d.at = known, time.Now()
	return known, nil
}
