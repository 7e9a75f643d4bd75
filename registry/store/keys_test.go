package store

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/registry/ticket"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	other := openBeside(t, dir)
	ctx := t.Context()
	text, created, err := st.CreateKey(ctx, Key{Role: "harness", Environments: "ci-*", Label: "laptop", Limits: principal.Limits{Streams: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "xa_") || len(text) != 46 {
		t.Errorf("a key has %d bytes", len(text))
	}
	p, err := other.AuthenticateKey(ctx, text)
	if want := (principal.Principal{ID: principal.KeyPrefix + created.ID, Role: ticket.Harness, Environments: "ci-*", Limits: principal.Limits{Streams: 3}}); err != nil || *p != want {
		t.Fatalf("got %+v, %v, want %+v", p, err, want)
	}
	if same, found, err := other.Principal(ctx, p.ID); err != nil || !found || *same != *p {
		t.Errorf("by its id: %+v, %v, %v", same, found, err)
	}
	// Whoever steals the store gets no key that he could use.
	entry, err := st.keys.Get(ctx, created.ID)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(entry.Value()), text[3:]) {
		t.Error("the key itself is stored")
	}
	// A key whose hash only begins with the same bytes, those of the id, is another key.
	var record keyRecord
	if err := json.Unmarshal(entry.Value(), &record); err != nil {
		t.Fatal(err)
	}
	record.Hash[31] ^= 1
	if _, ok, err := st.put(ctx, st.keys, created.ID, record, entry.Revision()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := other.AuthenticateKey(ctx, text); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("with another hash: %v", err)
	}

	revoked, err := other.RevokeKey(ctx, created.ID)
	if err != nil || revoked.Revoked.IsZero() {
		t.Errorf("revoked: %+v, %v", revoked, err)
	}
	if again, err := st.RevokeKey(ctx, created.ID); err != nil || !again.Revoked.Equal(revoked.Revoked) {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	if _, found, err := st.Principal(ctx, p.ID); found || err != nil {
		t.Errorf("a revoked key is found: %v, %v", found, err)
	}
	for _, id := range []string{"", "0123456789abcdef", "xyz", "..", strings.ToUpper(created.ID), ">"} {
		if _, err := st.RevokeKey(ctx, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("revoking %q: %v", id, err)
		}
		if _, found, err := st.Principal(ctx, principal.KeyPrefix+id); found || err != nil {
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
	if err := st.RemoveIdentity(ctx, "a"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("removing one from a store that cannot be written: %v", err)
	}
	st.embedded.setFailure(nil)
	// An identity can be added again after its removal.
	for range 2 {
		if err := st.RemoveIdentity(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		if _, found, err := st.Principal(ctx, principal.AgentPrefix+"b"); found || err != nil {
			t.Errorf("found %v, %v after the removal", found, err)
		}
		if err := st.AddIdentity(ctx, Identity{RuntimeID: "b", PublicKey: public, Environments: "*"}); err != nil {
			t.Fatal(err)
		}
	}
}
