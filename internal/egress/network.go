package egress

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/mask"
	"github.com/execagent/execagent/internal/netproxy/names"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
)

// Operator is the policy of an agent's operator for all networks.
type Operator struct {
	// Ceiling bounds what any client can allow; nil: no bound.
	Ceiling *rules.Hosts
	// Upstream has the proxies for outgoing requests, for clients that allow them.
	Upstream *netproxy.Upstream
	// Through: requests of all other clients use them, too.
	Through bool
	// TCP is the only way out for SOCKS5 and transparent connections, of clients that allow upstream
	// proxies; nil: they go out directly.
	TCP *netproxy.TCPUpstream
	// Masking has, by name, the credentials that no process may see, whatever its client asks for.
	Masking map[string]protocol.CredentialProvider

	hidden *mask.Hidden // of Masking, made by Networks.Set; nil: nothing is hidden
}

// UpstreamOf returns the proxies that an environment names, "NAME=value"; nil if it names none.
func UpstreamOf(environ []string) *netproxy.Upstream {
	return netproxy.UpstreamOf(func(name string) string { return variable(environ, name) })
}

func variable(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// Upstream returns the proxies for an operator's word: environment or "" for those that the
// environment names, none, or the URL of a proxy. If the operator names a proxy, it is the only way
// out: then through is true. The error does not quote a URL, which may hold a password.
func Upstream(word string, environ []string) (u *netproxy.Upstream, through bool, err error) {
	switch word {
	case "", "environment":
		return UpstreamOf(environ), false, nil
	case "none":
		return nil, false, nil
	}
	if u, err := url.Parse(word); err != nil || u.Scheme != "http" || u.Hostname() == "" || strings.TrimPrefix(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, false, errors.New("upstream is not environment, none or http://HOST:PORT")
	}
	return netproxy.UpstreamOf(func(name string) string {
		if name == netproxy.PrivateVariable {
			return variable(environ, name)
		}
		return word
	}), true, nil
}

// Networks makes the networks of the processes of one agent.
type Networks struct {
	// Ports are the ports that the agent listens at. No process reaches them through its proxy.
	Ports []uint16
	// OpenPorts are those of them, at more than a loopback address, that need no authentication. No
	// process reaches such a port at any address, because it may be published elsewhere, or an
	// upstream proxy may lead to it.
	OpenPorts []uint16
	// Environ is the environment of the agent, which has the credentials that the operator hides. It is
	// set before the first Set.
	Environ []string
	// Roots returns the roots that proxies trust if they speak TLS themselves; nil: the system's.
	Roots func() *x509.CertPool
	// Log logs credentials that cannot be masked, without their values; nil discards.
	Log *slog.Logger

	operator   atomic.Pointer[Operator]
	trust      trust
	secret     [sha256.Size]byte // of placeholders
	secretOnce sync.Once
	names      names.Secret // of invented addresses
	namesOnce  sync.Once
	short      share.Shortage

	mu    sync.Mutex
	gates map[uint16]struct{} // ports of this host that proxies listen at
	open  map[*Network]struct{}
}

// Set replaces the operator's policy. Its ceiling holds for open networks too: a connection that the ceiling
// does not allow any more ends, and is reported. Upstream proxies and credentials of open networks stay the
// same, because the environment of a running process cannot change.
func (n *Networks) Set(o Operator) {
	if len(o.Masking) > 0 {
		o.hidden = mask.NewHidden(providers(o.Masking), n.Environ)
	}
	n.operator.Store(&o)
	n.mu.Lock()
	open := slices.Collect(maps.Keys(n.open))
	n.mu.Unlock()
	for _, w := range open {
		w.applyCeiling(n)
	}
}

// applyCeiling puts the network under the current ceiling.
func (w *Network) applyCeiling(n *Networks) {
	w.applying.Lock()
	defer w.applying.Unlock()
	w.proxy.SetPolicy(w.plan.policy.Under(n.said().Ceiling))
}

// said returns the operator's current policy.
func (n *Networks) said() *Operator {
	if o := n.operator.Load(); o != nil {
		return o
	}
	return &unsaid
}

// unsaid is the policy of an operator who has said nothing.
var unsaid Operator

// Close removes the files written for processes. All networks must be closed before.
func (n *Networks) Close() error { return n.trust.close() }

// Client is the client that answers questions about a network and gets its reports.
type Client struct {
	Owner   string // whose shares its processes use up
	Session string // its processes see equal placeholders for equal credentials
	Ask     func(ctx context.Context, method string, params, result any) error
	Reports *Reports
	// Noted, if set, gets all verdicts that refuse. It must not block.
	Noted func(netproxy.Report)
	// Saw, if set, gets the verdicts instead of Reports, and Unreached the allowed requests that found
	// nobody, for which the wire has no word. Neither may block.
	Saw       func(netproxy.Report)
	Unreached func(netproxy.Question, error)
}

// Network is the network of one process. Its methods may be called at once.
type Network struct {
	plan    *Plan
	client  Client
	gate    *gate.Gate
	environ []string
	// onHost and enforced are those of Start.
	onHost, enforced bool
	proxy            *netproxy.Proxy
	resolver         *names.Server // nil: connections are not transparent
	serving          sync.WaitGroup
	closing          sync.Once
	applying         sync.Mutex // held while the policy is replaced, so that the latest ceiling stays
	release          func()
}

// Start is the process that gets a network.
type Start struct {
	Environ []string // as it would be without one
	// Gate has the listeners of the proxy. The network then owns it.
	Gate *gate.Gate
	// OnHost says that these are ports of this host.
	OnHost bool
	// Enforced says that the process has no other way out.
	Enforced bool
}

// Open serves a proxy at the listeners of a gate.
func (n *Networks) Open(plan *Plan, start Start, c Client) (*Network, error) {
	w := &Network{plan: plan, client: c, gate: start.Gate, environ: start.Environ, onHost: start.OnHost, enforced: start.Enforced, release: func() {}}
	if start.OnHost { // first of all, because the listeners already exist
		w.release = n.listensAt(start.Gate.Ports())
	}
	o := n.said()
	cfg := netproxy.Config{
		Owner: c.Owner, Policy: plan.policy.Under(o.Ceiling), Report: w.report, Unreached: c.Unreached, Own: n.own, Roots: n.Roots, Failed: n.acceptFailed,
	}
	if plan.asked.Proxy.AllowUpstreamProxy || o.Through {
		cfg.Upstream = o.Upstream
	}
	if o.TCP != nil {
		cfg.TCP = &netproxy.TCPUpstream{Address: o.TCP.Address, Private: o.TCP.Private, Closed: !plan.asked.Proxy.AllowUpstreamProxy && !o.Through}
	}
	var invented *names.Names
	var conf [][]string // of the host's resolver, which the process asks if it has no network of its own
	if start.Gate.Held() != nil {
		if w.onHost {
			conf = hostResolvConf()
		}
		invented = n.resolver(w, conf)
		cfg.Named = func(addr netip.Addr) (string, bool) { return invented.Name(addr), names.Invented(addr) }
	}
	if plan.timeout > 0 {
		cfg.Decide = w.decide
	}
	if plan.asked.Proxy.EnableSocks5UDP && !start.Enforced {
		// Other users of the host could send datagrams there before the process does. They
		// gain only what that process may reach anyway.
		cfg.Datagrams = func() (net.PacketConn, error) { return net.ListenPacket("udp4", "127.0.0.1:0") }
	}
	if plan.looks(o) {
		var bundle string
		var err error
		if cfg.Authority, bundle, err = n.trust.get(); err == nil && plan.masks(o) {
			cfg.Credentials, err = n.broker(plan, o, c.Session, start.Environ)
		}
		if err != nil {
			start.Gate.Close()
			w.release()
			return nil, fmt.Errorf("looking into requests: %w", err)
		}
		if w.environ = mask.Trusting(start.Environ, bundle); cfg.Credentials != nil {
			w.environ = cfg.Credentials.Environ(bundle)
		}
	}
	w.proxy = netproxy.New(cfg)
	n.opened(w)
	if n.said() != o {
		w.applyCeiling(n) // the ceiling has changed meanwhile
	}
	if invented != nil {
		w.hold(invented, conf)
	}
	w.serve(netproxy.HTTP, start.Gate.HTTP())
	if l := start.Gate.SOCKS5(); l != nil {
		w.serve(netproxy.SOCKS5, l)
	}
	return w, nil
}

func (w *Network) serve(kind netproxy.Kind, l net.Listener) {
	w.serving.Go(func() {
		// It fails if the sandbox ends before it has begun; the process then prints the reason.
		_ = w.proxy.Serve(kind, l)
	})
}

// Environ returns the environment of the process, in which programs find the proxies.
func (w *Network) Environ() []string {
	var socks net.Addr
	if l := w.gate.SOCKS5(); l != nil {
		socks = l.Addr()
	}
	return environ(w.environ, w.gate.HTTP().Addr(), socks, w.direct(), w.plan.asked.Proxy.AllowLocalBinding)
}

// Close refuses requests that wait for an answer, and ends all connections of the process. It
// returns when all verdicts have been reported. It may be called often, also on nil.
func (w *Network) Close() {
	if w == nil {
		return
	}
	w.closing.Do(func() {
		_ = w.proxy.Close() // it returns no error
		w.gate.Close()
		if w.resolver != nil {
			w.resolver.Close()
		}
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
	if w.plan.policy.HasRequestRules() { // else the client may not know these members
		params.Request.Method, params.Request.Path = q.Method, q.Path
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
	if w.client.Noted != nil && r.Decision != rules.Allow {
		w.client.Noted(r)
	}
	if w.client.Saw != nil {
		w.client.Saw(r)
		return
	}
	d := protocol.PolicyDecision{
		ProcessID: w.plan.process, Scope: r.Scope, Decision: string(r.Decision), Source: r.Source, Reason: r.Reason,
		Protocol: r.Protocol, Host: r.Host, Port: r.Port, Method: r.Method, Client: r.Client, PolicyOverride: r.Override,
	}
	if w.plan.policy.HasRequestRules() {
		d.Path = r.Path
	}
	d.Stamp(r.Time)
	w.client.Reports.add(d)
}

// opened notes a network until it is closed, so that Set finds it.
func (n *Networks) opened(w *Network) {
	release := w.release
	w.release = func() {
		release()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.open, w)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = map[*Network]struct{}{}
	}
	n.open[w] = struct{}{}
}

// listensAt notes ports at which proxies listen, until release is called.
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

// acceptFailed logs that a command could not connect to its proxy because descriptors are short.
func (n *Networks) acceptFailed(err error) {
	if n.Log != nil {
		n.short.Note(n.Log, "a command cannot connect to its proxy", err)
	}
}

// own reports whether the agent itself listens at an address: for its clients, or with the proxy of
// another process, which would take the connection for one of that process.
func (n *Networks) own(addr netip.AddrPort) bool {
	n.mu.Lock()
	_, gated := n.gates[addr.Port()]
	n.mu.Unlock()
	if slices.Contains(n.OpenPorts, addr.Port()) {
		return true
	}
	if !gated && !slices.Contains(n.Ports, addr.Port()) {
		return false
	}
	ip := addr.Addr().Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return true // the addresses of this host are unknown
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

// everything allows all hosts, so that the operator's ceiling alone decides.
var everything = sync.OnceValues(func() (*rules.Hosts, error) {
	return rules.Compile(rules.Rules{Local: true, Domains: map[string]rules.Action{"*": rules.Allow}})
})

// sameHost reports whether a Host header names a host and its port. A header without a port names any port.
func sameHost(named, host, port string) bool {
	if name, p, err := net.SplitHostPort(named); err == nil {
		named = name
		if p != port {
			return false
		}
	}
	a, err := rules.Host(named)
	b, err2 := rules.Host(host)
	return err == nil && err2 == nil && a == b
}

// errNoCeiling refuses what the operator says nothing about.
var errNoCeiling = errors.New("there is no --network-policy, which would have to allow it")

// An Admission judges connections that the agent itself makes because a client asks for them. It goes by the
// operator's policy of the moment when it was made.
type Admission struct {
	ceiling *rules.Hosts
	proxy   *netproxy.Proxy // makes no connection
}

// Admission returns the judge of a moment. The operator must allow a host, because nobody else is asked. The
// caller must Close it.
func (n *Networks) Admission() (*Admission, error) {
	ceiling := n.said().Ceiling
	if ceiling == nil {
		return nil, errNoCeiling
	}
	all, err := everything()
	if err != nil {
		return nil, err
	}
	return &Admission{ceiling, netproxy.New(netproxy.Config{Policy: all.Under(ceiling), Own: n.own})}, nil
}

// Close frees what the Admission holds.
func (a *Admission) Close() error { return a.proxy.Close() }

// Admit judges a connection to address, HOST:PORT. For an HTTP request, request rules judge its method and
// escaped path; for other connections both are empty. named is the Host header of the request; "": the
// request has no such header. Admit returns the addresses that may be connected to. The error says why the
// connection is refused.
func (a *Admission) Admit(ctx context.Context, address, named, method, path string) ([]netip.AddrPort, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, err
	}
	if named != "" && a.ceiling.HasRequestRules() && !sameHost(named, host, text) {
		return nil, errors.New("the operator's --network-policy has rules about requests, and the Host header names another host than the URL: leave out the header")
	}
	places, err := a.proxy.Admit(ctx, host, uint16(port), method, path)
	if err != nil {
		return nil, fmt.Errorf("the operator's --network-policy refuses %s: %w", address, err)
	}
	return places, nil
}

// Admit judges one connection; see [Admission.Admit].
func (n *Networks) Admit(ctx context.Context, address, named, method, path string) ([]netip.AddrPort, error) {
	a, err := n.Admission()
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return a.Admit(ctx, address, named, method, path)
}
