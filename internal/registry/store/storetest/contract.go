package storetest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// Contract has the methods that a [Fake] and a [store.Store] have in common.
type Contract interface {
	Announce(ctx context.Context, node string) error
	Heartbeat(ctx context.Context, self store.Server)
	Withdraw(ctx context.Context, node string) error
	Alive(ctx context.Context, node string) (bool, error)
	OpenPost(ctx context.Context, node string, pending int64) (store.Post, error)
	Principal(ctx context.Context, id string) (p *store.Principal, found bool, err error)
	WatchRevocations(ctx context.Context) (store.Revocations, error)
	See(ctx context.Context, environmentID string) (reg store.Seen, found bool, err error)
	SetOnline(ctx context.Context, p store.Presence, reg store.Seen) (revision uint64, err error)
	SetOffline(ctx context.Context, environmentID string, revision uint64) error
	Presence(ctx context.Context, environmentID string) (p store.Presence, revision uint64, found bool, err error)
	Online(ctx context.Context, environmentID string) (p store.Presence, online bool, err error)

	SharedKey(ctx context.Context) ([]byte, error)
	CreateKey(ctx context.Context, k store.Key) (text string, created store.Key, err error)
	RevokeKey(ctx context.Context, id string) (store.Key, error)
	AddIdentity(ctx context.Context, i store.Identity) error
	RemoveIdentity(ctx context.Context, runtimeID string) error
	Register(ctx context.Context, environmentID string, key *wire.PublicKey, principal string, allowed func() bool, here func(registrationID string) bool) (reg store.Registration, conflict bool, err error)
}

// TestStore checks, with two stores of one state, the behaviour that a rendezvous relies on. away
// makes this state unreachable, and reachable again.
func TestStore(t testing.TB, st, other Contract, away func(away bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	keyID := principals(t, ctx, st, other)
	presences(t, ctx, st, other)

	here, err := st.OpenPost(ctx, "here", 1<<20)
	must(t, err)
	there, err := other.OpenPost(ctx, "there", 1<<10)
	must(t, err)
	var receiving sync.WaitGroup
	defer func() {
		cancel()
		receiving.Wait()
		must(t, errors.Join(here.Close(), there.Close()))
	}()
	letters(t, ctx, here, there, &receiving)

	away(true)
	for here.Connected() || there.Connected() {
		time.Sleep(time.Millisecond) // no event tells when a client has noticed
	}
	if err := here.Send("there", "frame", "here", nil); err == nil {
		t.Error("a letter can be sent while the store is away")
	}
	brief, enough := context.WithTimeout(ctx, 10*time.Millisecond)
	defer enough()
	if _, _, err := st.Principal(brief, keyID); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a store that is away says %v", err)
	}
	away(false)
	<-here.Back()
	<-there.Back()
	must(t, here.SendAll("back", nil))
	must(t, store.Persist(ctx, func() error {
		_, _, err := st.Principal(ctx, keyID)
		return err
	}))
}

// principals checks which credentials are valid, and that watches report their changes.
func principals(t testing.TB, ctx context.Context, st, other Contract) (keyID string) {
	key, err := st.SharedKey(ctx)
	must(t, err)
	if again, err := other.SharedKey(ctx); err != nil || !bytes.Equal(key, again) || len(key) != 32 {
		t.Errorf("the shared key is %d bytes, then %d, %v", len(key), len(again), err)
	}
	watch, err := other.WatchRevocations(ctx)
	must(t, err)
	heard := make(chan string, 100)
	var watching sync.WaitGroup
	watched, over := context.WithCancel(ctx)
	watching.Go(func() { watch.Run(watched, func(id string) { heard <- id }) })
	defer watching.Wait()
	defer over()
	hears := func(id string) {
		t.Helper()
		if got := receive(t, heard); got != id {
			t.Errorf("heard of %s, want %s", got, id)
		}
	}
	is := func(id string, want *store.Principal) {
		t.Helper()
		p, found, err := other.Principal(ctx, id)
		if err != nil || found != (want != nil) || found && *p != *want {
			t.Errorf("principal %s is %+v, %v, want %+v", id, p, err, want)
		}
	}
	is("key:0123456789abcdef", nil)
	is("agent:nobody", nil)
	is("", nil)
	limits := store.Limits{Streams: 3}
	_, k, err := st.CreateKey(ctx, store.Key{Role: "harness", Environments: "env*", Limits: limits})
	must(t, err)
	keyID = store.KeyPrefix + k.ID
	hears(keyID)
	is(keyID, &store.Principal{ID: keyID, Role: ticket.Harness, Environments: "env*", Limits: limits})
	_, expired, err := st.CreateKey(ctx, store.Key{Role: "harness", Environments: "*", Expires: time.Now()})
	must(t, err)
	hears(store.KeyPrefix + expired.ID)
	is(store.KeyPrefix+expired.ID, nil)
	for _, environments := range []string{"a", "b"} {
		must(t, st.AddIdentity(ctx, store.Identity{RuntimeID: "agent", PublicKey: make([]byte, ed25519.PublicKeySize), Environments: environments}))
		hears("agent:agent")
		is("agent:agent", &store.Principal{ID: "agent:agent", Role: ticket.Executor, Environments: environments})
	}
	must(t, st.RemoveIdentity(ctx, "agent"))
	hears("agent:agent")
	is("agent:agent", nil)
	_, err = st.RevokeKey(ctx, k.ID)
	must(t, err)
	hears(keyID)
	is(keyID, nil)
	if _, err := st.RevokeKey(ctx, "0123456789abcdef"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("revoking an unknown key: %v", err)
	}
	unused, err := st.WatchRevocations(ctx)
	must(t, err)
	must(t, unused.Stop())
	return keyID
}

