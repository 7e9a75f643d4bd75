package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/projection/internal/catalog"
	"github.com/execagent/execagent/harness/projection/internal/declared"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/protocol"
)

const (
	// configTimeout bounds reading the configuration of an executor (capabilities.md 6.3).
	configTimeout = 10 * time.Second
	// maxKnown is how many environments are remembered.
	maxKnown = 1024
)

// ServerSpec is a declared MCP server: its Name and its Plugin, and either a program, with Argv,
// Env and Dir, or the URL of an HTTP server with Headers.
type ServerSpec = mcpserver.Spec

// Status is the status of an MCP server: its Name and its Plugin, its State, and Err, the reason of
// a failure.
type Status = mcpserver.Status

// State is the state of an MCP server.
type State = mcpserver.State

// The states of a server.
const (
	Starting = mcpserver.Starting
	Ready    = mcpserver.Ready
	Failed   = mcpserver.Failed
)

// SkillList lists and reads the skills of a [Step], for the two tools of a model: List takes a
// SkillListRequest, Read a SkillReadRequest.
type SkillList = catalog.List

// The requests to a [SkillList]. In JSON they are the arguments of the tools.
type (
	// SkillListRequest asks for skills: of the Authority, from the Cursor on.
	SkillListRequest = catalog.ListRequest
	// SkillReadRequest asks for a text of a skill: the Package, a Resource in it, the Cursor.
	SkillReadRequest = catalog.ReadRequest
	// SkillAuthority is the source of skills: an executor, by the ID of a root.
	SkillAuthority = catalog.Authority
)

// UnknownSkillError says that a step has no skill with that Package.
type UnknownSkillError = catalog.UnknownError

// Config says how a [Thread] uses declarations. The zero value uses everything except installed
// plugins. Its functions are called from several goroutines.
type Config struct {
	// Notify is called with each status of the current runtime's servers, in order for each server.
	// It must return soon and not close the thread, because the server waits for it.
	Notify func(Status)
	// Allow reports whether the user's policies allow a server; nil: all are allowed.
	Allow func(*ServerSpec) bool
	// Enabled reports whether an installed plugin is used; nil: none is.
	Enabled func(plugin string) bool
	// Sandbox confines the reading of skills in an environment; nil: it is not confined. It does
	// not confine servers.
	Sandbox func(environmentID string) *protocol.Sandbox
	// Info describes the harness for servers.
	Info *mcp.Implementation
	// StartTimeout and CallTimeout bound servers, and Restarts is how often a failing server is
	// restarted automatically; see [mcpserver.Config].
	StartTimeout, CallTimeout time.Duration
	Restarts                  int
}

// ErrClosed is the error of a step of a thread that was closed.
var ErrClosed = errors.New("projection closed")

// RequiredSkillError says that a skill is missing that must exist before a model is called
// ([environment.Skills]).
type RequiredSkillError struct{ EnvironmentID, Skill string }

func (e *RequiredSkillError) Error() string {
	return fmt.Sprintf("Required skill %q from environment %q is unavailable", e.Skill, e.EnvironmentID)
}

// Thread is the projection for one thread. Its methods may be called concurrently.
type Thread struct {
	cfg     Config
	closing sync.WaitGroup
	// stepping has one while a step is made. It guards what follows.
	stepping chan struct{}
	cache    *catalog.Cache
	section  catalog.Section
	seen     *capability.View // of the last step
	list     *catalog.List    // of it
	rendered string
	sources  []source // of the current runtime
	roots    map[*capability.Found]*declared.Declarations
	plugins  map[*capability.Installed][]*declared.Declarations
	configs  map[string]source // of environments

	mu      sync.Mutex // guards what follows
	dirty   bool       // the next step must have another runtime
	current *runtime   // nil before the first step
	live    map[*runtime]struct{}
	listed  *catalog.List // of the last step
	closed  bool
}

// source is the source of declarations, and the client that makes them live.
type source struct {
	environment *environment.Environment
	client      *client.Client // of it
	declared    *declared.Declarations
}

// equal reports whether the same servers and connectors become live in the same place.
func (s source) equal(o source) bool { return s.client == o.client && s.declared.Equal(o.declared) }

// New returns a thread that has projected nothing. The caller closes it.
func New(cfg Config) *Thread {
	if cfg.Notify == nil {
		cfg.Notify = func(Status) {}
	}
	if cfg.Allow == nil {
		cfg.Allow = func(*ServerSpec) bool { return true }
	}
	if cfg.Enabled == nil {
		cfg.Enabled = func(string) bool { return false }
	}
	t := &Thread{cfg: cfg, stepping: make(chan struct{}, 1), live: map[*runtime]struct{}{}}
	t.forget()
	return t
}

