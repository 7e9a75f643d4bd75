package store

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/test/rig"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	other := openBeside(t, dir)
	ctx := t.Context()
	text, created, err := st.CreateKey(ctx, Key{Role: "harness", Environments: "ci-*", Label: "laptop", Limits: Limits{Streams: 3}})
	rig.Must(t, err)
	if !strings.HasPrefix(text, "xa_") || len(text) != 46 {
		t.Errorf("a key has %d bytes", len(text))
	}
	p, err := other.AuthenticateKey(ctx, text)
	if want := (Principal{ID: KeyPrefix + created.ID, Role: ticket.Harness, Environments: "ci-*", Limits: Limits{Streams: 3}}); err != nil || *p != want {
		t.Fatalf("got %+v, %v, want %+v", p, err, want)
	}
	if same, found, err := other.Principal(ctx, p.ID); err != nil || !found || *same != *p {
		t.Errorf("by its id: %+v, %v, %v", same, found, err)
	}
	// Whoever steals the store gets no key that he could use.
	entry := rig.Value(st.keys.Get(ctx, created.ID))
	rig.Is(t, strings.Contains(string(entry.Value()), text[3:]), false, "the key itself is stored")
	// A key whose hash only begins with the same bytes, those of the id, is another key.
	var record keyRecord
	rig.Must(t, json.Unmarshal(entry.Value(), &record))
	record.Hash[31] ^= 1
	if _, ok, err := st.put(ctx, st.keys, created.ID, record, entry.Revision()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	rig.Is(t, rig.Err(other.AuthenticateKey(ctx, text)), ErrUnauthorized, "with another hash")

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
		rig.Is(t, rig.Err(st.RevokeKey(ctx, id)), ErrNotFound, "revoking %q", id)
		if _, found, err := st.Principal(ctx, KeyPrefix+id); found || err != nil {
			t.Errorf("principal %q: %v, %v", id, found, err)
		}
	}
	for _, k := range []Key{{Role: "admin", Environments: "*"}, {Environments: "*"}, {Role: "executor"}, {Role: "executor", Environments: "a.b"},
		{Role: "executor", Environments: "*", Label: strings.Repeat("l", 257)}} {
		if _, _, err := st.CreateKey(ctx, k); err == nil {
			t.Errorf("%+v is accepted", k)
		}
	}
	keys, err := st.Keys(ctx)
	rig.Must(t, err)
	rig.Is(t, len(keys), 1, "keys: %+v", keys)
	keys[0].LastUsed = revoked.LastUsed // TestLastUsed looks at it
	rig.Is(t, keys[0], revoked, "the first key")
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
		rig.Is(t, st.AddIdentity(ctx, i) == nil, false, "%+v is accepted", i)
	}
	for _, id := range []string{"b", "a/.>*:", "a"} {
		for _, environments := range []string{"first", "second"} {
			rig.Must(t, st.AddIdentity(ctx, Identity{RuntimeID: id, PublicKey: public, Environments: environments}))
		}
	}
	identities, err := st.Identities(ctx)
	rig.Must(t, err)
	rig.Is(t, len(identities), 3, "identities: %+v", identities)
	for i, want := range []string{"a", "a/.>*:", "b"} {
		if identities[i].RuntimeID != want || identities[i].Environments != "second" {
			t.Errorf("identity %d is %+v, want %q", i, identities[i], want)
		}
	}
	st.embedded.setFailure(errors.New("the disk is full"))
	rig.Is(t, st.RemoveIdentity(ctx, "a"), ErrUnavailable, "removing one from a store that cannot be written")
	st.embedded.setFailure(nil)
	// An identity can be added again after its removal.
	for range 2 {
		rig.Must(t, st.RemoveIdentity(ctx, "b"))
		if _, found, err := st.Principal(ctx, AgentPrefix+"b"); found || err != nil {
			t.Errorf("found %v, %v after the removal", found, err)
		}
		rig.Must(t, st.AddIdentity(ctx, Identity{RuntimeID: "b", PublicKey: public, Environments: "*"}))
	}
}

