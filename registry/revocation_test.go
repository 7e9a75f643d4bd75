package registry

import (
	"bytes"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/execagent/execagent/registry/ticket"
)

// TestExpired: an audit ends the websockets of a key that has expired, and
// leaves the others.
func TestExpired(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(Config{})
	expires := time.Now().Add(4 * time.Second)
	valid := c.harnessKey
	c.harnessKey = c.principal(Key{Role: string(ticket.Harness), Environments: "*", Expires: expires})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 0)
	c.harnessKey = valid
	other := s.harness()
	opened(other, e, "other", 0)
	<-time.After(time.Until(expires))
	s.routes.review(t.Context(), "")
	h.wantEnd()
	e.wantReset("stream", resetHarnessGone)
	e.want(other.sendFrame(data("other", 1, "still here")))
}

// TestNarrowed: an identity that is replaced by one for other environments loses
// the websockets that it might not open any more.
func TestNarrowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(Config{})
	add := func(environments string) {
		t.Helper()
		identity := Identity{RuntimeID: "agent", PublicKey: make([]byte, ed25519.PublicKeySize), Environments: environments}
		if err := c.st.AddIdentity(t.Context(), identity); err != nil {
			t.Fatal(err)
		}
	}
	add("env*")
	c.executorKey = agentPrincipal + "agent"
	e := s.executor()
	add("other")
	e.wantEnd()
}

// TestStrangersDoNotFillTheLog: what needs no credential is not worth a line.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	log := new(bytes.Buffer)
	s := startServer(t, Config{Store: st, Logger: slog.New(slog.NewTextHandler(log, nil))})
	for _, path := range []string{ticket.RendezvousPath, ticket.RendezvousPath + "?role=environment", "/cloud/environment/env/connect", "/"} {
		if status, _, _ := s.do(t, http.MethodGet, path, "", nil); status < 400 {
			t.Errorf("%s: %d", path, status)
		}
	}
	if log.Len() != 0 {
		t.Errorf("the log says %q", log)
	}
}