// forget drops everything derived from declarations.
func (t *Thread) forget() {
	t.cache = catalog.New(catalog.Config{Enabled: t.cfg.Enabled, Sandbox: t.cfg.Sandbox})
	t.seen, t.list = nil, nil
	t.roots = map[*capability.Found]*declared.Declarations{}
	t.plugins = map[*capability.Installed][]*declared.Declarations{}
	t.configs = map[string]source{}
}

// Invalidate gives the next step another runtime, and reads everything again that is not
// discovered. Call it after the configuration of the harness was reloaded, or the selection of
// environments changed.
func (t *Thread) Invalidate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirty = true
}

// Step projects the capabilities of a step, and waits for no server. The caller releases the
// result. The error is a [RequiredSkillError], [ErrClosed] or the cause of ctx.
func (t *Thread) Step(ctx context.Context, step *environment.Step, view *capability.View) (*Step, error) {
	select {
	case t.stepping <- struct{}{}:
		defer func() { <-t.stepping }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r, warnings, err := t.project(ctx, step, view)
	if err != nil {
		return nil, err
	}
	if t.seen != view { // a step without changes has the same view
		t.seen, t.list = view, t.cache.List(view)
		t.rendered = t.list.Render()
	}
	s := &Step{thread: t, runtime: r, skills: t.list, warnings: warnings}
	if err := required(step, t.list); err != nil {
		s.Release()
		return nil, err
	}
	s.message, s.news = t.section.Next(t.rendered)
	t.mu.Lock()
	t.listed = t.list
	t.mu.Unlock()
	return s, nil
}

// required checks that environments have the required skills.
func required(step *environment.Step, list *catalog.List) error {
	for _, captured := range step.Environments {
		if captured.Environment == nil {
			continue
		}
		for _, name := range captured.Environment.Skills().Required {
			if !list.EnvironmentHas(captured.ID, name) {
				return &RequiredSkillError{captured.ID, name}
			}
		}
	}
	return nil
}

// project returns the runtime of a step, with a hold for it, and the warnings about declarations.
func (t *Thread) project(ctx context.Context, step *environment.Step, view *capability.View) (*runtime, []string, error) {
	t.mu.Lock()
	t.dirty = t.dirty || view.Recovered // which is set only once
	dirty, first := t.dirty, t.current == nil
	t.dirty = false
	t.mu.Unlock()
	if dirty {
		t.forget()
	}
	sources, warnings := t.find(ctx, step, view)
	if !dirty && !first {
		if slices.EqualFunc(sources, t.sources, source.equal) {
			t.sources = sources
			r, err := t.hold()
			return r, warnings, err
		}
		clear(t.configs) // the executors' own declarations may have changed
		sources, warnings = t.find(ctx, step, view)
	}
	if err := context.Cause(ctx); err != nil {
		if dirty {
			t.Invalidate() // the next step must do it
		}
		return nil, nil, err // something may be missing
	}
	r := t.begin(sources)
	if !t.install(r) {
		r.close()
		return nil, nil, ErrClosed
	}
	t.sources = sources
	return r, warnings, nil
}

// install makes a runtime the current one, with a hold for a step. It returns false if the thread
// is closed.
func (t *Thread) install(r *runtime) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if old := t.current; old != nil {
		old.retired.Store(true)
		t.releaseLocked(old)
	}
	r.holds = 2 // of the thread, and of the step
	t.current = r
	t.live[r] = struct{}{}
	return true
}

// hold returns the current runtime.
func (t *Thread) hold() (*runtime, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	t.current.holds++
	return t.current, nil
}

// releaseLocked releases one hold. The last release ends the runtime, in the background.
func (t *Thread) releaseLocked(r *runtime) {
	if r.holds--; r.holds > 0 || t.closed {
		return
	}
	delete(t.live, r)
	t.closing.Go(r.close)
}

// Current returns the projection of the last step, for requests outside of steps. The caller
// releases it. Before the first step there is none.
func (t *Thread) Current() (*Step, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.listed == nil {
		return nil, false
	}
	t.current.holds++
	return &Step{thread: t, runtime: t.current, skills: t.listed}, true
}

// Close ends all servers, including those that steps hold, and waits for them.
func (t *Thread) Close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		for r := range t.live {
			t.closing.Go(r.close)
		}
	}
	t.mu.Unlock()
	t.closing.Wait()
}

