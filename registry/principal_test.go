package registry

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/registry/ticket"
)

func TestMatchEnvironment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, id string
		want        bool
	}{
		{"env", "env", true},
		{"env", "env2", false},
		{"env", "Env", false},
		{"*", "anything", true},
		{"**", "anything", true},
		{"ci-*", "ci-", true},
		{"ci-*", "ci-1", true},
		{"ci-*", "ci1", false},
		{"ci-*", "my-ci-1", false},
		{"*-ci", "my-ci", true},
		{"*-ci", "my-ci-2", false},
		{"a*a", "a", false},
		{"a*a", "aa", true},
		{"a*b*c", "abc", true},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "acb", false},
		{"a*bc*bc", "abcbc", true},
		{"a*bc*bc", "abc", false},
		{"*a*", "bab", true},
		{"*a*", "bbb", false},
		{"a**b", "ab", true},
		{"", "a", false},
	} {
		if got := matchEnvironment(tt.pattern, tt.id); got != tt.want {
			t.Errorf("%q matches %q: %v", tt.pattern, tt.id, got)
		}
	}
	for pattern, want := range map[string]bool{"ci-*": true, "*": true, "a_B-9": true, "": false, "a.b": false, "a b": false, "ä": false, strings.Repeat("a", 257): false} {
		if err := checkPattern(pattern); (err == nil) != want {
			t.Errorf("pattern %q: %v", pattern, err)
		}
	}
}

// TestMatchEnvironmentPlainly compares with the plainest way to match, for all
// short patterns and ids of few letters.
func TestMatchEnvironmentPlainly(t *testing.T) {
	t.Parallel()
	var plain func(pattern, id string) bool
	plain = func(pattern, id string) bool {
		switch {
		case pattern == "":
			return id == ""
		case pattern[0] == '*':
			return plain(pattern[1:], id) || id != "" && plain(pattern, id[1:])
		default:
			return id != "" && pattern[0] == id[0] && plain(pattern[1:], id[1:])
		}
	}
	patterns, ids := texts("ab*", 6), texts("ab", 7)
	for _, pattern := range patterns {
		for _, id := range ids {
			if got, want := matchEnvironment(pattern, id), plain(pattern, id); got != want {
				t.Errorf("%q matches %q: %v, want %v", pattern, id, got, want)
			}
		}
	}
}

// texts are all texts of these letters up to a length.
func texts(letters string, length int) []string {
	all := []string{""}
	for from := 0; length > 0; length-- {
		for to := len(all); from < to; from++ {
			for _, letter := range letters {
				all = append(all, all[from]+string(letter))
			}
		}
	}
	return all
}

