package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// The time between two announcements of a server of a Fake, and the time that the server lives
// after an announcement, as in a real store.
const (
	fakeBeat = 5 * time.Second
	fakeLife = 15 * time.Second
)

var (
	errFakeAway  = fmt.Errorf("the fake store is away: %w", store.ErrUnavailable)
	errFakeFull  = fmt.Errorf("the fake store takes no presence: %w", store.ErrUnavailable)
	errFakeTaken = errors.New("the environment has another registration")
)

// Fake is a store in memory, for tests that must not wait for NATS, such as a test in a bubble of
// testing/synctest. TestStore checks that it behaves like a real store. Copies share their state,
// as the stores of several processes do.
type Fake struct {
	Single bool // the result of Alone
	*fakeState
}

type fakeState struct {
	mu            sync.Mutex // protects the fields below
	secret        []byte
	keys          map[string]store.Key
	identities    map[string]store.Identity
	registrations map[string]store.Registration
	presences     map[string]fakePresence
	revision      uint64 // of the newest presence
	nodes         map[string]time.Time
	posts         []*fakePost
	watches       []*queue[string]
	away, full    bool
	held          chan struct{} // SetOnline waits until it is closed; nil: SetOnline does not wait
}

type fakePresence struct {
	store.Presence
	revision uint64
}

// NewFake makes an empty store.
func NewFake() *Fake {
	return &Fake{fakeState: &fakeState{
		secret: []byte(rand.Text() + rand.Text())[:32], keys: make(map[string]store.Key), identities: make(map[string]store.Identity),
		registrations: make(map[string]store.Registration), presences: make(map[string]fakePresence), nodes: make(map[string]time.Time),
	}}
}

// Away makes methods fail with store.ErrUnavailable and refuses letters, until it is called with
// false.
func (f *Fake) Away(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
	for _, p := range f.posts {
		if !away {
			p.back <- nats.CONNECTED
		}
	}
}

// Full makes the store refuse to note or remove presences, until it is called with false.
func (f *Fake) Full(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

// Hold makes SetOnline wait until release is called.
func (f *Fake) Hold() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := make(chan struct{})
	f.held = held
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.held = nil
		close(held)
	})
}

// Forget removes a presence, as a store that keeps presences in memory loses them when it
// restarts.
func (f *Fake) Forget(environmentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.presences, environmentID)
}

// reachedLocked returns the error of a store that does not answer.
func (s *fakeState) reachedLocked() error {
	if s.away {
		return errFakeAway
	}
	return nil
}

// Alone and the methods below are the methods of [store.Store].
func (f *Fake) Alone() bool { return f.Single }

func (f *Fake) SharedKey(context.Context) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.secret), f.reachedLocked()
}

func (f *Fake) CreateKey(_ context.Context, k store.Key) (text string, created store.Key, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k.ID, k.Created = fmt.Sprintf("%016x", len(f.keys)+1), time.Now().UTC()
	f.keys[k.ID] = k
	f.changedLocked(store.KeyPrefix + k.ID)
	return rand.Text(), k, f.reachedLocked()
}

func (f *Fake) RevokeKey(_ context.Context, id string) (store.Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.keys[id]
	if !ok {
		return store.Key{}, store.ErrNotFound
	}
	k.Revoked = time.Now().UTC()
	f.keys[id] = k
	f.changedLocked(store.KeyPrefix + id)
	return k, f.reachedLocked()
}

func (f *Fake) AddIdentity(_ context.Context, i store.Identity) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.identities[i.RuntimeID] = i
	f.changedLocked(store.AgentPrefix + i.RuntimeID)
	return f.reachedLocked()
}

func (f *Fake) RemoveIdentity(_ context.Context, runtimeID string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.identities, runtimeID)
	f.changedLocked(store.AgentPrefix + runtimeID)
	return f.reachedLocked()
}

func (s *fakeState) changedLocked(principalID string) {
	for _, q := range s.watches {
		q.put(principalID, 0)
	}
}

