package capability

import (
	"context"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/environment"
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
}

// Thread is what one thread knows of its capabilities: the roots that it has selected, and what
// was found in them. What was found once stays: files that change later, environments that go
// and come back, and handles that are replaced change nothing. So a thread that is resumed and a
// fork, which are new Threads, find out anew. Its methods may be called at once.
type Thread struct{}

// New returns the state of a thread. It refuses what [Check] does.
func New(cfg Config) (*Thread, error) { panic("to come") }

// Roots returns what the thread has selected, in order. The caller may not change it.
func (t *Thread) Roots() []Root { panic("to come") }

// Environments returns the ids of the environments that the selected roots are in, each once. A
// harness hands them to [environment.Set.Step], so that the step also captures those that are
// not among the environments of the turn.
func (t *Thread) Environments() []string { panic("to come") }

// Resolved is a root that can be used in a step: its environment was ready when the step began.
type Resolved struct {
	Root
	// Client is that of the environment in this step. A later step may have another one for the
	// same root, after the environment was replaced or its session was lost.
	Client *client.Client
}

// Resolve returns the roots that can be used in a step: first the selected ones in their order,
// then those that ready environments of the step report, in the order of the step. The roots of
// environments that are starting, have failed or are missing are left out, and stay selected. No
// file is read.
func (t *Thread) Resolve(ctx context.Context, step *environment.Step) []Resolved { panic("to come") }

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
type View struct {
	Roots []RootView // in the order of [Thread.Resolve]
	// Environments are those of the step that are ready and tell what is installed, in its order.
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
// environments of the step, as far as that is not known already. Environments are read at once,
// the roots of one in one request. What cannot be read is an error of
// its root. Found is kept, with errors that will not pass; others are tried again at the next
// call. The error is the cause of ctx.
func (t *Thread) Discover(ctx context.Context, step *environment.Step) (*View, error) {
	panic("to come")
}

// Inspect tells which roots could be used now, and why others could not, for people who ask. It
// starts no environment and waits for none. Environments that are starting, or are recovering
// their connection, are not worth a warning.
func Inspect(set *environment.Set, roots []Root) (ready []Root, warnings []string) {
	panic("to come")
}
