package capability

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
)

// Config says what a [Thread] begins with.
type Config struct {
	// Roots are what the thread has selected, in order, as [Parse] reads them of its log.
	Roots []Root
	// Sandbox returns what reading in an environment is confined by, now; nil: nothing. It is
	// asked at each Discover, so it may follow the policy of a turn: what was found under another
	// sandbox is not taken for what can be read under this one.
	Sandbox func(environmentID string) *protocol.Sandbox
	// Timeout is what one Discover waits for the agents of a step altogether: for the connection to
	// one that was not used yet, and for what they answer; 0: 30 s. What was not told by then has
	// a [client.TimeoutError] as its error, and is asked for again in the next step.
	Timeout time.Duration
}

// Thread is what one thread knows of its capabilities: the roots that it has selected, and what
// was found in them. What was found once stays: files that change later, environments that go
// and come back, and handles that are replaced change nothing. A resumed thread and a fork are new
// Threads, so they look again. The methods of a Thread may be called concurrently.
type Thread struct {
	cfg          Config
	environments []string

	// turn is held by the one Discover that looks or reads; it guards what follows.
	turn      chan struct{}
	roots     memory[rootKey, Found]
	installed memory[installedKey, Installed]
	kept      int // bytes of both
	room      int // how many these may be: MaxKept but in tests
	// last is the view of the last step, if nothing in it has to be looked for again, and standings
	// what it was made for.
	last      *View
	standings []standing
}

// rootKey is what a root was read by; sandbox is its JSON.
type rootKey struct {
	root    Root
	sandbox string
}

type installedKey struct{ environmentID, sandbox string }

// New returns the state of a thread. It refuses what [Check] does.
func New(cfg Config) (*Thread, error) {
	if err := Check(cfg.Roots); err != nil {
		return nil, err
	}
	t := &Thread{
		cfg: cfg, turn: make(chan struct{}, 1),
		roots: memory[rootKey, Found]{}, installed: memory[installedKey, Installed]{}, room: MaxKept,
	}
	t.cfg.Roots = slices.Clone(cfg.Roots)
	t.cfg.Timeout = cmp.Or(cfg.Timeout, timeout)
	for _, r := range cfg.Roots {
		if !slices.Contains(t.environments, r.EnvironmentID) {
			t.environments = append(t.environments, r.EnvironmentID)
		}
	}
	return t, nil
}

// Roots returns what the thread has selected, in order. The caller may not change it.
func (t *Thread) Roots() []Root { return t.cfg.Roots }

// Environments returns the ids of the environments that the selected roots are in, each once. A
// harness hands them to [environment.Set.Step], so that the step also captures those that are
// not among the environments of the turn. The caller may not change the slice.
func (t *Thread) Environments() []string { return t.environments }

// Resolved is a root that can be used in a step: its environment was ready when the step began.
type Resolved struct {
	Root
	// Client is that of the environment in this step. A later step may have another one for the
	// same root, after the environment was replaced or its session was lost.
	Client *client.Client
}

// Resolve returns the roots that can be used in a step: first the selected ones in their order,
// then those that ready environments of the turn report, in the order of the step. The roots of
// environments that are starting, have failed or are missing are left out, and stay selected. No
// file is read; a local environment that nobody has used yet is connected, which ctx bounds.
func (t *Thread) Resolve(ctx context.Context, step *environment.Step) []Resolved {
	return t.resolve(captured{ctx, step, map[string]*client.Client{}})
}

func (t *Thread) resolve(c captured) (all []Resolved) {
	for _, r := range t.cfg.Roots {
		if ready := c.client(r.EnvironmentID); ready != nil {
			all = append(all, Resolved{r, ready})
		}
	}
	for i := range c.step.Environments {
		e := &c.step.Environments[i]
		if e.Environment == nil {
			continue
		}
		for _, reported := range e.Environment.CapabilityRoots() {
			r := Root{ID: reported.ID, EnvironmentID: e.ID, Path: reported.Path}
			if ready := c.client(e.ID); ready != nil && !slices.Contains(t.cfg.Roots, r) {
				all = append(all, Resolved{r, ready})
			}
		}
	}
	return all
}

// captured are the environments of a step, with one decision for each.
type captured struct {
	ctx     context.Context
	step    *environment.Step
	clients map[string]*client.Client // nil: not ready
}

// client returns the client of an environment, if that is ready.
func (c captured) client(id string) *client.Client {
	ready, decided := c.clients[id]
	if decided {
		return ready
	}
	if e, ok := c.step.Get(id); ok && e.State == environment.Ready {
		if ready = e.Client; ready == nil { // it is local, and has not been used
			ready, _ = e.Environment.Client(c.ctx) // with an error it is not ready
		}
	}
	c.clients[id] = ready
	return ready
}

// Found is what was found in one root: files as they are, which mean nothing yet. Paths are those
// of the environment. Nobody changes it: as long as a pointer to it stays the same, so does all
// that follows from it.
type Found struct {
	// Plugin is the manifest of the root with the files that it declares; nil: it is no plugin.
	Plugin *protocol.PluginFiles
	// Skills are sorted by their URIs.
	Skills []protocol.SkillFiles
	// Namespaces are the manifests that give skills their namespace: the nearest one above a
	// SKILL.md does. The first one may be above the root; then come those below it.
	Namespaces []protocol.DiscoveredFile
	// Warnings say what could not be read, for people.
	Warnings []string
	// Err is why nothing was found; the rest is empty then.
	Err error
}

// Installed is what is installed in one environment for its user: plugins and skills that nobody
// has selected. Nobody changes it, as with [Found].
type Installed struct {
	Plugins  []protocol.InstalledPlugin
	Skills   []protocol.InstalledSkill
	Warnings []string
	Err      error // why nothing was found; the rest is empty then
}