func (f *Fake) Principal(_ context.Context, id string) (p *store.Principal, found bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.reachedLocked(); err != nil {
		return nil, false, err
	}
	if i, ok := f.identities[strings.TrimPrefix(id, store.AgentPrefix)]; ok {
		return &store.Principal{ID: id, Role: ticket.Executor, Environments: i.Environments, Limits: i.Limits}, true, nil
	}
	k, ok := f.keys[strings.TrimPrefix(id, store.KeyPrefix)]
	if !ok || !k.Revoked.IsZero() || !k.Expires.IsZero() && !time.Now().Before(k.Expires) {
		return nil, false, nil
	}
	return &store.Principal{ID: id, Role: ticket.Role(k.Role), Environments: k.Environments, Limits: k.Limits}, true, nil
}

func (f *Fake) Register(_ context.Context, environmentID string, key *wire.PublicKey, principal string, allowed func() bool, here func(registrationID string) bool) (reg store.Registration, conflict bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.reachedLocked(); err != nil {
		return store.Registration{}, false, err
	}
	old, found := f.registrations[environmentID]
	if !found && !allowed() {
		return store.Registration{}, false, store.ErrNewEnvironments
	}
	reg = store.Registration{ID: "reg_" + rand.Text(), Key: key, Principal: principal, Created: time.Now().UTC()}
	if found && old.Key.Equal(key) {
		reg.ID, reg.Created = old.ID, old.Created
	} else if p, online := f.presences[environmentID]; found && here(old.ID) || online && f.livesLocked(p.Node) {
		return store.Registration{}, true, nil
	}
	f.registrations[environmentID] = reg
	return reg, false, nil
}

func (f *Fake) See(_ context.Context, environmentID string) (reg store.Seen, found bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reg.Registration, found = f.registrations[environmentID]
	return reg, found, f.reachedLocked()
}

// SetOnline always reads the registration, as a real store does without a [store.Seen].
func (f *Fake) SetOnline(ctx context.Context, p store.Presence, _ store.Seen) (revision uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.held != nil {
		held := f.held
		f.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	switch {
	case f.away || f.full:
		return 0, errFakeFull
	case f.registrations[p.EnvironmentID].ID != p.RegistrationID:
		return 0, errFakeTaken
	}
	f.revision++
	f.presences[p.EnvironmentID] = fakePresence{p, f.revision}
	return f.revision, nil
}

func (f *Fake) SetOffline(_ context.Context, environmentID string, revision uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away || f.full {
		return errFakeFull
	}
	if f.presences[environmentID].revision == revision {
		delete(f.presences, environmentID)
	}
	return nil
}

func (f *Fake) Presence(_ context.Context, environmentID string) (p store.Presence, revision uint64, found bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.reachedLocked(); err != nil {
		return store.Presence{}, 0, false, err
	}
	noted, found := f.presences[environmentID]
	return noted.Presence, noted.revision, found, nil
}

func (f *Fake) Online(ctx context.Context, environmentID string) (p store.Presence, online bool, err error) {
	if p, _, online, err = f.Presence(ctx, environmentID); err != nil || !online {
		return p, false, err
	}
	online, err = f.Alive(ctx, p.Node)
	return p, online, err
}

func (s *fakeState) livesLocked(node string) bool {
	at, ok := s.nodes[node]
	return ok && time.Since(at) < fakeLife
}

func (f *Fake) Alive(_ context.Context, node string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.livesLocked(node), f.reachedLocked()
}

func (f *Fake) Announce(_ context.Context, node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.reachedLocked(); err != nil {
		return err
	}
	f.nodes[node] = time.Now()
	return nil
}

func (f *Fake) Heartbeat(ctx context.Context, self store.Server) {
	beat := time.NewTicker(fakeBeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			_ = f.Announce(ctx, self.Node) // the next beat repeats it
		}
	}
}

func (f *Fake) Withdraw(_ context.Context, node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, node)
	return f.reachedLocked()
}