// find returns all declarations, in order: of selected roots, of the other executors themselves,
// and of installed plugins. An executor with selected roots comes right before the first of them.
// So an executor without selected roots takes no name from a selected one.
func (t *Thread) find(ctx context.Context, step *environment.Step, view *capability.View) (all []source, warnings []string) {
	if len(t.configs) > maxKnown {
		t.forget()
	}
	// Declarations outside the step are forgotten, because they are large and can be read again.
	roots, plugins := map[*capability.Found]*declared.Declarations{}, map[*capability.Installed][]*declared.Declarations{}
	add := func(s source) {
		if s.declared == nil {
			return
		}
		warnings = append(warnings, s.declared.Warnings...)
		if !s.declared.IsEmpty() {
			all = append(all, s)
		}
	}
	configs := t.configurations(ctx, step)
	configured := func(environmentID string) {
		add(configs[environmentID])
		delete(configs, environmentID)
	}
	for i := range view.Roots {
		root := &view.Roots[i]
		configured(root.EnvironmentID)
		if captured, ok := step.Get(root.EnvironmentID); ok && root.Found != nil && root.Plugin != nil {
			roots[root.Found] = t.root(root)
			add(source{captured.Environment, root.Client, roots[root.Found]})
		}
	}
	for i := range step.Environments {
		configured(step.Environments[i].ID)
	}
	for i := range view.Environments {
		e := &view.Environments[i]
		captured, ok := step.Get(e.EnvironmentID)
		if !ok || e.Installed == nil {
			continue
		}
		plugins[e.Installed] = t.installed(e.Installed)
		for _, d := range plugins[e.Installed] {
			add(source{captured.Environment, e.Client, d})
		}
	}
	t.roots, t.plugins = roots, plugins
	return all, warnings
}

// root returns the declarations of a root.
func (t *Thread) root(root *capability.RootView) *declared.Declarations {
	if known, ok := t.roots[root.Found]; ok {
		return known
	}
	d := declared.Plugin(root.ID, root.Path, root.Plugin)
	return &d
}

// installed returns the declarations of the enabled installed plugins.
func (t *Thread) installed(installed *capability.Installed) []*declared.Declarations {
	if known, ok := t.plugins[installed]; ok {
		return known
	}
	var all []*declared.Declarations
	for i := range installed.Plugins {
		plugin := &installed.Plugins[i]
		if !t.cfg.Enabled(plugin.ID) {
			continue
		}
		d := declared.Plugin(plugin.ID, plugin.Root, &plugin.Files)
		all = append(all, &d)
	}
	return all
}

// configurations returns the own declarations of the executors of a step. It asks all unknown
// executors at the same time, so that several silent ones delay a step no more than one.
func (t *Thread) configurations(ctx context.Context, step *environment.Step) map[string]source {
	all := map[string]source{}
	var reading sync.WaitGroup
	read := make([]source, len(step.Environments))
	for i := range step.Environments {
		captured := &step.Environments[i]
		if captured.State != environment.Ready {
			continue
		}
		if known, ok := t.configs[captured.ID]; ok && known.client == captured.Client {
			all[captured.ID] = known
			continue
		}
		reading.Go(func() { read[i] = configuration(ctx, captured) })
	}
	reading.Wait()
	for i, s := range read {
		if s.declared != nil {
			id := step.Environments[i].ID
			all[id], t.configs[id] = s, s
		}
	}
	return all
}

// configuration asks one executor. If the executor does not answer, there are no declarations, but
// a warning.
func configuration(ctx context.Context, captured *environment.Captured) source {
	c := captured.Client
	if c == nil { // it is local, and has not been used
		var err error
		if c, err = captured.Environment.Client(ctx); err != nil {
			return source{}
		}
	}
	d, err := readConfig(ctx, c, captured.Cwd)
	if err != nil && client.Retryable(err) || ctx.Err() != nil {
		return source{} // the next step asks again
	}
	if err != nil {
		d.Warnings = append(d.Warnings, fmt.Sprintf("environment %s: %v", captured.ID, err))
	}
	return source{captured.Environment, c, &d}
}

// readConfig asks an executor for the servers of its own configuration.
func readConfig(ctx context.Context, c *client.Client, cwd protocol.PathURI) (d declared.Declarations, err error) {
	ctx, cancel := context.WithTimeout(ctx, configTimeout)
	defer cancel()
	info, err := c.Info(ctx)
	if err != nil || !info.Capabilities.EnvironmentConfigRead {
		return d, err
	}
	paths := [][]string{declared.Path}
	config, err := c.ReadConfig(ctx, protocol.ConfigReadParams{Cwd: cwd, ConfigPaths: paths, RequirementsPaths: paths})
	if err != nil {
		return d, err
	}
	return declared.Configured(config, info.Capabilities.HTTPHeaderEnvVars)
}
