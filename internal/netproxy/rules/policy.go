package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Rules is a network policy as a client or an operator writes it.
type Rules struct {
	Limited bool // mode "limited": only methods that read, and only connections that the proxy can look into
	Local   bool // local and private addresses are treated like other addresses (allowLocalBinding)

	// Domains has an action for each pattern of hosts, or request rule: Allow, Deny, or Ask. Ask has the
	// same effect as an element of Review.
	Domains map[string]Action
	// Review are patterns. The client is asked about their hosts even if the hosts are allowed.
	Review []string

	// Ports are the only ports that may be reached. If it is empty, every port may be reached.
	Ports []uint16
}

// A Request is one attempt of a command to reach a host.
type Request struct {
	Protocol string
	Host     string // in the form that Host returns
	Port     uint16
	Method   string // HTTP method; CONNECT for tunnels; empty for SOCKS5
	Path     string // of an HTTP request, escaped and without the query; empty for tunnels and datagrams
	// Answered: the client has allowed the host of the tunnel that carries the request.
	Answered bool
}

// A Hosts judges requests. It is immutable and may be used concurrently.
type Hosts struct {
	limited, local      bool
	allow, deny, review set
	ports               []uint16
	requests            *requests // nil: there are no request rules
	ceiling             *Hosts
}

// Compile compiles rules. The texts of its errors are part of the protocol; the caller adds
// "invalid network proxy config: " before them (network.md 2.4).
func Compile(r Rules) (*Hosts, error) {
	p := &Hosts{limited: r.Limited, local: r.Local, ports: slices.Clone(r.Ports)}
	p.deny.wide, p.review.wide = true, true
	for _, text := range slices.Sorted(maps.Keys(r.Domains)) {
		if isRequestRule(text) {
			if err := p.addRequestRule(text, r.Domains[text]); err != nil {
				return nil, err
			}
			continue
		}
		pattern, err := parse(text)
		if err != nil {
			return nil, err
		}
		switch action := r.Domains[text]; action {
		case Allow:
			p.allow.add(pattern)
		case Ask:
			p.review.add(pattern)
		case Deny:
			if pattern.kind == everything {
				return nil, fmt.Errorf("invalid value for network.denied_domains: %s (allowed exact hosts or scoped wildcards like *.example.com or **.example.com)", text)
			}
			p.deny.add(pattern)
		default:
			return nil, fmt.Errorf("domain pattern %s: action %q is none of allow, deny, ask", text, action)
		}
	}
	for _, text := range r.Review {
		if isRequestRule(text) {
			if err := p.addRequestRule(text, Ask); err != nil {
				return nil, err
			}
			continue
		}
		pattern, err := parse(text)
		if err != nil {
			return nil, err
		}
		p.review.add(pattern)
	}
	return p, nil
}

func (p *Hosts) addRequestRule(text string, action Action) error {
	if p.requests == nil {
		p.requests = new(requests)
	}
	return p.requests.add(text, action)
}

// Under returns the policy under a ceiling: a request that either policy denies is denied, and a
// request that either asks about is asked about. A name that the ceiling does not list is denied,
// because an answer of the client cannot override the ceiling. A nil ceiling has no effect.
func (p *Hosts) Under(ceiling *Hosts) *Hosts {
	under := *p
	under.ceiling = ceiling
	return &under
}

// Judge returns the verdict before a name is resolved. The caller decides whether it can ask a
// client about the verdict Ask. If there is no client to ask, Ask means a denial with the same
// reason. A tunnel to a host that only request rules allow is allowed, but the caller has to judge each
// request inside.
func (p *Hosts) Judge(r Request) Verdict {
	v, by := p.judge(r)
	v = answered(r, v, by)
	for q := p.ceiling; q != nil; q = q.ceiling {
		above, by := q.judge(r)
		if above.Decision == Ask && by == unlisted {
			above.Decision = Deny
		}
		v = stricter(v, answered(r, above, by))
	}
	return v
}

// answered allows a request that the policy would ask about, if the client has allowed its host already. A
// request rule that asks is not answered by that.
func answered(r Request, v Verdict, by listed) Verdict {
	if r.Answered && v.Decision == Ask && by != byRequest {
		return Verdict{Allow, ScopeDomain, SourceBaseline, ReasonAllow}
	}
	return v
}

