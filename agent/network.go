package agent

import (
	"github.com/execagent/execagent/agent/egress"
	"github.com/execagent/execagent/helper/gate"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// networkPlan checks what a start asks for of the managed network; nil: it asks for no proxy.
func networkPlan(p *protocol.StartParams) (*egress.Plan, error) {
	if p.NetworkProxy == nil {
		return nil, nil
	}
	plan, err := egress.Of(p.NetworkProxy, p.ProcessID)
	if err != nil {
		return nil, protocol.InvalidParams("%v", err)
	}
	return plan, nil
}

// errFree refuses, for an operator who wants that, what could reach the network without a proxy
// of ours.
var errFree = protocol.InvalidRequest("the operator of this agent requires that the network of commands is enforced " +
	"(--require-network-enforcement): the start needs a sandbox that restricts the network, or one with networkProxy and " +
	"enforceManagedNetwork; nothing was run")

// enter puts a process that is about to be started under the sandbox of its request, and gives
// it its network.
func (c *connection) enter(params *protocol.StartParams, plan *egress.Plan, p *process, spec *procs.Spec) (err error) {
	enforced := params.Sandbox != nil && params.EnforceManagedNetwork
	free := !enforced
	if params.Sandbox != nil {
		if p.box, free, err = c.agent.confine(params.Sandbox, spec, plan, enforced); err != nil {
			return err
		}
	}
	bridged := enforced && plan == nil // to whatever the client has named
	if c.agent.cfg.RequireNetworkEnforcement && !params.Builtin && (free || bridged) {
		return errFree
	}
	if plan == nil {
		spec.Env = c.agent.networks.Hide(spec.Env)
	}
	if plan == nil || p.box != nil && p.box.Refusal() != nil {
		return nil
	}
	start := egress.Start{Environ: spec.Env, Gate: p.box.Gate(), OnHost: true, Enforced: enforced}
	if start.Gate != nil {
		start.OnHost = !p.box.Has(sandbox.NetNS)
	} else if start.Gate, err = gate.Owned(plan.Listeners()); err != nil {
		return err
	}
	client := egress.Client{Session: c.session.id, Ask: p.ask, Reports: &c.session.reports}
	if client.Ask == nil {
		client.Ask = c.session.ask
	}
	if p.network, err = c.agent.networks.Open(plan, start, client); err != nil {
		return err
	}
	p.advisory, spec.Env = free, p.network.Environ()
	return nil
}
