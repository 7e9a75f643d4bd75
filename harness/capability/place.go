package capability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/internal/discovery/layout"
	"github.com/execagent/execagent/protocol"
)

const (
	// patience is how long reading waits for a lost connection to come back (client.md 5.4).
	patience = 8 * time.Second
	// timeout is the default of [Config].Timeout.
	timeout = 30 * time.Second

	// maxFound is how many bytes of one root are accepted from an agent: the files, the manifest a
	// second time, paths and warnings.
	maxFound = layout.MaxBundle + 8<<20
	// fileOverhead is what a file counts besides its texts, in bytes, because an answer may have
	// many empty files.
	fileOverhead = 128
	// largeAnswer is the size in bytes from which on an error in an answer may be due to lack of
	// room in it.
	largeAnswer = 16 << 20
	// maxInstalled is how many bytes of JSON about installed plugins and skills are accepted.
	// Agents send 4 MiB.
	maxInstalled = 8 << 20
	// maxErrorText is how many bytes of an error's text are kept.
	maxErrorText = 1024
)

// standing is the part of a ready environment that a View depends on.
type standing struct {
	id       string
	selected bool                     // for the turn
	handle   *environment.Environment // which may report roots
	client   *client.Client
	key      string // the sandbox, as JSON
}

// place is a ready environment as one Discover reads it.
type place struct {
	standing
	cwd     protocol.PathURI
	sandbox *protocol.Sandbox // nil: reading is not confined

	missing   []Root
	found     []finding[Found] // of missing
	unknown   bool             // what is installed
	installed finding[Installed]
}

type places []*place

// of returns the place of an environment; nil: it is not ready.
func (all places) of(id string) *place {
	for _, p := range all {
		if p.id == id {
			return p
		}
	}
	return nil
}

// stand reports whether nothing has changed.
func (all places) stand(before []standing) bool {
	return slices.EqualFunc(all, before, func(p *place, s standing) bool { return p.standing == s })
}

func (all places) haveRead() bool {
	return slices.ContainsFunc(all, func(p *place) bool { return p.unknown || p.missing != nil })
}

// read reads the missing parts, in all places at once. Answers within the time limit count; the
// next Discover asks for the rest.
func (all places) read(ctx context.Context, within limit) {
	var reading sync.WaitGroup
	begin := func(method string, do func(context.Context)) {
		reading.Go(func() {
			ctx, cancel := within.apply(ctx, method)
			defer cancel()
			do(ctx)
		})
	}
	for _, p := range all {
		if p.missing != nil {
			begin(protocol.MethodDiscoverRoots, p.readRoots)
		}
		if p.unknown {
			begin(protocol.MethodDiscoverInstalled, p.readInstalled)
		}
	}
	reading.Wait()
}

// limit is the time limit of one Discover for agents.
type limit struct {
	at    time.Time
	after time.Duration
}

// apply returns a context that ends at the limit, with the cause that a method was not answered.
func (l limit) apply(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, l.at, &client.TimeoutError{Method: method, After: l.after})
}

// persist calls do, which only reads. If the connection was lost meanwhile, it calls do once more
// after the connection has recovered.
func (p *place) persist(ctx context.Context, do func(context.Context) error) error {
	ctx = client.FailFast(ctx)
	err := do(ctx)
	if !isLoss(err) || !p.comesBack(ctx) {
		return err
	}
	err = do(ctx)
	if lost, ok := errors.AsType[*client.DisconnectedError](err); ok && lost.Sent {
		return &fatalError{err}
	}
	return err
}