// judge returns the verdict of this policy without its ceiling. by is the kind of entry that makes the
// verdict Ask.
func (p *Hosts) judge(r Request) (v Verdict, by listed) {
	if host, err := Host(r.Host); err != nil || host != r.Host {
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowed}, unlisted // the host did not come from Host, so it is never looked up
	}
	if p.limited && (r.Protocol == SOCKS5UDP || r.Protocol == SOCKS5TCP && r.Port != portTLS) {
		return Verdict{Deny, ScopeNonDomain, SourceMode, ReasonMethodNotAllowed}, unlisted
	}
	addr, isLiteral := literal(r.Host)
	denied := p.deny.matches(r.Host, r.Port)
	for _, inner := range embedded(addr) {
		denied = denied || p.deny.matches(inner.String(), r.Port)
	}
	switch {
	case denied:
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonDenied}, unlisted
	case !isLiteral && EndsInNumber(r.Host):
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}, unlisted
	case (r.Host == localhost || isLiteral && special(addr)) && !p.local && !p.names(r.Host, r.Port):
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}, unlisted
	case len(p.ports) > 0 && !slices.Contains(p.ports, r.Port):
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowed}, unlisted
	}
	if p.requests != nil {
		if v, by, ok := p.requests.judge(r); ok {
			return v, by
		}
	}
	v = Verdict{Ask, ScopeDomain, SourceBaseline, ReasonNotAllowed}
	switch {
	case p.review.matches(r.Host, r.Port):
		by = byHost
	case p.allow.matches(r.Host, r.Port):
		return Verdict{Allow, ScopeDomain, SourceBaseline, ReasonAllow}, unlisted
	}
	if r.Path != "" && p.requests != nil && p.requests.hosts.matches(r.Host, r.Port) {
		v.Scope, v.Reason = ScopeNonDomain, ReasonRequestNotAllowed
	}
	return v, by
}

// names reports whether an entry without wildcards allows a host, or requests to it.
func (p *Hosts) names(host string, port uint16) bool {
	return p.allow.names(host, port) || p.requests != nil && p.requests.allowed.names(host, port)
}

const (
	localhost = "localhost"
	portTLS   = 443
)

// JudgeAddresses judges the addresses of a name. The request is refused if an address is local and
// not allowed, or if there is no address and local addresses are not allowed. JudgeAddresses is
// called even if the client has allowed the name.
func (p *Hosts) JudgeAddresses(r Request, addrs []netip.Addr) (v Verdict, refused bool) {
	for q := p; q != nil; q = q.ceiling {
		refused = refused || !q.local && len(addrs) == 0
		for _, addr := range addrs {
			refused = refused || !q.reaches(r, addr)
		}
	}
	return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}, refused
}

// Names reports whether an entry allows a host by its name or address, without wildcards, at any port.
func (p *Hosts) Names(host string) bool {
	_, ok := p.allow.exact[host]
	if !ok && p.requests != nil {
		_, ok = p.requests.allowed.exact[host]
	}
	return ok
}

// reaches reports whether a request that passed Judge may go to an address. An entry for localhost
// covers the loopback addresses, and an entry for an address covers that address.
func (p *Hosts) reaches(r Request, addr netip.Addr) bool {
	if p.local || !special(addr) {
		return true
	}
	if !p.names(r.Host, r.Port) {
		return false
	}
	addr = plain(addr)
	return r.Host == localhost && addr.IsLoopback() || r.Host == addr.String()
}

// JudgeMethod judges the method in limited mode, where plain requests may only read. In limited mode, and to
// a host that has request rules, a tunnel must be intercepted, so that its requests can be judged one by
// one.
func (p *Hosts) JudgeMethod(r Request, intercepted bool) (v Verdict, refused bool) {
	v = Verdict{Deny, ScopeNonDomain, SourceMode, ReasonMethodNotAllowed}
	switch {
	case !intercepted && r.Protocol != HTTP && p.HasRequestRulesFor(r.Host, r.Port):
		return Verdict{Deny, ScopeNonDomain, SourceBaseline, ReasonMITMRequired}, true
	case !p.Limited():
		return v, false
	case r.Protocol == HTTP:
		return v, !Reads(r.Method)
	}
	v.Reason = ReasonMITMRequired
	return v, !intercepted
}

// Limited reports whether the mode is limited.
func (p *Hosts) Limited() bool {
	return p.limited || p.ceiling != nil && p.ceiling.Limited()
}

// MayAllow reports whether a host is allowed at some port, without a question.
func (p *Hosts) MayAllow(host string) bool {
	const other = 1 // for every port that no entry names
	ports := []uint16{other}
	for q := p; q != nil; q = q.ceiling {
		ports = slices.Concat(ports, q.ports, q.allow.named)
		if q.requests != nil {
			ports = append(ports, q.requests.reachable.named...)
		}
	}
	return slices.ContainsFunc(ports, func(port uint16) bool {
		return p.Judge(Request{Protocol: Connect, Host: host, Port: port}).Decision == Allow
	})
}

// Local reports whether local and private addresses are treated like other addresses.
func (p *Hosts) Local() bool { return p.local && (p.ceiling == nil || p.ceiling.Local()) }

// Reads reports whether an HTTP method only reads, so that limited mode allows it.
func Reads(method string) bool {
	return method == "GET" || method == "HEAD" || method == "OPTIONS"
}

// JudgeDial judges the address that is dialled. It refuses a local address if local addresses are
// not allowed, and an address that an entry denies, whatever the name of the host.
func (p *Hosts) JudgeDial(r Request, addr netip.Addr) (v Verdict, refused bool) {
	addr = plain(addr)
	texts := []string{addr.String()}
	for _, inner := range embedded(addr) {
		texts = append(texts, inner.String())
	}
	for q := p; q != nil; q = q.ceiling {
		refused = refused || !q.reaches(r, addr)
		for _, text := range texts {
			refused = refused || q.deny.matches(text, r.Port)
		}
	}
	return Verdict{Deny, ScopeNonDomain, SourceBaseline, ReasonPolicyDenied}, refused
}