func TestKeys(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	other := openBeside(t, dir)
	ctx := t.Context()
	text, created, err := st.CreateKey(ctx, Key{Role: "harness", Environments: "ci-*", Label: "laptop", Limits: Limits{Streams: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "xa_") || len(text) != 46 {
		t.Errorf("a key has %d bytes", len(text))
	}
	p, err := other.authenticateKey(ctx, text)
	if want := (principal{keyPrincipal + created.ID, ticket.Harness, "ci-*", Limits{Streams: 3}}); err != nil || *p != want {
		t.Fatalf("got %+v, %v, want %+v", p, err, want)
	}
	if same, found, err := other.principal(ctx, p.ID); err != nil || !found || *same != *p {
		t.Errorf("by its id: %+v, %v, %v", same, found, err)
	}
	// The store does not hold what a thief of it could use.
	entry, err := st.keys.Get(ctx, created.ID)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(entry.Value()), text[3:]) {
		t.Error("the key itself is stored")
	}
	// A key whose hash begins the same, as far as its id goes, is another key.
	var record keyRecord
	if err := json.Unmarshal(entry.Value(), &record); err != nil {
		t.Fatal(err)
	}
	record.Hash[31] ^= 1
	if _, ok, err := st.put(ctx, st.keys, created.ID, record, entry.Revision()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := other.authenticateKey(ctx, text); !errors.Is(err, errUnauthorized) {
		t.Errorf("with another hash: %v", err)
	}

	revoked, err := other.RevokeKey(ctx, created.ID)
	if err != nil || revoked.Revoked.IsZero() {
		t.Errorf("revoked: %+v, %v", revoked, err)
	}
	if again, err := st.RevokeKey(ctx, created.ID); err != nil || !again.Revoked.Equal(revoked.Revoked) {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	if _, found, err := st.principal(ctx, p.ID); found || err != nil {
		t.Errorf("a revoked key is found: %v, %v", found, err)
	}
	for _, id := range []string{"", "0123456789abcdef", "xyz", "..", strings.ToUpper(created.ID), ">"} {
		if _, err := st.RevokeKey(ctx, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("revoking %q: %v", id, err)
		}
		if _, found, err := st.principal(ctx, keyPrincipal+id); found || err != nil {
			t.Errorf("principal %q: %v, %v", id, found, err)
		}
	}
	for _, k := range []Key{{Role: "admin", Environments: "*"}, {Environments: "*"}, {Role: "executor"}, {Role: "executor", Environments: "a.b"},
		{Role: "executor", Environments: "*", Label: strings.Repeat("l", 257)}} {
		if _, _, err := st.CreateKey(ctx, k); err == nil {
			t.Errorf("%+v is accepted", k)
		}
	}
	if keys, err := st.Keys(ctx); err != nil || len(keys) != 1 || keys[0] != revoked {
		t.Errorf("keys are %+v, %v", keys, err)
	}
}

// TestAgentIdentity goes through the API with assertions, at two servers.
func TestAgentIdentity(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	one := startServer(t, Config{Store: st})
	two := startServer(t, Config{Store: openBeside(t, dir), ClockSkew: 10 * time.Second})
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.AddIdentity(t.Context(), Identity{RuntimeID: "agent-rt-1", PublicKey: public, Environments: "env-*"}); err != nil {
		t.Fatal(err)
	}
	body := registerBody(testKey(t))
	register := func(s *testServer, header, environmentID string) int {
		t.Helper()
		status, _, _ := s.post(t, header, "/cloud/environment/"+environmentID+"/register", body)
		return status
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
		{"50 s late", one, assertionHeader(t, private, "agent-rt-1", "task-2", now.Add(-50*time.Second)), "env-1", 200},
		{"50 s late where less is allowed", two, assertionHeader(t, private, "agent-rt-1", "task-3", now.Add(-50*time.Second)), "env-1", 401},
		{"3 s older than the newest", two, assertionHeader(t, private, "agent-rt-1", "task-1", now.Add(-3*time.Second)), "env-1", 200},
		{"7 s older than the newest", two, assertionHeader(t, private, "agent-rt-1", "task-1", now.Add(-7*time.Second)), "env-1", 401},
		{"newer", two, assertionHeader(t, private, "agent-rt-1", "task-1", now.Add(8*time.Second)), "env-1", 200},
		{"replayed at the other server", one, good, "env-1", 401},
	} {
		if got := register(tt.server, tt.header, tt.path); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	if status, code, _ := one.post(t, assertionHeader(t, private, "agent-rt-1", "task-9", now), "/cloud/environment/env-1/connect", body); status != http.StatusForbidden {
		t.Errorf("an agent connects: %d %s", status, code)
	}
	if strings.Contains(one.log.String(), strings.TrimPrefix(good, "AgentAssertion ")) {
		t.Error("the log holds an assertion")
	}
	if err := st.RemoveIdentity(t.Context(), "agent-rt-1"); err != nil {
		t.Fatal(err)
	}
	if got := register(two, assertionHeader(t, private, "agent-rt-1", "task-4", time.Now()), "env-1"); got != 401 {
		t.Errorf("a removed agent: %d", got)
	}
	if err := st.RemoveIdentity(t.Context(), "agent-rt-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed again: %v", err)
	}
}

func TestIdentities(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	ctx := t.Context()
	public := make([]byte, ed25519.PublicKeySize)
	for _, i := range []Identity{
		{PublicKey: public, Environments: "*"},
		{RuntimeID: "a b", PublicKey: public, Environments: "*"},
		{RuntimeID: "ä", PublicKey: public, Environments: "*"},
		{RuntimeID: strings.Repeat("a", 257), PublicKey: public, Environments: "*"},
		{RuntimeID: "a", PublicKey: public[1:], Environments: "*"},
		{RuntimeID: "a", PublicKey: public},
	} {
		if err := st.AddIdentity(ctx, i); err == nil {
			t.Errorf("%+v is accepted", i)
		}
	}
	for _, id := range []string{"b", "a/.>*:", "a"} {
		for _, environments := range []string{"first", "second"} {
			if err := st.AddIdentity(ctx, Identity{RuntimeID: id, PublicKey: public, Environments: environments}); err != nil {
				t.Fatal(err)
			}
		}
	}
	identities, err := st.Identities(ctx)
	if err != nil || len(identities) != 3 {
		t.Fatalf("identities are %+v, %v", identities, err)
	}
	for i, want := range []string{"a", "a/.>*:", "b"} {
		if identities[i].RuntimeID != want || identities[i].Environments != "second" {
			t.Errorf("identity %d is %+v, want %q", i, identities[i], want)
		}
	}
	st.embedded.setFailure(errors.New("the disk is full"))
	if err := st.RemoveIdentity(ctx, "a"); !errors.Is(err, errUnavailable) {
		t.Errorf("removing one from a store that cannot be written: %v", err)
	}
	st.embedded.setFailure(nil)
	// One that comes back after its removal is as good as new.
	for range 2 {
		if err := st.RemoveIdentity(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		if _, found, err := st.principal(ctx, agentPrincipal+"b"); found || err != nil {
			t.Errorf("found %v, %v after the removal", found, err)
		}
		if err := st.AddIdentity(ctx, Identity{RuntimeID: "b", PublicKey: public, Environments: "*"}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAgentFloodIsNotRemembered: requests above the limit of an identity leave
// nothing in the store.
func TestAgentFloodIsNotRemembered(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	s := startServer(t, Config{Store: st})
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	limits := Limits{Requests: 0.001, RequestBurst: 2}
	if err := st.AddIdentity(t.Context(), Identity{RuntimeID: "agent", PublicKey: public, Environments: "env", Limits: limits}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 5 {
		header := assertionHeader(t, private, "agent", "task-"+strconv.Itoa(i), now)
		status, _, _ := s.post(t, header, "/cloud/environment/other/register", "{}")
		if want := map[bool]int{true: http.StatusForbidden, false: http.StatusTooManyRequests}[i < limits.RequestBurst]; status != want {
			t.Errorf("request %d: %d, want %d", i, status, want)
		}
	}
	remembered, err := all[int64](t.Context(), st.replay)
	if err != nil || len(remembered) != limits.RequestBurst {
		t.Errorf("%d tasks are remembered, want %d; %v", len(remembered), limits.RequestBurst, err)
	}
}