// presences checks registrations and the presences of their executors.
func presences(t testing.TB, ctx context.Context, st, other Contract) {
	yes, no := func() bool { return true }, func(string) bool { return false }
	key := Key(t)
	if _, found, err := st.See(ctx, "env"); found || err != nil {
		t.Errorf("an environment is seen that nobody has registered: %v", err)
	}
	if _, _, err := st.Register(ctx, "env", key, "key:1", func() bool { return false }, no); !errors.Is(err, store.ErrNewEnvironments) {
		t.Errorf("a new environment that is not allowed: %v", err)
	}
	register := func(key *wire.PublicKey, here func(string) bool, want bool) (reg store.Registration) {
		t.Helper()
		reg, conflict, err := st.Register(ctx, "env", key, "key:1", yes, here)
		if err != nil || conflict == want {
			t.Errorf("registering: conflict %v, %v", conflict, err)
		}
		return reg
	}
	reg := register(key, no, true)
	seen, found, err := other.See(ctx, "env")
	if err != nil || !found || seen.ID != reg.ID || seen.Principal != "key:1" || !seen.Key.Equal(key) {
		t.Errorf("seen is %+v, %v", seen, err)
	}
	if again := register(key, func(string) bool { return true }, true); again.ID != reg.ID {
		t.Errorf("the same key gets registration %s, then %s", reg.ID, again.ID)
	}
	register(Key(t), func(id string) bool { return id == reg.ID }, false)

	online := func(id string, seen store.Seen) (uint64, error) {
		return st.SetOnline(ctx, store.Presence{EnvironmentID: "env", RegistrationID: id, Node: "node", Principal: "key:1"}, seen)
	}
	if _, err := online("reg_other", store.Seen{}); err == nil || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("another registration goes online: %v", err)
	}
	first, err := online(reg.ID, seen)
	must(t, err)
	second, err := online(reg.ID, store.Seen{})
	must(t, err)
	if second <= first || first == 0 {
		t.Errorf("revision %d follows on %d", second, first)
	}
	must(t, st.SetOffline(ctx, "env", first)) // of an older websocket
	is := func(present, alive bool) {
		t.Helper()
		p, revision, found, err := other.Presence(ctx, "env")
		if err != nil || found != present || found && (p.RegistrationID != reg.ID || p.Node != "node" || revision != second) {
			t.Errorf("presence is %+v, revision %d, %v", p, revision, err)
		}
		if _, online, err := other.Online(ctx, "env"); err != nil || online != (present && alive) {
			t.Errorf("online is %v, %v", online, err)
		}
		if lives, err := other.Alive(ctx, "node"); err != nil || lives != alive {
			t.Errorf("alive is %v, %v", lives, err)
		}
	}
	is(true, false)
	must(t, st.Announce(ctx, "node"))
	is(true, true)
	register(Key(t), no, false)
	must(t, st.Withdraw(ctx, "node"))
	is(true, false)
	must(t, st.Announce(ctx, "node"))
	must(t, st.SetOffline(ctx, "env", second))
	is(false, true)
	if next := register(Key(t), no, true); next.ID == reg.ID {
		t.Error("another key gets the same registration")
	}
	if _, err := online(reg.ID, store.Seen{}); err == nil || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the executor of the registration before goes online: %v", err)
	}
	is(false, true)
	over, cancel := context.WithCancel(ctx)
	cancel()
	st.Heartbeat(over, store.Server{Node: "node"}) // returns
}

// letters checks the posts of two servers.
func letters(t testing.TB, ctx context.Context, here, there store.Post, receiving *sync.WaitGroup) {
	own, all, missed := make(chan store.Letter, 100), make(chan store.Letter, 100), make(chan error, 100)
	held := make(chan struct{})
	receiving.Go(func() {
		there.Receive(ctx, func(l store.Letter) {
			own <- l
			<-held
		}, func(err error) { missed <- err })
	})
	receiving.Go(func() { here.ReceiveAll(ctx, func(l store.Letter) { all <- l }, func(err error) { missed <- err }) })
	data := []byte("first")
	must(t, here.Send("there", "executor.reg", "here.7", data))
	clear(data) // because the sender may reuse the slice
	must(t, here.Send("nowhere", "notice", "here", nil))
	must(t, here.SendAll("here", []byte("to all")))
	must(t, there.SendAll("there", []byte("to all")))
	if l := receive(t, own); l.About != "executor.reg" || l.From != "here.7" || string(l.Data) != "first" {
		t.Errorf("got %+v", l)
	}
	var from []string
	for range 2 { // the letter of this server comes, too
		l := receive(t, all)
		from = append(from, l.From)
		if l.About != "" || string(l.Data) != "to all" {
			t.Errorf("got %+v", l)
		}
	}
	slices.Sort(from)
	if !slices.Equal(from, []string{"here", "there"}) {
		t.Errorf("heard %q", from)
	}
	// Letters beyond the bound are lost, and later letters arrive.
	for range 4 {
		must(t, here.Send("there", "frame", "here", make([]byte, 400)))
	}
	must(t, here.SendAll("here", nil)) // behind these letters
	receive(t, all)
	close(held)
	if err := receive(t, missed); err == nil {
		t.Error("missed without a reason")
	}
	must(t, here.Send("there", "last", "here", nil))
	for receive(t, own).About != "last" {
	}
}

func receive[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		t.Fatal("nothing came")
	}
	return v
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
