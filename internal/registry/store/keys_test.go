package store

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
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
	rig.Is(t, fmt.Sprint(text[:3], " ", len(text)), "xa_ 46", "how a key begins, its bytes")
	p := rig.Value(other.AuthenticateKey(ctx, text))
	rig.Is(t, *p, Principal{ID: KeyPrefix + created.ID, Role: ticket.Harness, Environments: "ci-*", Limits: Limits{Streams: 3}}, "it")
	same, _, err := other.Principal(ctx, p.ID)
	rig.Must(t, err)
	rig.Is(t, *same, *p, "the principal by its id")
	// Whoever steals the store gets no key that he could use.
	entry := rig.Value(st.keys.Get(ctx, created.ID))
	rig.Is(t, strings.Contains(string(entry.Value()), text[3:]), false, "the key itself is stored")
	// A key whose hash only begins with the same bytes, those of the id, is another key.
	var record keyRecord
	rig.Must(t, json.Unmarshal(entry.Value(), &record))
	record.Hash[31] ^= 1
	rig.Is(t, found(st.put(ctx, st.keys, created.ID, record, entry.Revision())), "true <nil>", "it is written")
	rig.Is(t, rig.Err(other.AuthenticateKey(ctx, text)), ErrUnauthorized, "with another hash")

	revoked := rig.Value(other.RevokeKey(ctx, created.ID))
	rig.Is(t, revoked.Revoked.IsZero(), false, "it is revoked never")
	rig.Is(t, rig.Value(st.RevokeKey(ctx, created.ID)).Revoked.Equal(revoked.Revoked), true, "the time of a second revocation")
	rig.Is(t, found(st.Principal(ctx, p.ID)), "false <nil>", "a revoked key is found")
	for _, id := range []string{"", "0123456789abcdef", "xyz", "..", strings.ToUpper(created.ID), ">"} {
		rig.Is(t, rig.Err(st.RevokeKey(ctx, id)), ErrNotFound, "revoking %q", id)
		rig.Is(t, found(st.Principal(ctx, KeyPrefix+id)), "false <nil>", "principal %q", id)
	}
	for _, k := range []Key{{Role: "admin", Environments: "*"}, {Environments: "*"}, {Role: "executor"}, {Role: "executor", Environments: "a.b"},
		{Role: "executor", Environments: "*", Label: strings.Repeat("l", 257)}} {
		rig.Is(t, errorOf(st.CreateKey(ctx, k)) == nil, false, "%+v is accepted", k)
	}
	keys := rig.Value(st.Keys(ctx))
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
	identities := rig.Value(st.Identities(ctx))
	rig.Is(t, len(identities), 3, "identities: %+v", identities)
	for i, want := range []string{"a", "a/.>*:", "b"} {
		rig.Is(t, identities[i].RuntimeID+" "+identities[i].Environments, want+" second", "identity %d", i)
	}
	st.embedded.setFailure(errors.New("the disk is full"))
	rig.Is(t, st.RemoveIdentity(ctx, "a"), ErrUnavailable, "removing one from a store that cannot be written")
	st.embedded.setFailure(nil)
	// An identity can be added again after its removal.
	for range 2 {
		rig.Must(t, st.RemoveIdentity(ctx, "b"))
		rig.Is(t, found(st.Principal(ctx, AgentPrefix+"b")), "false <nil>", "found after the removal")
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
	texts := []string{first}
	over := func(n int) { // the first n texts, and no other
		t.Helper()
		for i, text := range texts {
			p, err := other.AuthenticateKey(ctx, text)
			if i < n {
				rig.Is(t, err, ErrUnauthorized, "text %d, which is over", i)
				continue
			}
			rig.Must(t, err)
			rig.Is(t, *p, Principal{ID: KeyPrefix + created.ID, Role: ticket.Executor, Environments: "ci-*", Limits: Limits{Streams: 3}}, "it")
		}
	}
	for i, grace := range []time.Duration{time.Hour, time.Hour, 0, time.Hour} {
		text, key, err := other.RotateKey(ctx, created.ID, grace)
		if err != nil || key.ID != created.ID || key.Rotated.IsZero() || key.FormerUntil.IsZero() != (grace == 0) {
			t.Fatalf("rotated: %+v, %v", key, err)
		}
		texts = append(texts, text)
		over([]int{0, 1, 3, 3}[i])
	}
	record, revision, err := st.key(ctx, created.ID)
	rig.Must(t, err)
	record.FormerUntil = time.Now() // as after an hour
	rig.Is(t, found(st.put(ctx, st.keys, created.ID, record, revision)), "true <nil>", "it is written")
	over(4)

	keys := rig.Value(st.Keys(ctx))
	rig.Is(t, len(keys), 1, "keys: %+v", keys)
	rig.Is(t, keys[0].ID, created.ID, "the id of the key")
	names := rig.Value(st.keys.Keys(ctx))
	rig.Is(t, len(names), 3, "the key, and its two latest texts: %q", names)
	for _, id := range names {
		rig.Is(t, found(st.Principal(ctx, KeyPrefix+id)), fmt.Sprint(id == created.ID, " <nil>"), "%s is a principal", id)
		if id == created.ID {
			continue
		}
		rig.Is(t, rig.Err(st.RevokeKey(ctx, id)), ErrNotFound, "a record of a text is revoked as a key")
		rig.Is(t, errorOf(st.RotateKey(ctx, id, 0)), ErrNotFound, "a record of a text is rotated as a key")
	}
	rig.Value(st.RevokeKey(ctx, created.ID))
	over(len(texts))
	rig.Is(t, errorOf(st.RotateKey(ctx, created.ID, time.Hour)), errNotValid, "a revoked key is rotated")
	rig.Is(t, errorOf(st.RotateKey(ctx, "0123456789abcdef", time.Hour)), ErrNotFound, "an unknown key is rotated")
	rig.Is(t, len(rig.Value(st.keys.Keys(ctx))), 3, "what the bucket has after that")
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
		keys := rig.Value(other.Keys(ctx))
		rig.Is(t, len(keys), 1, "keys: %+v", keys)
		return keys[0].LastUsed
	}
	rig.Is(t, last().IsZero(), true, "before its first use it was used never, but %v", last())
	use := func() {
		t.Helper()
		var wg sync.WaitGroup
		for _, at := range []*Store{st, other} {
			for range 20 {
				wg.Go(func() { rig.Check(t, rig.Err(at.AuthenticateKey(ctx, text))) })
			}
		}
		wg.Wait()
		st.usage.wg.Wait()
		other.usage.wg.Wait()
	}
	use()
	at := last()
	rig.Is(t, time.Since(at).Abs() > 2*time.Minute || at.Second() != 0, false, "it was used at %v", at)
	entry := rig.Value(st.usages.Get(ctx, created.ID))
	use()
	rig.Is(t, rig.Value(st.usages.Get(ctx, created.ID)).Revision(), entry.Revision(), "the revision within the hour")
	// An hour later.
	written := found(st.put(ctx, st.usages, created.ID, time.Now().Add(-usageInterval), entry.Revision()))
	rig.Is(t, written, "true <nil>", "it is written")
	st.usage.mu.Lock()
	clear(st.usage.due)
	st.usage.mu.Unlock()
	use()
	rig.Is(t, time.Since(last()).Abs() <= 2*time.Minute, true, "an hour later it was used ago: %v, at most %v", time.Since(last()).Abs(), 2*time.Minute)
}
