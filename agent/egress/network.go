package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/execagent/execagent/helper/gate"
	"github.com/execagent/execagent/netproxy"
	"github.com/execagent/execagent/netproxy/rules"
	"github.com/execagent/execagent/protocol"
)

// Operator is what the operator of an agent says of all networks.
type Operator struct {
	// Ceiling bounds what any client can allow; nil does not.
	Ceiling *rules.Policy
	// Upstream has the proxies through which requests go out, of clients that let them.
	Upstream *netproxy.Upstream
}

// Networks makes the networks of the processes of one agent.
type Networks struct {
	// Ports are those that the agent listens at. No process reaches them through its proxy.
	Ports []uint16

	operator atomic.Pointer[Operator]

	mu    sync.Mutex
	gates map[uint16]struct{} // ports of this host that proxies listen at
}

// Set gives networks that are opened from now on another operator's word. Those that are open
// keep what they have: a process would otherwise lose in the middle of its work what it was
// started with.
func (n *Networks) Set(o Operator) { n.operator.Store(&o) }

// Client is who is asked about a network, and told of it.
type Client struct {
	Ask     func(ctx context.Context, method string, params, result any) error
	Reports *Reports
}

// Network is that of one process. Its methods may be called at once, also on nil.
type Network struct {
	plan    *Plan
	client  Client
	gate    *gate.Gate
	proxy   *netproxy.Proxy
	serving sync.WaitGroup
	closing sync.Once
	release func()
}

// Open serves a proxy at the listeners of a gate, which belongs to the network then. onHost tells
// that they are ports of this host, enforced that the process has no other way out.
func (n *Networks) Open(plan *Plan, g *gate.Gate, onHost, enforced bool, c Client) *Network {
	w := &Network{plan: plan, client: c, gate: g, release: func() {}}
	if onHost {
		w.release = n.listensAt(g.Ports())
	}
	cfg := netproxy.Config{Policy: plan.policy, Report: w.report, Own: n.own}
	if o := n.operator.Load(); o != nil {
		cfg.Policy = plan.policy.Under(o.Ceiling)
		if plan.asked.Proxy.AllowUpstreamProxy {
			cfg.Upstream = o.Upstream
		}
	}
	if plan.timeout > 0 {
		cfg.Decide = w.decide
	}
	if plan.asked.Proxy.EnableSocks5UDP && !enforced {
		// Other users of the host could send datagrams there before the process does. They
		// gain what that process may reach anyway.
		cfg.Datagrams = func() (net.PacketConn, error) { return net.ListenPacket("udp4", "127.0.0.1:0") }
	}
	w.proxy = netproxy.New(cfg)
	w.serve(netproxy.HTTP, g.HTTP())
	if l := g.SOCKS5(); l != nil {
		w.serve(netproxy.SOCKS5, l)
	}
	return w
}

func (w *Network) serve(kind netproxy.Kind, l net.Listener) {
	w.serving.Go(func() {
		// It fails where the sandbox ends before it has begun, and the process then says why.
		_ = w.proxy.Serve(kind, l)
	})
}

// Environ returns an environment in which programs find the proxies.
func (w *Network) Environ(env []string) []string {
	var socks net.Addr
	if l := w.gate.SOCKS5(); l != nil {
		socks = l.Addr()
	}
	return environ(env, w.gate.HTTP().Addr(), socks, w.plan.asked.Proxy.AllowLocalBinding)
}

// Close refuses what waits for an answer, and ends all connections of the process. It returns
// when all verdicts have been reported.
func (w *Network) Close() {
	if w == nil {
		return
	}
	w.closing.Do(func() {
		_ = w.proxy.Close() // it returns no error
		w.gate.Close()
		w.release()
	})
	w.serving.Wait()
}

// decide asks the client.
func (w *Network) decide(ctx context.Context, q netproxy.Question) (netproxy.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, w.plan.timeout)
	defer cancel()
	params := &protocol.PolicyRequestParams{
		ProcessID: w.plan.process,
		Request:   protocol.PolicyRequest{Protocol: q.Protocol, Host: q.Host, Port: q.Port},
	}
	var answer protocol.PolicyAnswer
	if err := w.client.Ask(ctx, protocol.MethodNetworkPolicyRequest, params, &answer); err != nil {
		return netproxy.Answer{}, err
	}
	choice := netproxy.Answer{Decision: rules.Action(answer.Decision.Type)}
	if answer.Decision.Reason != nil {
		choice.Reason = *answer.Decision.Reason
	}
	return choice, nil
}

func (w *Network) report(r netproxy.Report) {
	d := protocol.PolicyDecision{
		ProcessID: w.plan.process, Scope: r.Scope, Decision: string(r.Decision), Source: r.Source, Reason: r.Reason,
		Protocol: r.Protocol, Host: r.Host, Port: r.Port, Method: r.Method, Client: r.Client, PolicyOverride: r.Override,
	}
	d.Stamp(r.Time)
	w.client.Reports.add(d)
}

// listensAt notes ports at which proxies listen, until what it returns is called.
func (n *Networks) listensAt(ports []uint16) (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gates == nil {
		n.gates = map[uint16]struct{}{}
	}
	for _, port := range ports {
		n.gates[port] = struct{}{}
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, port := range ports {
			delete(n.gates, port)
		}
	}
}

// own tells whether the agent itself listens at an address: for its clients, or with the proxy
// of any process, which would take the connection for one of its own process.
func (n *Networks) own(addr netip.AddrPort) bool {
	n.mu.Lock()
	_, gated := n.gates[addr.Port()]
	n.mu.Unlock()
	if !gated && !slices.Contains(n.Ports, addr.Port()) {
		return false
	}
	ip := addr.Addr().Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return true // it cannot be told apart
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		local, ok := netip.AddrFromSlice(prefix.IP)
		return ok && local.Unmap() == ip
	})
}
