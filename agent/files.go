package agent

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/metrics"
	"github.com/execagent/execagent/internal/sandbox/files"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// files returns the file system that a request of an owner with this sandbox may use: that of
// the host, or a helper's under a policy. It is the only place that decides this.
func (a *Agent) files(ctx context.Context, owner string, s *protocol.Sandbox) (fsops.FS, error) {
	return a.filesUnder(ctx, s, &policies{owner: owner})
}

// filesUnder is like files, with policies that are kept from one request to the next.
func (a *Agent) filesUnder(ctx context.Context, s *protocol.Sandbox, kept *policies) (fsops.FS, error) {
	s, err := a.sandboxOf(s)
	if err != nil {
		a.metrics.Refused(metrics.RefusedByRequest)
		return nil, err
	}
	if s == nil || s.UnrestrictedFiles() && !a.cfg.hasFileCeiling() {
		return fsops.Host{}, nil
	}
	policy, err := kept.of(s, a.filePolicy)
	if err != nil {
		a.metrics.Refused(metrics.RefusedByRequest)
		return nil, err
	}
	if policy == nil {
		return fsops.Host{}, nil
	}
	if !a.sandboxes.confines {
		return nil, errNoHelpers
	}
	confined, err := a.sandboxes.helpers.FilesOf(ctx, policy)
	if err != nil {
		a.metrics.Refused(refusal(err))
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	return confined, nil
}

// filePolicy compiles the policy of a file request. It depends only on the request and on facts
// that do not change while the agent lives, so a policy may be kept.
func (a *Agent) filePolicy(s *protocol.Sandbox) (*sandbox.Policy, error) {
	asked, err := a.folderlessProfile(s)
	if err != nil {
		return nil, err
	}
	asked.Tools = a.tool.Paths()
	policy, err := a.sandboxes.door.Compile(asked)
	if err == nil && !policy.Confined && a.cfg.hasFileCeiling() {
		policy, err = a.sandboxes.door.Ceiling()
	}
	if errors.Is(err, sandbox.ErrNeedsCwd) {
		return nil, protocol.InvalidParams("sandbox.cwd: %v", err)
	}
	if err != nil {
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	return policy, nil
}

// Bounds of the policies that a connection keeps: their number, and their bytes together.
const (
	maxPolicies    = 16
	maxPolicyBytes = 256 << 10
)

// policies keeps the policies that file requests of a connection used last. The zero value is ready
// for use.
type policies struct {
	owner string  // of the connection
	cfg   *Config // has the operator's sandboxes; nil: there are none

	mu    sync.Mutex   // guards what follows
	kept  []keptPolicy // the last used at the end
	bytes int          // of all
}

type keptPolicy struct {
	text   string            // of the sandbox; "": it is the operator's
	own    *protocol.Sandbox // the operator's sandbox; nil: it is a client's
	policy *files.Keyed      // nil: it restricts no file
	bytes  int
}

// isOperators reports whether a sandbox is the operator's default or ceiling. Such a sandbox has no text, so
// it is found by its pointer.
func (p *policies) isOperators(s *protocol.Sandbox) bool {
	return p.cfg != nil && (s == p.cfg.SandboxDefault || s == p.cfg.SandboxCeiling)
}

// of returns the policy of a sandbox, and compiles it if it is not kept; nil if it restricts no
// file. A policy that is too large or wrong is not kept. If several requests come at once with a
// new policy, one compiles it and the others wait.
func (p *policies) of(s *protocol.Sandbox, compile func(*protocol.Sandbox) (*sandbox.Policy, error)) (*files.Keyed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.kept, func(k keptPolicy) bool { return k.text == s.Text() && (k.text != "" || k.own == s) }); i >= 0 {
		k := p.kept[i]
		p.kept = append(slices.Delete(p.kept, i, i+1), k)
		return k.policy, nil
	}
	policy, err := compile(s)
	if err != nil {
		return nil, err
	}
	k := keptPolicy{text: s.Text(), bytes: len(s.Text())}
	if policy.Confined {
		k.policy = files.WithKey(policy, p.owner)
		k.bytes += sizeOf(policy)
	}
	if k.text == "" && !p.isOperators(s) || k.bytes > maxPolicyBytes {
		return k.policy, nil
	}
	if k.text == "" {
		k.own = s
	}
	p.kept, p.bytes = append(p.kept, k), p.bytes+k.bytes
	for len(p.kept) > maxPolicies || p.bytes > maxPolicyBytes {
		p.bytes -= p.kept[0].bytes
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	return k.policy, nil
}

// sizeOf returns the approximate memory of a policy, in bytes.
func sizeOf(p *sandbox.Policy) int {
	const each = 40 // bytes of a rule or a glob, beside its paths
	n := each * (len(p.Rules) + len(p.Globs) + len(p.Private))
	for _, r := range p.Rules {
		n += len(r.Path)
	}
	for _, g := range p.Globs {
		n += len(g.Base) + len(g.Pattern)
	}
	return n
}
