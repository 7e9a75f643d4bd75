package agent

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/metrics"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/protocol"
)

// Rules says where an operator's rules about commands are, and which decisions hold if no rule
// matches (docs/execpolicy.md). A decision is "allow", "prompt" or "forbidden".
type Rules struct {
	// Folder has the rules, in files whose names end in .rules.
	Folder string
	// Unmatched is the decision about commands that no rule matches; "" is allow.
	Unmatched string
	// Opaque is the decision about shell scripts that cannot be split into commands; "" is
	// Unmatched.
	Opaque string
	// ForcedRM is the decision about rm -f that no rule matches; "" is allow.
	ForcedRM string
	// Enforce is "start" if the rules judge the commands that clients start, and "tree" if they
	// also judge every program that these execute. "" is tree if the kernel can do it, else start.
	Enforce string
	// Amend adds a rule to the folder when a client accepts a command with one.
	Amend bool
	// AllowUnasked lets a command with the decision prompt run if no client can be asked.
	AllowUnasked bool
}

// ExecPolicy holds the current rules about commands, for [Config]. [ReadPolicy] makes one; [New]
// panics for the zero value.
type ExecPolicy struct {
	current *execpolicy.Current
	hidden  []string // the folder, which no confined command may see
	reread  func() error
}

// ReadPolicy reads rules, and finds out whether this host can enforce them as r says. The program
// must call helper.Dispatch, as for [Config.Confines]. The number of rules goes to log; nil
// discards.
func ReadPolicy(r Rules, log *slog.Logger) (*ExecPolicy, error) {
	o, err := approval.ReadRules(approval.Rules(r), log)
	if err != nil {
		return nil, err
	}
	return &ExecPolicy{current: o.Current(), hidden: o.Hidden(), reread: o.Reread}, nil
}

// Reread reads the rules in the folder again. They apply to commands that start from now on. After
// an error the old rules stay.
func (p *ExecPolicy) Reread() error { return p.reread() }

func (p *ExecPolicy) inForce() *execpolicy.Current {
	switch {
	case p == nil:
		return nil
	case p.current == nil: // it would allow everything
		panic("agent: an ExecPolicy that ReadPolicy has not made")
	}
	return p.current
}

func (p *ExecPolicy) folder() []string {
	if p == nil {
		return nil
	}
	return p.hidden
}

// NetworkPolicy is an operator's policy for the network of all commands: the ceiling of what any
// client can allow (docs/network.md). The zero value lets nothing through.
type NetworkPolicy struct {
	// Allow, Deny and Ask are patterns of hosts, such as "*.example.org:443", or request rules, such as
	// "GET example.org/v1/**". A client may allow the entries of Allow, and
	// must be asked about those of Ask.
	Allow, Deny, Ask []string
	// Ports are the only ports that may be reached; none: every port.
	Ports []uint16
	// Local lets names lead to local and private addresses.
	Local bool
	// Upstream is "environment" or "" for the proxies that the environment names, "none", or the
	// URL of a proxy for everything, http://HOST:PORT.
	Upstream string
	// TCPUpstream is the HOST:PORT of a proxy for CONNECT that is the only way out for SOCKS5 and for
	// transparent connections, if the client allows upstream proxies; "": they go out directly.
	TCPUpstream string
	// Masking has, by name, the credentials that commands may use but not see.
	Masking map[string]protocol.CredentialProvider
}

// Network is a checked policy for the network, for [Config]. [NewNetwork] makes one; [New] and
// [Agent.SetNetwork] panic for the zero value.
type Network struct{ operator *egress.Operator }

// NewNetwork checks a policy; with nil, clients decide alone. environ, as "NAME=value", names the
// proxies of the upstream "environment". The error quotes no value that may hold a password.
func NewNetwork(p *NetworkPolicy, environ []string) (*Network, error) {
	if p == nil {
		tcp, err := egress.TCPUpstream("", environ)
		if err != nil {
			return nil, err
		}
		return &Network{&egress.Operator{Upstream: egress.UpstreamOf(environ), TCP: tcp}}, nil
	}
	domains := map[string]rules.Action{}
	for action, patterns := range map[rules.Action][]string{rules.Allow: p.Allow, rules.Deny: p.Deny, rules.Ask: p.Ask} {
		for _, pattern := range patterns {
			if other, ok := domains[pattern]; ok && other != action {
				return nil, fmt.Errorf("%q is in two lists", pattern)
			}
			domains[pattern] = action
		}
	}
	for name, provider := range p.Masking {
		if err := egress.CheckProvider(provider); err != nil {
			return nil, fmt.Errorf("masking %q: %w", name, err)
		}
	}
	o := egress.Operator{Masking: p.Masking}
	var err error
	if o.Upstream, o.Through, err = egress.Upstream(p.Upstream, environ); err != nil {
		return nil, err
	}
	if o.TCP, err = egress.TCPUpstream(p.TCPUpstream, environ); err != nil {
		return nil, err
	}
	if o.Ceiling, err = rules.Compile(rules.Rules{Local: p.Local, Domains: domains, Ports: p.Ports}); err != nil {
		return nil, err
	}
	return &Network{&o}, nil
}

// SetNetwork replaces the operator's network policy, for running commands too. If the new policy does not allow
// one of their connections, the connection ends. Their upstream proxies and masked credentials stay the same.
func (a *Agent) SetNetwork(n *Network) {
	o := egress.Operator{}
	switch {
	case n == nil:
	case n.operator == nil: // clients would decide alone
		panic("agent: a Network that NewNetwork has not made")
	default:
		o = *n.operator
	}
	if a.cfg.offline() {
		o.Ceiling = noHosts()
	}
	a.networks.Set(o)
}

// Tool is a folder for the PATH of commands, with this program under the name apply_patch: a tool
// for patches of models. [ProvideTool] makes one.
type Tool struct{ provided *applypatch.Provided }

// ProvideTool makes the folder. The program must call helper.Dispatch, which runs the tool. The
// caller closes the Tool after the agent.
func ProvideTool() (*Tool, error) {
	provided, err := applypatch.Provide()
	if err != nil {
		return nil, err
	}
	return &Tool{provided}, nil
}

// Close removes the folder.
func (t *Tool) Close() error { return t.provided.Close() }

func (t *Tool) folder() *applypatch.Provided {
	if t == nil {
		return nil
	}
	return t.provided
}

// Metrics has the metrics of one agent and of its process, and serves them as a page for Prometheus
// (docs/metrics.md). A program may add its own metrics before the first page is requested.
type Metrics struct{ set *metrics.Set }

// NewMetrics returns the metrics of the process. An agent whose [Config] has them adds its own.
func NewMetrics() *Metrics { return &Metrics{metrics.NewSet()} }

// ServeHTTP answers with the page. The caller has checked that the client may see it.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.set.ServeHTTP(w, r) }

// Counter adds a counter, whose value comes from calling value. The labels are names and values in
// turn.
func (m *Metrics) Counter(name, help string, value func() uint64, labels ...string) {
	m.set.CountedBy(name, help, value, labels...)
}

// Gauge is like Counter, for a value that goes up and down.
func (m *Metrics) Gauge(name, help string, value func() float64, labels ...string) {
	m.set.Gauge(name, help, value, labels...)
}
