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

// Config configures a [Thread].
type Config struct {
	// Roots are the roots that the thread selected, in order, as [Parse] reads them from its log.
	Roots []Root
	// Sandbox returns the current sandbox for reading in an environment; nil: none. Each Discover
	// calls it, so it may follow the policy of a turn: files found under another sandbox do not
	// count under this one.
	Sandbox func(environmentID string) *protocol.Sandbox
	// Timeout is how long one Discover waits for all agents of a step together: for connections to
	// unused agents and for answers; 0: 30 s. A missing answer is a [client.TimeoutError], and is
	// asked for again in the next step.
	Timeout time.Duration
}

// Thread holds the capabilities of one thread: its selected roots and their contents. Contents stay
// as first found, even if files change, environments go and come back, or handles are replaced. A
// resumed thread and a fork are new Threads, so they look again. The methods of a Thread may be
// called concurrently.
type Thread struct {
	cfg          Config
	environments []string

	// turn is held by the one Discover that looks or reads; it guards what follows.
	turn      chan struct{}
	roots     memory[rootKey, Found]
	installed memory[installedKey, Installed]
	kept      int // bytes of both
	room      int // bound of kept: MaxKept, except in tests
	// last is the view of the last step, if nothing in it must be looked for again; standings is
	// the state that it was made for.
	last      *View
	standings []standing
}

// rootKey identifies a read root; sandbox is JSON.
type rootKey struct {
	root    Root
	sandbox string
}

type installedKey struct{ environmentID, sandbox string }

// New returns the state of a thread. It refuses the same roots as [Check].
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

// Roots returns the selected roots, in order. The caller must not change the slice.
func (t *Thread) Roots() []Root { return t.cfg.Roots }

// Environments returns the ids of the environments of the selected roots, each once. A harness
// passes them to [environment.Set.Step], so that the step also captures environments outside the
// turn. The caller must not change the slice.
func (t *Thread) Environments() []string { return t.environments }

// Resolved is a root that can be used in a step: its environment was ready when the step began.
type Resolved struct {
	Root
	// Client is the environment's client in this step. A later step may have another client for the
	// same root, after the environment was replaced or its session was lost.
	Client *client.Client
}

// Resolve returns the roots that can be used in a step: first the selected roots in order, then the
// roots that ready environments of the turn report, in the order of the step. Roots of environments
// that are starting, failed or missing are left out, and stay selected. Resolve reads no file. It
// connects to an unused local environment; ctx bounds that.
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

// client returns the client of an environment, if the environment is ready.
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

// Found has the files found in one root, uninterpreted. Paths are paths of the environment. A Found
// never changes, so results derived from it stay valid as long as the pointer stays the same.
type Found struct {
	// Plugin is the manifest of the root with the files that it declares; nil: the root is no
	// plugin.
	Plugin *protocol.PluginFiles
	// Skills are sorted by their URIs.
	Skills []protocol.SkillFiles
	// Namespaces are the manifests that give skills their namespace: the nearest manifest above a
	// SKILL.md counts. The first one may be above the root; the others are below it.
	Namespaces []protocol.DiscoveredFile
	// Warnings say, for people, what could not be read.
	Warnings []string
	// Err is the reason why nothing was found; the rest is then empty.
	Err error
}

// Installed has the plugins and skills that are installed in one environment for its user, without
// being selected. Like a [Found], it never changes.
type Installed struct {
	Plugins  []protocol.InstalledPlugin
	Skills   []protocol.InstalledSkill
	Warnings []string
	Err      error // the reason why nothing was found; the rest is then empty
}

// View has the contents of a step's roots and environments, as far as they are ready. A View never
// changes: a step without changes has the same View as the step before.
type View struct {
	Roots []RootView // in the order of [Thread.Resolve]
	// Environments are the ready environments of the turn that report installed plugins and skills,
	// in the order of the step.
	Environments []EnvironmentView
	// Recovered: something was found that could not be found before. It is set once. Results
	// derived from the roots must be derived again, even if the roots are the same.
	Recovered bool
}

// RootView is a resolved root and its contents.
type RootView struct {
	Resolved
	*Found
}

// EnvironmentView is an environment with its installed plugins and skills.
type EnvironmentView struct {
	EnvironmentID string
	Client        *client.Client // as in [Resolved]
	*Installed
}

// Discover resolves the roots of a step. It reads their contents and the installed plugins and
// skills of the turn's environments, unless they are already known. Environments are read at the
// same time, with one request for the roots of each. Discover waits at most [Config].Timeout, and
// then ends its requests. A root that cannot be read has an error. Results and permanent errors are
// kept; after other errors the next call tries again. Calls of Discover for a thread run one after
// the other. The error is the cause of ctx, and then nothing is kept.
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

// confine gets the sandbox of a place.
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

// view keeps the read contents, and returns the view of the step.
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

// keep keeps the read contents. If there is not enough room, it forgets contents that the step does
// not use.
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

// forget drops contents that the step does not use.
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