func (f *Fake) WatchRevocations(context.Context) (store.Revocations, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.reachedLocked(); err != nil {
		return nil, err
	}
	w := fakeWatch{f.fakeState, newQueue[string](0)}
	f.watches = append(f.watches, w.queue)
	return w, nil
}

type fakeWatch struct {
	*fakeState
	queue *queue[string]
}

func (w fakeWatch) Run(ctx context.Context, changed func(principalID string)) {
	defer func() { _ = w.Stop() }() // never fails
	w.queue.each(ctx, changed, nil)
}

func (w fakeWatch) Stop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watches = slices.DeleteFunc(w.watches, func(q *queue[string]) bool { return q == w.queue })
	return nil
}

func (f *Fake) OpenPost(_ context.Context, node string, pending int64) (store.Post, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.reachedLocked(); err != nil {
		return nil, err
	}
	p := &fakePost{fakeState: f.fakeState, node: node, own: newQueue[store.Letter](int(pending)), all: newQueue[store.Letter](int(pending)), back: make(chan nats.Status, 10)}
	f.posts = append(f.posts, p)
	return p, nil
}

type fakePost struct {
	*fakeState
	node     string
	own, all *queue[store.Letter]
	back     chan nats.Status
}

func (p *fakePost) Receive(ctx context.Context, take func(store.Letter), missed func(error)) {
	p.own.each(ctx, take, missed)
}

func (p *fakePost) ReceiveAll(ctx context.Context, take func(store.Letter), missed func(error)) {
	p.all.each(ctx, take, missed)
}

func (p *fakePost) Send(node, about, from string, data []byte) error {
	return p.send(about, from, data, func(to *fakePost) *queue[store.Letter] {
		if to.node != node {
			return nil
		}
		return to.own
	})
}

func (p *fakePost) SendAll(from string, data []byte) error {
	return p.send("", from, data, func(to *fakePost) *queue[store.Letter] { return to.all })
}

// send puts a letter into the queues that of returns.
func (p *fakePost) send(about, from string, data []byte, of func(to *fakePost) *queue[store.Letter]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.reachedLocked(); err != nil {
		return err
	}
	for _, to := range p.posts {
		if q := of(to); q != nil {
			q.put(store.Letter{About: about, From: from, Data: bytes.Clone(data)}, len(data))
		}
	}
	return nil
}

func (p *fakePost) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.away
}

func (p *fakePost) Back() <-chan nats.Status { return p.back }

func (p *fakePost) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.posts = slices.DeleteFunc(p.posts, func(other *fakePost) bool { return other == p })
	return nil
}

// queue has the items that wait for one receiver, and drops items beyond its bound.
type queue[T any] struct {
	most int           // bytes; 0: no bound
	more chan struct{} // has a value when an item may wait

	mu    sync.Mutex // protects the fields below
	items []T
	sizes []int
	bytes int
	lost  bool
}

func newQueue[T any](most int) *queue[T] {
	return &queue[T]{most: most, more: make(chan struct{}, 1)}
}

func (q *queue[T]) put(item T, size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.most > 0 && q.bytes+size > q.most {
		q.lost = true
	} else {
		q.items, q.sizes, q.bytes = append(q.items, item), append(q.sizes, size), q.bytes+size
	}
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// each calls take with each item until ctx ends, and missed after items were lost.
func (q *queue[T]) each(ctx context.Context, take func(T), missed func(error)) {
	for {
		q.mu.Lock()
		items, lost := q.items[:min(1, len(q.items))], q.lost
		q.lost = false
		if len(items) > 0 {
			q.bytes -= q.sizes[0]
			q.items, q.sizes = q.items[1:], q.sizes[1:]
		}
		q.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case lost:
			missed(errors.New("letters were lost"))
		case len(items) == 0:
			select {
			case <-ctx.Done():
				return
			case <-q.more:
			}
			continue
		}
		for _, item := range items {
			take(item)
		}
	}
}
