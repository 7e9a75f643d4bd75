package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// environments asks as agent environments does.
func (s *testServer) listed(t *testing.T, key, query string) (status int, code string, answer wire.EnvironmentsResponse) {
	t.Helper()
	status, _, body := s.do(t, http.MethodGet, wire.PathEnvironments+query, "", http.Header{"Authorization": {"Bearer " + key}})
	var failure wire.Error
	var into any = &answer
	if status != http.StatusOK {
		into = &failure
	}
	rig.Must(t, json.Unmarshal(body, into))
	return status, failure.Error.Code, answer
}

// TestEnvironments: a harness is told of the environments that its key is for, and of no
// others (remote.md 3.6).
func TestEnvironments(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	var labelled store.Key
	rig.Must(t, store.Persist(t.Context(), func() (err error) {
		_, labelled, err = s.store.CreateKey(t.Context(), store.Key{Role: string(ticket.Executor), Environments: "*", Label: "build machines"})
		return err
	}))
	harness, _ := createKey(t, s.store, ticket.Harness, "ci-*", store.Limits{})
	for _, id := range []string{"ci-2", "ci-1", "ci-3", "prod-1", "xci-1"} {
		registration, _ := s.mustRegister(t, executor, id, storetest.Key(t))
		p := store.Presence{EnvironmentID: id, RegistrationID: registration, Node: s.node, Principal: "agent:rt-1", Since: time.Unix(1e9, 0).UTC()}
		switch id {
		case "ci-2", "prod-1":
			continue // offline
		case "ci-3":
			p.Principal = store.KeyPrefix + labelled.ID
		}
		rig.Value(s.store.SetOnline(t.Context(), p, store.Seen{}))
	}
	since := time.Unix(1e9, 0).UTC()
	want := []wire.Environment{
		{ID: "ci-1", Online: true, Since: since, Executor: "agent:rt-1"},
		{ID: "ci-2"},
		{ID: "ci-3", Online: true, Since: since, Executor: "build machines"},
	}
	status, _, answer := s.listed(t, harness, "")
	rig.Is(t, status, http.StatusOK, "status")
	rig.Same(t, "the answer", wire.EnvironmentsResponse{Environments: want}, answer)
	for query, n := range map[string]int{"?after=ci-1": 2, "?after=ci-2x": 1, "?after=ci-3": 0, "?after=zzz": 0, "?after=a": 3} {
		if status, _, answer := s.listed(t, harness, query); status != http.StatusOK || len(answer.Environments) != n || answer.Environments == nil {
			t.Errorf("%s: %d, %+v, want %d", query, status, answer, n)
		}
	}
	for _, query := range []string{"?after=", "?after=a/b", "?after=a&after=b", "?x=1", "?after=a&x=1", "?%", "?after=" + strings.Repeat("a", 257)} {
		status, code, _ := s.listed(t, harness, query)
		rig.Is(t, fmt.Sprint(status, " ", code), "400 bad_request", "%s", query)
	}
	// A key whose pattern fits nothing learns nothing, and not how much there is.
	other, _ := createKey(t, s.store, ticket.Harness, "other", store.Limits{})
	status, _, answer = s.listed(t, other, "")
	rig.Is(t, fmt.Sprintf("%d %v %q", status, answer.Environments, answer.Next), `200 [] ""`, "another key")
	// Other methods and paths.
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodHead} {
		status, header, _ := s.do(t, method, wire.PathEnvironments, "{}", http.Header{"Authorization": {"Bearer " + harness}})
		rig.Is(t, fmt.Sprint(status, " ", header.Get("Allow")), "405 GET", "%s", method)
	}
	authorized := http.Header{"Authorization": {"Bearer " + harness}}
	rig.Is(t, statusOf(s.do(t, http.MethodGet, wire.PathEnvironments+"/", "", authorized)), http.StatusNotFound, "a path below it")
	rig.Is(t, strings.Contains(s.log.String(), harness), false, "the log has a key")
}

// TestEnvironmentsRefused: no key, the key of an executor, one that is revoked or over, and
// too many requests.
func TestEnvironmentsRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	revoked, id := createKey(t, s.store, ticket.Harness, "*", store.Limits{})
	rig.Is(t, statusOf(s.listed(t, revoked, "")), http.StatusOK, "before it is revoked")
	rig.Value(s.store.RevokeKey(t.Context(), id))
	over, _, err := s.store.CreateKey(t.Context(), store.Key{Role: string(ticket.Harness), Environments: "*", Expires: time.Now().Add(-time.Second)})
	rig.Must(t, err)
	for key, want := range map[string]int{"": 401, "xa_nonsense": 401, revoked: 401, over: 401, executor: 403} {
		rig.Is(t, statusOf(s.listed(t, key, "")), want, "%.6s", key)
	}
	slow, _ := createKey(t, s.store, ticket.Harness, "*", store.Limits{Requests: 0.001, RequestBurst: 2})
	for n, want := range []int{200, 200, 429} {
		rig.Is(t, statusOf(s.listed(t, slow, "")), want, "request %d", n+1)
	}
}

// TestEnvironmentsPages: more than one answer holds come in several, each once and in order.
func TestEnvironmentsPages(t *testing.T) {
	t.Parallel()
	var known []store.Known
	for i := range 3*maxEnvironments + 7 {
		known = append(known, store.Known{ID: fmt.Sprintf("e%06d", i)})
	}
	p := &store.Principal{Role: ticket.Harness, Environments: "e*0"}
	var got []string
	after, pages := "", 0
	for {
		answer := page(known, p, after)
		pages++
		for _, e := range answer.Environments {
			got = append(got, e.ID)
		}
		if after = answer.Next; after == "" {
			break
		}
		rig.Is(t, len(answer.Environments), maxEnvironments, "environments of a page that says there is more")
	}
	var want []string
	for _, k := range known {
		if strings.HasSuffix(k.ID, "0") {
			want = append(want, k.ID)
		}
	}
	rig.Is(t, pages, 1, "pages")
	rig.Same(t, "what is listed", want, got)
	p.Environments = "*"
	first := page(known, p, "")
	second := page(known, p, first.Next)
	rig.Is(t, first.Next, known[maxEnvironments-1].ID, "the end of the first page")
	rig.Is(t, second.Environments[0].ID, known[maxEnvironments].ID, "the begin of the second page")
}

// TestDirectory: requests share one reading for a second, and a failure is not kept.
func TestDirectory(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	s.mustRegister(t, executor, "e-1", storetest.Key(t))
	read := func(want int, when string) {
		t.Helper()
		known := rig.Value(s.directory.read(t.Context(), s.store))
		rig.Is(t, len(known), want, "registrations %s: %+v", when, known)
	}
	read(1, "at first")
	s.mustRegister(t, executor, "e-2", storetest.Key(t))
	s.directory.at = time.Now().Add(time.Hour) // a busy machine may take a second for the above
	read(1, "within the second")
	s.directory.at = time.Now().Add(-directoryFresh)
	read(2, "after it")
}
