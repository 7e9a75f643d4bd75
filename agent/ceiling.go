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
// ceiling. sandboxOf applies the default and the requirement, and its callers compile the profile that
// profileOf makes of the result. The ceiling is enforced later, where the paths of a policy are looked up: by
// sandboxes.door for processes and sockets, and by sandboxes.helpers for file requests.

// sandboxOf returns the sandbox that the operator's word gives a request which asks for s; nil: it has
// none. The sandbox may still exceed the ceiling.
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

// folderlessProfile is profileOf for a request without folders of its own, such as a file request. The error is
// the answer to the request.
func (a *Agent) folderlessProfile(s *protocol.Sandbox) (sandbox.Profile, error) {
	asked, err := a.profileOf(s, "", a.sandboxes.tmpDir)
	if err != nil && err != errNoSandbox {
		err = protocol.InvalidRequest("sandbox: %v", err)
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
		"of the type managed whose file_system is restricted, or use agent exec with --read-only or --workspace; nothing was done")
	errTool = protocol.InvalidRequest("builtin: the operator of this agent confines every request (--sandbox-default, --sandbox-ceiling, --require-sandbox), " +
		"and a tool cannot be confined: use file requests with a sandbox; nothing was run")
	errOffline = protocol.InvalidRequest("the operator's ceiling (--sandbox-ceiling) has no network, so the agent makes no connection for clients; nothing was sent")
	errUnread  = protocol.InvalidRequest("the operator's ceiling (--sandbox-ceiling) does not let everything be read, so no configuration is read for clients: read files by fs/readFile")
)

// hasFileCeiling reports whether the operator's ceiling restricts files.
func (c *Config) hasFileCeiling() bool {
	return c.SandboxCeiling != nil && !c.SandboxCeiling.UnrestrictedFiles()
}

// offline reports whether the operator's ceiling has no network. A command then has no network at all. If
// its client asks for a proxy, the variables name a proxy that the command cannot reach and that lets
// nothing through.
func (c *Config) offline() bool {
	return c.SandboxCeiling != nil && c.SandboxCeiling.Permissions.Network == protocol.NetworkRestricted
}

// confinesAll reports whether a request that asks for no sandbox is confined, or refused.
func (c *Config) confinesAll() bool {
	return c.SandboxDefault != nil || c.RequireSandbox || c.hasFileCeiling()
}

// noHosts returns a list of hosts that lets nothing through.
func noHosts() *rules.Hosts {
	hosts, err := rules.Compile(rules.Rules{})
	if err != nil {
		panic(err) // it has no patterns
	}
	return hosts
}

// errRestrictsNothing refuses such a ceiling.
var errRestrictsNothing = errors.New("it restricts neither files nor the network")

// ceiling compiles the operator's ceiling. Places such as TMPDIR are those of the agent, and never those of
// a request.
func (a *Agent) ceiling() (*sandbox.Policy, error) {
	asked, err := profile.Of(a.cfg.SandboxCeiling, "", a.sandboxes.tmpDir)
	if err != nil {
		return nil, fmt.Errorf("the operator's ceiling: %w", err)
	}
	// The files that the agent itself has to show a command are readable under every ceiling.
	asked.Tools = a.tool.Paths()
	if folder := a.networks.Folder(); folder != "" {
		asked.Tools = append(asked.Tools, folder)
	}
	policy, err := a.sandboxes.door.Compile(asked)
	if err == nil && policy.RestrictsNothing() {
		err = errRestrictsNothing
	}
	if err != nil {
		return nil, fmt.Errorf("the operator's ceiling: %w", err)
	}
	return policy, nil
}

// checkReadsAll returns an error unless the ceiling lets everything be read. It is for files that the agent
// itself reads for a client, without a policy.
func (a *Agent) checkReadsAll() error {
	if !a.cfg.hasFileCeiling() {
		return nil
	}
	policy, err := a.sandboxes.door.Ceiling()
	if err == nil && !policy.FullRead {
		err = errUnread
	}
	return err
}