// comesBack waits until the client is connected.
func (p *place) comesBack(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		state, changed := p.client.State()
		switch state {
		case client.Connected:
			return true
		case client.Failed:
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// readInstalled asks for installed plugins and skills, if the agent reports them.
func (p *place) readInstalled(ctx context.Context) {
	var raw json.RawMessage
	var supported bool
	err := p.persist(ctx, func(ctx context.Context) error {
		info, err := p.client.Info(ctx)
		if err != nil {
			return err
		}
		if supported = info.Capabilities.CapabilityDiscoveryV2; !supported {
			return nil
		}
		params := protocol.DiscoverInstalledParams{Cwd: p.cwd, Sandbox: p.sandbox}
		if params.Cwd.IsZero() {
			params.Cwd = protocol.NewPathURI("/") // it is required, and changes nothing
		}
		if params.Sandbox != nil && params.Sandbox.Cwd == nil {
			sandbox := *p.sandbox // which must have a directory here too
			sandbox.Cwd = &params.Cwd
			params.Sandbox = &sandbox
		}
		return p.client.Call(ctx, protocol.MethodDiscoverInstalled, &params, &raw)
	})
	switch {
	case err != nil:
		p.installed = finding[Installed]{value: &Installed{Err: err}, err: err}
		return
	case !supported:
		return
	case len(raw) > maxInstalled:
		err = fmt.Errorf("%d bytes of what is installed, %d are allowed", len(raw), maxInstalled)
	default:
		var r protocol.DiscoverInstalledResult
		if err = json.Unmarshal(raw, &r); err == nil {
			err = checkInstalled(&r)
		}
		if err == nil {
			p.installed = finding[Installed]{value: &Installed{Plugins: r.Plugins, Skills: r.Skills, Warnings: r.Warnings}, size: len(raw)}
			return
		}
	}
	err = &client.ProtocolError{Reason: protocol.MethodDiscoverInstalled + ": " + err.Error()}
	p.installed = finding[Installed]{value: &Installed{Err: err}, err: err}
}

// checkInstalled refuses plugins and skills that nothing could refer to.
func checkInstalled(r *protocol.DiscoverInstalledResult) error {
	for i := range r.Plugins {
		plugin := &r.Plugins[i]
		if plugin.ID == "" || plugin.Root.IsZero() || plugin.Files.Manifest.Path.IsZero() {
			return fmt.Errorf("plugins[%d] has no id, root or manifest", i)
		}
		if err := checkSkills(plugin.Skills); err != nil {
			return err
		}
	}
	return checkSkills(r.Skills)
}

func checkSkills(skills []protocol.InstalledSkill) error {
	for i := range skills {
		if s := &skills[i]; s.Name == "" || s.Path.IsZero() {
			return fmt.Errorf("a skill has no name or path: %.64q %.256q", s.Name, s.Path)
		}
	}
	return nil
}

// readRoots reads the missing roots, as many in one request as allowed. One request may become
// many.
func (p *place) readRoots(ctx context.Context) {
	for batch := range slices.Chunk(p.missing, protocol.MaxCapabilityRoots) {
		p.found = append(p.found, p.readBatch(ctx, batch)...)
	}
}

// failed says that a root cannot be read.
func failed(err error) finding[Found] { return finding[Found]{value: &Found{Err: err}, err: err} }

func (p *place) readBatch(ctx context.Context, batch []Root) []finding[Found] {
	var found []finding[Found]
	size := 0
	err := p.persist(ctx, func(ctx context.Context) (err error) {
		found, size, err = p.discover(ctx, batch)
		return err
	})
	refused, _ := errors.AsType[*client.ServerError](err)
	fatal, _ := errors.AsType[*fatalError](err)
	switch {
	case ctx.Err() != nil:
		return slices.Repeat([]finding[Found]{failed(context.Cause(ctx))}, len(batch))
	case errors.Is(err, errNoMethod):
		found = nil
		for _, r := range batch {
			found = append(found, p.readFiles(ctx, r))
		}
	case refused != nil && len(batch) > 1:
		// One path that the agent does not understand would fail all roots.
		found = nil
		for _, r := range batch {
			found = append(found, p.readBatch(ctx, []Root{r})...)
		}
	case fatal != nil && len(batch) > 1 && p.comesBack(ctx):
		// The answer may be too large for a message.
		half := len(batch) / 2
		return append(p.readBatch(ctx, batch[:half]), p.readBatch(ctx, batch[half:])...)
	case err != nil:
		return slices.Repeat([]finding[Found]{failed(err)}, len(batch))
	case len(batch) > 1 && size > largeAnswer:
		for i, r := range batch {
			if found[i].err != nil { // there may have been no room for it
				found[i] = p.readBatch(ctx, []Root{r})[0]
			}
		}
	}
	return found
}

// errNoMethod says that the agent has no discovery for a client's roots, or none under a sandbox.
var errNoMethod = errors.New("no capability discovery")

// discover asks for the contents of roots. size is the size of the answer in bytes.
func (p *place) discover(ctx context.Context, batch []Root) (found []finding[Found], size int, err error) {
	if p.sandbox != nil {
		info, err := p.client.Info(ctx)
		if err != nil {
			return nil, 0, err
		}
		if !info.Capabilities.CapabilityDiscoverySandbox {
			return nil, 0, errNoMethod // it would ignore the sandbox
		}
	}
	params := protocol.DiscoverRootsParams{}
	for _, r := range batch {
		params.Roots = append(params.Roots, protocol.CapabilityRoot{ID: r.ID, Path: r.Path.String(), At: r.Path, Sandbox: p.sandbox})
	}
	var answer struct {
		Roots []json.RawMessage `json:"roots"`
	}
	err = p.client.Call(ctx, protocol.MethodDiscoverRoots, &params, &answer)
	if refused, ok := errors.AsType[*client.ServerError](err); ok && refused.Err.Code == protocol.CodeMethodNotFound {
		return nil, 0, errNoMethod
	}
	if err != nil {
		return nil, 0, err
	}
	if len(answer.Roots) != len(batch) {
		return nil, 0, wrongf("%d roots are answered, %d were asked for", len(answer.Roots), len(batch))
	}
	for i, r := range batch {
		size += len(answer.Roots[i])
		found = append(found, decode(r, answer.Roots[i]))
		answer.Roots[i] = nil
	}
	return found, size, nil
}

func wrongf(format string, args ...any) error {
	return &client.ProtocolError{Reason: protocol.MethodDiscoverRoots + ": " + fmt.Sprintf(format, args...)}
}

// decode reads an agent's answer about a root.
func decode(asked Root, raw json.RawMessage) finding[Found] {
	var r protocol.DiscoveredRoot
	if err := json.Unmarshal(raw, &r); err != nil {
		return failed(wrongf("%v", err))
	}
	if r.ID != asked.ID || r.Path != asked.Path.String() {
		return failed(wrongf("root `%.256s` at %.256q is answered with `%.256s` at %.256q", asked.ID, asked.Path, r.ID, r.Path))
	}
	if r.Error != nil {
		return failed(errors.New(cut(*r.Error)))
	}
	return checked(&Found{Plugin: r.Plugin, Skills: r.Skills, Namespaces: r.NamespaceManifests, Warnings: r.Warnings})
}

// checked refuses files that nothing could refer to, and too many files.
func checked(f *Found) finding[Found] {
	size := 0
	complete := true
	add := func(file *protocol.DiscoveredFile) {
		if file != nil {
			size += len(file.Contents) + len(file.Path.String()) + fileOverhead
			complete = complete && !file.Path.IsZero()
		}
	}
	if p := f.Plugin; p != nil {
		add(&p.Manifest)
		add(p.MCPConfig)
		add(p.AppsConfig)
	}
	for i := range f.Skills {
		add(&f.Skills[i].Instructions)
		add(f.Skills[i].Metadata)
	}
	for i := range f.Namespaces {
		add(&f.Namespaces[i])
	}
	for _, w := range f.Warnings {
		size += len(w) + fileOverhead
	}
	switch {
	case !complete:
		return failed(wrongf("a file has no path"))
	case size > maxFound:
		return failed(wrongf("a root with %d bytes, %d are allowed", size, maxFound))
	}
	return finding[Found]{value: f, size: size}
}

// cut bounds the length of a text that is kept.
func cut(text string) string {
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "")
	}
	return text
}
