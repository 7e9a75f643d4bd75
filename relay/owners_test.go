package relay

import (
	"net/http"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// TestLinkTellsOwners: an executor that comes back says whose the streams are that it has,
// by what the registry has told it when they were opened.
func TestLinkTellsOwners(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.router = newRouter()
	came := make(chan http.Header, 16)
	s.router.arrived = func(p *peer) {
		if p.role == "environment" {
			came <- p.header
		}
	}
	s.validate = func(n int, _ *wire.ValidateRequest, w http.ResponseWriter) bool {
		reply(w, wire.ValidateResponse{Valid: true, Principal: []string{"of one harness", "of another"}[n]})
		return true
	}
	pace := timing{least: time.Millisecond, most: 10 * time.Millisecond}
	j := &meeting{s: s, l: startLink(t, s, pace), d: newDialer(t, s, pace)}
	rig.Is(t, len((<-came).Values(wire.HeaderStreamOwners)), 0, "owners without a stream")
	rig.Until(t, "the link", j.l.Ready)
	first, executor := j.pair(t)
	prove(t, j.s.router, first, executor)
	second, other := j.pair(t)
	prove(t, j.s.router, second, other)

	j.s.router.drop(true)
	owners := rig.Value(wire.ParseStreamOwners((<-came).Get(wire.HeaderStreamOwners)))
	rig.Is(t, len(owners), 2, "owners")
	for c, owner := range map[*harness]string{first.(*harness): "of one harness", second.(*harness): "of another"} {
		rig.Is(t, owners.Is(string(c.id), owner), true, "it has named the owner %s", owner)
	}
	echo(t, first, executor, []int{1, 100_000})
	echo(t, second, other, []int{1, 100_000})
}
