package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("answer %d is %q", status, body)
	}
	return status, failure.Error.Code, answer
}

// TestEnvironments: a harness is told of the environments that its key is for, and of no
// others (remote.md 3.6).
func TestEnvironments(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	var labelled store.Key
	if err := store.Persist(t.Context(), func() (err error) {
		_, labelled, err = s.store.CreateKey(t.Context(), store.Key{Role: string(ticket.Executor), Environments: "*", Label: "build machines"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
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
	if diff := cmp.Diff(wire.EnvironmentsResponse{Environments: want}, answer); diff != "" || status != http.StatusOK {
		t.Errorf("%d (-want +got):\n%s", status, diff)
	}
	for query, n := range map[string]int{"?after=ci-1": 2, "?after=ci-2x": 1, "?after=ci-3": 0, "?after=zzz": 0, "?after=a": 3} {
		if status, _, answer := s.listed(t, harness, query); status != http.StatusOK || len(answer.Environments) != n || answer.Environments == nil {
			t.Errorf("%s: %d, %+v, want %d", query, status, answer, n)
		}
	}
	for _, query := range []string{"?after=", "?after=a/b", "?after=a&after=b", "?x=1", "?after=a&x=1", "?%", "?after=" + strings.Repeat("a", 257)} {
		if status, code, _ := s.listed(t, harness, query); status != http.StatusBadRequest || code != codeBadRequest {
			t.Errorf("%s: %d %s", query, status, code)
		}
	}
	// A key whose pattern fits nothing learns nothing, and not how much there is.
	other, _ := createKey(t, s.store, ticket.Harness, "other", store.Limits{})
	if status, _, answer := s.listed(t, other, ""); status != http.StatusOK || len(answer.Environments) > 0 || answer.Next != "" {
		t.Errorf("another key: %d, %+v", status, answer)
	}
	// Other methods and paths.
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodHead} {
		if status, header, _ := s.do(t, method, wire.PathEnvironments, "{}", http.Header{"Authorization": {"Bearer " + harness}}); status != http.StatusMethodNotAllowed || header.Get("Allow") != http.MethodGet {
			t.Errorf("%s: %d", method, status)
		}
	}
	if status, _, _ := s.do(t, http.MethodGet, wire.PathEnvironments+"/", "", http.Header{"Authorization": {"Bearer " + harness}}); status != http.StatusNotFound {
		t.Errorf("a path below it: %d", status)
	}
	rig.Is(t, strings.Contains(s.log.String(), harness), false, "the log has a key")
}

// TestEnvironmentsRefused: no key, the key of an executor, one that is revoked or over, and
// too many requests.
func TestEnvironmentsRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	revoked, id := createKey(t, s.store, ticket.Harness, "*", store.Limits{})
	if status, _, _ := s.listed(t, revoked, ""); status != http.StatusOK {
		t.Errorf("before it is revoked: %d", status)
	}
	rig.Value(s.store.RevokeKey(t.Context(), id))
	over, _, err := s.store.CreateKey(t.Context(), store.Key{Role: string(ticket.Harness), Environments: "*", Expires: time.Now().Add(-time.Second)})
	rig.Must(t, err)
	for key, want := range map[string]int{"": 401, "xa_nonsense": 401, revoked: 401, over: 401, executor: 403} {
		if status, _, _ := s.listed(t, key, ""); status != want {
			t.Errorf("%.6s: %d, want %d", key, status, want)
		}
	}
	slow, _ := createKey(t, s.store, ticket.Harness, "*", store.Limits{Requests: 0.001, RequestBurst: 2})
	for n, want := range []int{200, 200, 429} {
		if status, _, _ := s.listed(t, slow, ""); status != want {
			t.Errorf("request %d: %d, want %d", n+1, status, want)
		}
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
	if diff := cmp.Diff(want, got); diff != "" || pages != 1 {
		t.Errorf("%d pages (-want +got):\n%s", pages, diff)
	}
	p.Environments = "*"
	first := page(known, p, "")
	second := page(known, p, first.Next)
	if first.Next != known[maxEnvironments-1].ID || second.Environments[0].ID != known[maxEnvironments].ID {
		t.Errorf("the first page ends with %s, the second begins with %s", first.Next, second.Environments[0].ID)
	}
}

// TestDirectory: requests share one reading for a second, and a failure is not kept.
func TestDirectory(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	s.mustRegister(t, executor, "e-1", storetest.Key(t))
	known, err := s.directory.read(t.Context(), s.store)
	rig.Must(t, err)
	rig.Is(t, len(known), 1, "registrations: %+v", known)
	s.mustRegister(t, executor, "e-2", storetest.Key(t))
	s.directory.at = time.Now().Add(time.Hour) // a busy machine may take a second for the above
	if known, err = s.directory.read(t.Context(), s.store); err != nil || len(known) != 1 {
		t.Errorf("within the second: %+v, %v", known, err)
	}
	s.directory.at = time.Now().Add(-directoryFresh)
	if known, err = s.directory.read(t.Context(), s.store); err != nil || len(known) != 2 {
		t.Errorf("after it: %+v, %v", known, err)
	}
}
