package agent

import "github.com/execagent/execagent/protocol"

// A request that asks for confinement must get it or be refused, never run
// without (fail closed, D12). This agent has no sandbox, so only
// contexts that confine nothing pass.

func confineFiles(s *protocol.Sandbox) error {
	if s == nil || s.UnrestrictedFiles() {
		return nil
	}
	return errNoSandbox("the file system")
}

func confineProcess(p *protocol.StartParams) error {
	s := p.Sandbox
	if s == nil || s.Unrestricted() && !p.EnforceManagedNetwork {
		return nil
	}
	if s.UnrestrictedFiles() {
		return errNoSandbox("the network")
	}
	return errNoSandbox("the file system")
}

func errNoSandbox(what string) error {
	return protocol.InvalidRequest("sandbox: this agent cannot restrict access to %s yet; nothing was run", what)
}