// TestRotateKey: a key gets another text and stays what it is. The text before is valid as long as
// was said, one before that is not; and none is once the key is revoked.
func TestRotateKey(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	other := openBeside(t, dir)
	ctx := t.Context()
	first, created, err := st.CreateKey(ctx, Key{Role: "executor", Environments: "ci-*", Limits: Limits{Streams: 3}})
	rig.Must(t, err)
	check := func(text string, valid bool) {
		t.Helper()
		p, err := other.AuthenticateKey(ctx, text)
		if !valid {
			rig.Is(t, err, ErrUnauthorized, "a text that is over")
			return
		}
		if want := (Principal{ID: KeyPrefix + created.ID, Role: ticket.Executor, Environments: "ci-*", Limits: Limits{Streams: 3}}); err != nil || *p != want {
			t.Errorf("got %+v, %v, want %+v", p, err, want)
		}
	}
	rotate := func(grace time.Duration) string {
		t.Helper()
		text, key, err := other.RotateKey(ctx, created.ID, grace)
		if err != nil || key.ID != created.ID || key.Rotated.IsZero() || key.FormerUntil.IsZero() != (grace == 0) {
			t.Fatalf("rotated: %+v, %v", key, err)
		}
		return text
	}
	second := rotate(time.Hour)
	check(first, true)
	check(second, true)
	third := rotate(time.Hour)
	check(first, false)
	check(second, true)
	check(third, true)
	fourth := rotate(0)
	check(first, false)
	check(second, false)
	check(third, false)
	check(fourth, true)
	last := rotate(time.Hour)
	check(fourth, true)
	record, revision, err := st.key(ctx, created.ID)
	rig.Must(t, err)
	record.FormerUntil = time.Now() // as after an hour
	if _, ok, err := st.put(ctx, st.keys, created.ID, record, revision); !ok || err != nil {
		t.Fatal(ok, err)
	}
	check(fourth, false)
	check(last, true)

	keys, err := st.Keys(ctx)
	if err != nil || len(keys) != 1 || keys[0].ID != created.ID {
		t.Errorf("keys are %+v, %v", keys, err)
	}
	names, err := st.keys.Keys(ctx)
	if err != nil || len(names) != 3 { // the key, and its two latest texts
		t.Errorf("the bucket has %q, %v", names, err)
	}
	for _, id := range names {
		if _, found, err := st.Principal(ctx, KeyPrefix+id); err != nil || found != (id == created.ID) {
			t.Errorf("%s is a principal: %v, %v", id, found, err)
		}
		if id == created.ID {
			continue
		}
		rig.Is(t, rig.Err(st.RevokeKey(ctx, id)), ErrNotFound, "a record of a text is revoked as a key")
		if _, _, err := st.RotateKey(ctx, id, 0); !errors.Is(err, ErrNotFound) {
			t.Errorf("a record of a text is rotated as a key: %v", err)
		}
	}
	rig.Value(st.RevokeKey(ctx, created.ID))
	check(last, false)
	if _, _, err := st.RotateKey(ctx, created.ID, time.Hour); !errors.Is(err, errNotValid) {
		t.Errorf("a revoked key is rotated: %v", err)
	}
	if _, _, err := st.RotateKey(ctx, "0123456789abcdef", time.Hour); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown key is rotated: %v", err)
	}
	if now, err := st.keys.Keys(ctx); err != nil || len(now) != 3 {
		t.Errorf("after that the bucket has %q, %v", now, err)
	}
}

// TestLastUsed: the use of a key is written, once for many uses at any number of processes.
func TestLastUsed(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	other := openBeside(t, dir)
	ctx := t.Context()
	text, created, err := st.CreateKey(ctx, Key{Role: "harness", Environments: "*"})
	rig.Must(t, err)
	last := func() time.Time {
		t.Helper()
		keys, err := other.Keys(ctx)
		rig.Must(t, err)
		rig.Is(t, len(keys), 1, "keys: %+v", keys)
		return keys[0].LastUsed
	}
	rig.Is(t, last().IsZero(), true, "before its first use it was used never, but %v", last())
	use := func() {
		t.Helper()
		var wg sync.WaitGroup
		for _, at := range []*Store{st, other} {
			for range 20 {
				wg.Go(func() {
					rig.Check(t, rig.Err(at.AuthenticateKey(ctx, text)))
				})
			}
		}
		wg.Wait()
		st.usage.wg.Wait()
		other.usage.wg.Wait()
	}
	use()
	if at := last(); time.Since(at).Abs() > 2*time.Minute || at.Second() != 0 {
		t.Errorf("it was used at %v", at)
	}
	entry := rig.Value(st.usages.Get(ctx, created.ID))
	use()
	if now, err := st.usages.Get(ctx, created.ID); err != nil || now.Revision() != entry.Revision() {
		t.Errorf("it is written again within the hour: %v, %v", now, err)
	}
	// An hour later.
	if _, ok, err := st.put(ctx, st.usages, created.ID, time.Now().Add(-usageInterval), entry.Revision()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	st.usage.mu.Lock()
	clear(st.usage.due)
	st.usage.mu.Unlock()
	use()
	if at := last(); time.Since(at).Abs() > 2*time.Minute {
		t.Errorf("an hour later it was used at %v", at)
	}
}
