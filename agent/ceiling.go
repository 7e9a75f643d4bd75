package agent

import (
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/profile"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// The operator has the last word about the sandbox of every request that touches files, starts a
// process or opens a socket (docs/operator.md). The order is: the default, the requirement, the
// ceiling. sandboxOf has the first two and decides what a request without a sandbox gets. Its callers
// compile what profileOf makes of the result. The ceiling is then enforced where the paths of a policy are looked up: by
// sandboxes.door for what is started or connected, and by sandboxes.helpers for file requests.

// sandboxOf returns the sandbox of a request by the operator's word; nil: it has none.
func (a *Agent) sandboxOf(s *protocol.Sandbox) (*protocol.Sandbox, error) {
	free := s == nil || s.UnrestrictedFiles()
	if s == nil || free && a.cfg.RequireSandbox {
		if a.cfg.SandboxDefault != nil {
			s, free = a.cfg.SandboxDefault, a.cfg.SandboxDefault.UnrestrictedFiles()
		}
	}
	if s == nil {
		s = a.cfg.SandboxCeiling
	}
	if free && a.cfg.RequireSandbox && !a.cfg.hasFileCeiling() {
		return nil, errNoSandbox
	}
	return s, nil
}

// profileOf returns the profile of the sandbox that sandboxOf has returned, for a request with these folders. A
// sandbox can restrict no files although its words do: if an entry lets everything be written. By the
// operator's requirement it is then replaced by the default, or refused.
func (a *Agent) profileOf(s *protocol.Sandbox, dir, tmpDir string) (sandbox.Profile, error) {
	asked, err := profile.Of(s, dir, tmpDir)
	if err != nil || !a.cfg.RequireSandbox || a.cfg.hasFileCeiling() || !a.restrictsNoFiles(asked) {
		return asked, err
	}
	if a.cfg.SandboxDefault == nil {
		return asked, errNoSandbox
	}
	asked, err = profile.Of(a.cfg.SandboxDefault, dir, tmpDir)
	if err == nil && a.restrictsNoFiles(asked) {
		err = errNoSandbox
	}
	return asked, err
}

// restrictsNoFiles reports whether a profile lets everything be written. Of a wrong one, whoever uses it finds
// the error.
func (a *Agent) restrictsNoFiles(asked sandbox.Profile) bool {
	policy, err := a.sandboxes.door.Compile(asked)
	return err == nil && (!policy.Confined || policy.WritesEverything())
}

var (
	errNoSandbox = protocol.InvalidRequest("the operator of this agent requires a sandbox (--require-sandbox): send the member sandbox with permissions " +
		"of the type managed whose file_system is restricted; nothing was done")
	errTool = protocol.InvalidRequest("builtin: the operator of this agent confines every request (--sandbox-default, --sandbox-ceiling, --require-sandbox), " +
		"and a tool cannot be confined: use file requests with a sandbox; nothing was run")
	errOffline = protocol.InvalidRequest("the operator's ceiling (--sandbox-ceiling) has no network, so the agent connects nowhere for clients; nothing was sent")
	errUnread  = protocol.InvalidRequest("the operator's ceiling (--sandbox-ceiling) does not let everything be read, so no configuration is read for clients")
)

// hasFileCeiling reports whether the operator's ceiling restricts files.
func (c *Config) hasFileCeiling() bool {
	return c.SandboxCeiling != nil && !c.SandboxCeiling.UnrestrictedFiles()
}

// offline reports whether the operator's ceiling has no network. A command then has none at all: if
// its client asks for a proxy, the variables name one that it cannot reach and that lets nothing through.
func (c *Config) offline() bool {
	return c.SandboxCeiling != nil && c.SandboxCeiling.Permissions.Network == protocol.NetworkRestricted
}

// confinesAll reports whether a request that asks for no sandbox is confined, or refused.
func (c *Config) confinesAll() bool {
	return c.SandboxDefault != nil || c.RequireSandbox || c.hasFileCeiling()
}

// nothing is a list of hosts that lets nothing through.
func nothing() *rules.Hosts {
	hosts, err := rules.Compile(rules.Rules{})
	if err != nil {
		panic(err) // it has no patterns
	}
	return hosts
}

// errNoCeiling says that a ceiling restricts nothing.
var errNoCeiling = errors.New("it restricts neither files nor the network")

// ceiling returns the policy that no request exceeds. Its places depend on the agent alone, not on a
// request.
func (a *Agent) ceiling() (*sandbox.Policy, error) {
	asked, err := profile.Of(a.cfg.SandboxCeiling, "", a.sandboxes.tmpDir)
	if err != nil {
		return nil, fmt.Errorf("the operator's ceiling: %w", err)
	}
	// What the agent itself has to show a command can be shown under each ceiling.
	asked.Tools = a.tool.Paths()
	if folder := a.networks.Folder(); folder != "" {
		asked.Tools = append(asked.Tools, folder)
	}
	policy, err := a.sandboxes.door.Compile(asked)
	if err == nil && policy.RestrictsNothing() {
		err = errNoCeiling
	}
	if err != nil {
		return nil, fmt.Errorf("the operator's ceiling: %w", err)
	}
	return policy, nil
}

// readsAll returns an error unless the ceiling lets everything be read. It is for what the agent reads
// itself, without a policy.
func (a *Agent) readsAll() error {
	if !a.cfg.hasFileCeiling() {
		return nil
	}
	policy, err := a.sandboxes.door.Ceiling()
	if err == nil && !policy.FullRead {
		err = errUnread
	}
	return err
}
