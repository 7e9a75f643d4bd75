package registry

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// TestValidationsAreApart: however often harnesses make an executor ask about them, its key
// can still register. If that was answered 429, the executor would end.
func TestValidationsAreApart(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Limits: store.Limits{Requests: 0.001, RequestBurst: 4}})
	key, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	id, _ := s.mustRegister(t, key, "env", storetest.Key(t))
	question := wire.ValidateRequest{ExecutorRegistrationID: id, HarnessPublicKey: storetest.Key(t), HarnessKeyAuthorization: "not one"}
	answers := map[int]int{}
	for range 10 {
		answers[statusOf(s.post(t, "Bearer "+key, "/cloud/environment/env/validate", question))]++
	}
	rig.Same(t, "answers by status", map[int]int{200: 4, 429: 6}, answers)
	s.mustRegister(t, key, "another", storetest.Key(t))
}

// TestNewEnvironments: a principal that has registered too many new environments is
// refused another one, and keeps those that it has. Others are not refused.
func TestNewEnvironments(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	busy, id := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	other, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	public := storetest.Key(t)
	a := s.limits.Allowance(store.KeyPrefix + id)
	a.Created.SetLimit(0) // nothing is given back meanwhile
	for _, key := range []*wire.PublicKey{public, public, storetest.Key(t), public} {
		s.mustRegister(t, busy, "first", key)
		rig.Is(t, a.Created.Tokens(), limits.MaxNewEnvironments-1, "are left after the first")
	}
	a.Created.AllowN(time.Now(), limits.MaxNewEnvironments-1)
	rig.Is(t, s.refusal(t, busy, "more/register", registerBody(public)), "429 rate_limited", "one more")
	s.mustRegister(t, busy, "first", public)
	s.mustRegister(t, other, "more", public)
	s.mustRegister(t, busy, "more", storetest.Key(t))
}

// TestLines: when a principal causes too many lines in the log, some are left out and
// counted. The lines about others are all there.
func TestLines(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Limits: store.Limits{Connections: 2, RequestBurst: 2}})
	register := func(environmentID string) (lines *rate.Limiter, old string) {
		key, id := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
		lines = s.limits.Allowance(store.KeyPrefix + id).Lines
		lines.SetLimit(0) // nothing is given back meanwhile
		_, old = s.mustRegister(t, key, environmentID, storetest.Key(t))
		s.mustRegister(t, key, environmentID, storetest.Key(t))
		return lines, old
	}
	refused := func(old string, times int) string {
		s.log.Reset()
		for range times {
			err := rig.Err(socket.Dial(t.Context(), old, nil, socket.Config{}))
			rig.Is(t, err == nil, false, "a websocket of an old registration is open")
		}
		return s.log.String()
	}
	const message = `msg="websocket refused"`
	lines, old := register("busy")
	_, oldOfOther := register("other")
	const linesPerConnection = 3 // the constant of package limits
	rig.Is(t, strings.Count(refused(old, 10), message), 2*linesPerConnection-2, "of 10 lines are there")
	counts := func(text string) string {
		return fmt.Sprint(strings.Count(text, message), strings.Count(text, "lines_left_out"), strings.Count(text, "lines_left_out=6\n"))
	}
	rig.Is(t, counts(refused(oldOfOther, 1)), "1 0 0", "the other's line")
	lines.SetLimit(rate.Inf)
	rig.Is(t, counts(refused(old, 2)), "2 1 1", "later lines")
}

// TestLinesOfTrouble: when the store fails that is logged, but not for each request.
func TestLinesOfTrouble(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	start := time.Now()
	for range 1000 {
		s.broken("connect", "env", store.ErrUnavailable)
	}
	n, most := strings.Count(s.log.String(), "the store fails"), 101+int(time.Since(start)/time.Second)
	rig.Is(t, min(max(n, 100), most), n, "lines")
}

// TestNewEnvironmentsAtOnce: a principal may not register more new environments at once
// than one after another. Attempts that fail do not count.
func TestNewEnvironmentsAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	key, id := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	a := s.limits.Allowance(store.KeyPrefix + id)
	a.Created.SetLimit(0) // nothing is given back meanwhile
	a.Created.AllowN(time.Now(), limits.MaxNewEnvironments-3)
	public := storetest.Key(t)
	statuses := make([]int, 100)
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() {
			statuses[i] = statusOf(s.post(t, "Bearer "+key, fmt.Sprintf("/cloud/environment/env-%d/register", i), registerBody(public)))
		})
	}
	wg.Wait()
	registered := 0
	for _, status := range statuses {
		if status == http.StatusOK {
			registered++
		}
	}
	creating := s.limits.Usage(store.KeyPrefix + id).Creating
	rig.Is(t, registered > 3, false, "%d are registered", registered)
	rig.Is(t, fmt.Sprint(creating, a.Created.Tokens()), fmt.Sprint(0, float64(3-registered)), "under way, and left")
}