// View is what a step has: what its roots and environments contain, as far as they are ready.
// Nobody changes it: a step in which all is as before has the same View.
type View struct {
	Roots []RootView // in the order of [Thread.Resolve]
	// Environments are those of the turn that are ready and tell what is installed, in the order
	// of the step.
	Environments []EnvironmentView
	// Recovered: something was found that could not be found before. It is told once. What is
	// made of the roots has to be made again, even if the same roots are there.
	Recovered bool
}

// RootView is a resolved root and what is in it.
type RootView struct {
	Resolved
	*Found
}

// EnvironmentView is an environment and what is installed there.
type EnvironmentView struct {
	EnvironmentID string
	Client        *client.Client // as in [Resolved]
	*Installed
}

// Discover resolves the roots of a step and reads what is in them, and what is installed in the
// environments of the turn, as far as that is not known already. Environments are read at once,
// the roots of one in one request; they are waited for as long as [Config].Timeout says, and then
// no request goes on here. What cannot be read is an error of its root. What was found is kept,
// and so are errors that will not pass; after others the next call tries again. One Discover of a
// thread runs after the other. The error is the cause of ctx, and then nothing is kept.
func (t *Thread) Discover(ctx context.Context, step *environment.Step) (*View, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	within := limit{time.Now().Add(t.cfg.Timeout), t.cfg.Timeout}
	connecting, cancel := within.apply(ctx, protocol.MethodInitialize)
	defer cancel()
	c := captured{connecting, step, map[string]*client.Client{}}
	all := t.places(c)
	if t.last != nil && all.stand(t.standings) {
		return t.last, nil
	}
	resolved := t.resolve(c)
	for _, r := range resolved {
		if p := all.of(r.EnvironmentID); !t.roots.has(rootKey{r.Root, p.key}) {
			p.missing = append(p.missing, r.Root)
		}
	}
	for _, p := range all {
		p.unknown = p.selected && !t.installed.has(installedKey{p.id, p.key})
	}
	all.read(ctx, within)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return t.view(resolved, all), nil
}

// places returns the environments of a step that are ready: those of the turn, then others with
// selected roots.
func (t *Thread) places(c captured) (all places) {
	add := func(id string, selected bool) {
		if e, ok := c.step.Get(id); ok && c.client(id) != nil && all.of(id) == nil {
			p := &place{standing: standing{id: id, selected: selected, handle: e.Environment, client: c.client(id)}, cwd: e.Cwd}
			t.confine(p)
			all = append(all, p)
		}
	}
	for i := range c.step.Environments {
		add(c.step.Environments[i].ID, true)
	}
	for _, id := range t.environments {
		add(id, false)
	}
	return all
}

// confine asks for the sandbox of a place.
func (t *Thread) confine(p *place) {
	if t.cfg.Sandbox == nil {
		return
	}
	if s := t.cfg.Sandbox(p.id); s != nil && !s.UnrestrictedFiles() {
		if text, err := json.Marshal(s); err == nil { // no Sandbox fails
			p.sandbox, p.key = s, string(text)
		}
	}
}

// view keeps what was read, and returns what the step has.
func (t *Thread) view(resolved []Resolved, all places) *View {
	v := &View{Roots: make([]RootView, 0, len(resolved))}
	recovered := all.haveRead() && t.keep(resolved, all)
	settled := true
	for _, r := range resolved {
		key := rootKey{r.Root, all.of(r.EnvironmentID).key}
		v.Roots = append(v.Roots, RootView{r, t.roots[key].value})
		settled = settled && t.roots.has(key)
	}
	for _, p := range all {
		if !p.selected {
			continue
		}
		key := installedKey{p.id, p.key}
		if installed := t.installed[key].value; installed != nil {
			v.Environments = append(v.Environments, EnvironmentView{p.id, p.client, installed})
		}
		settled = settled && t.installed.has(key)
	}
	t.last, t.standings = nil, nil
	if settled {
		t.last = v
		for _, p := range all {
			t.standings = append(t.standings, p.standing)
		}
	}
	if recovered {
		once := *v
		once.Recovered = true
		return &once
	}
	return v
}

// keep keeps what was read. What the step does not use is forgotten if there is no room for both.
func (t *Thread) keep(resolved []Resolved, all places) (recovered bool) {
	read := 0
	for _, p := range all {
		for _, f := range p.found {
			read += f.size
		}
		read += p.installed.size
	}
	if t.kept+read > t.room || len(t.roots)+len(t.installed) > maxEntries {
		t.forget(resolved, all)
	}
	for _, p := range all {
		for i, r := range p.missing {
			recovered = keep(t, t.roots, rootKey{r, p.key}, p.found[i], func(err error) *Found { return &Found{Err: err} }) || recovered
		}
		if p.unknown {
			recovered = keep(t, t.installed, installedKey{p.id, p.key}, p.installed, func(err error) *Installed { return &Installed{Err: err} }) || recovered
		}
	}
	return recovered
}

// forget drops what the step does not use.
func (t *Thread) forget(resolved []Resolved, all places) {
	roots, installed := t.roots, t.installed
	t.roots, t.installed, t.kept = memory[rootKey, Found]{}, memory[installedKey, Installed]{}, 0
	for _, r := range resolved {
		key := rootKey{r.Root, all.of(r.EnvironmentID).key}
		if e, ok := roots[key]; ok && t.roots[key].value == nil {
			t.roots[key] = e
			t.kept += e.size
		}
	}
	for _, p := range all {
		key := installedKey{p.id, p.key}
		if e, ok := installed[key]; ok {
			t.installed[key] = e
			t.kept += e.size
		}
	}
}
