package registry

import (
	"crypto/ed25519"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/test/rig"
)

// TestAgentIdentity goes through the API with assertions, at two servers.
func TestAgentIdentity(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	one := startServer(t, Config{Store: st})
	two := startServer(t, Config{Store: storetest.Beside(t, dir), ClockSkew: 40 * time.Second})
	public, private, err := ed25519.GenerateKey(nil)
	rig.Must(t, err)
	_, stranger, err := ed25519.GenerateKey(nil)
	rig.Must(t, err)
	rig.Must(t, st.AddIdentity(t.Context(), store.Identity{RuntimeID: "agent-rt-1", PublicKey: public, Environments: "env-*"}))
	body := registerBody(storetest.Key(t))
	register := func(s *testServer, header, environmentID string) int {
		t.Helper()
		return statusOf(s.post(t, header, "/cloud/environment/"+environmentID+"/register", body))
	}
	now := time.Now()
	good := assertionHeader(t, private, "agent-rt-1", "task-1", now)
	for _, tt := range []struct {
		name   string
		server *testServer
		header string
		path   string
		want   int
	}{
		{"good", one, good, "env-1", 200},
		{"the same in the same second", one, good, "env-1", 200},
		{"the same at another server", two, good, "env-1", 200},
		{"other environment", one, good, "prod", 403},
		{"stranger's signature", one, assertionHeader(t, stranger, "agent-rt-1", "task-1", now), "env-1", 401},
		{"unknown agent", one, assertionHeader(t, private, "agent-rt-2", "task-1", now), "env-1", 401},
		{"a minute late", one, assertionHeader(t, private, "agent-rt-1", "task-old", now.Add(-62*time.Second)), "env-1", 401},
		{"a minute early", one, assertionHeader(t, private, "agent-rt-1", "task-new", now.Add(70*time.Second)), "env-1", 401},
		{"30 s late", one, assertionHeader(t, private, "agent-rt-1", "task-2", now.Add(-30*time.Second)), "env-1", 200},
		{"50 s late where less is allowed", two, assertionHeader(t, private, "agent-rt-1", "task-3", now.Add(-50*time.Second)), "env-1", 401},
		{"3 s older than the newest", two, assertionHeader(t, private, "agent-rt-1", "task-1", now.Add(-3*time.Second)), "env-1", 200},
		{"7 s older than the newest", two, assertionHeader(t, private, "agent-rt-1", "task-1", now.Add(-7*time.Second)), "env-1", 401},
		{"newer", two, assertionHeader(t, private, "agent-rt-1", "task-1", now.Add(8*time.Second)), "env-1", 200},
		{"replayed at the other server", one, good, "env-1", 401},
	} {
		rig.Is(t, register(tt.server, tt.header, tt.path), tt.want, "%s", tt.name)
	}
	another := assertionHeader(t, private, "agent-rt-1", "task-9", now)
	rig.Is(t, statusOf(one.post(t, another, "/cloud/environment/env-1/connect", body)), http.StatusForbidden, "an agent connects")
	assertion := strings.TrimPrefix(good, "AgentAssertion ")
	rig.Is(t, strings.Contains(one.log.String(), assertion), false, "the log holds an assertion")
	rig.Must(t, st.RemoveIdentity(t.Context(), "agent-rt-1"))
	rig.Is(t, register(two, assertionHeader(t, private, "agent-rt-1", "task-4", time.Now()), "env-1"), 401, "a removed agent")
	rig.Is(t, st.RemoveIdentity(t.Context(), "agent-rt-1"), store.ErrNotFound, "removed again")
}

// TestAgentFloodIsNotRemembered: the store remembers nothing of requests above the limit
// of an identity.
func TestAgentFloodIsNotRemembered(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	s := startServer(t, Config{Store: st})
	public, private, err := ed25519.GenerateKey(nil)
	rig.Must(t, err)
	limits := store.Limits{Requests: 0.001, RequestBurst: 2}
	rig.Must(t, st.AddIdentity(t.Context(), store.Identity{RuntimeID: "agent", PublicKey: public, Environments: "env", Limits: limits}))
	now := time.Now()
	for i := range 5 {
		header := assertionHeader(t, private, "agent", "task-"+strconv.Itoa(i), now)
		status := statusOf(s.post(t, header, "/cloud/environment/other/register", "{}"))
		rig.Is(t, status, map[bool]int{true: http.StatusForbidden, false: http.StatusTooManyRequests}[i < limits.RequestBurst], "request %d", i)
	}
	remembered := storetest.Keys(t, storetest.Bucket(t, storetest.Connect(t, dir), "replay"))
	rig.Is(t, len(remembered), limits.RequestBurst, "tasks are remembered")
}
