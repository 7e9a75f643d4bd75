package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Rules is what a client or an operator says of the network.
type Rules struct {
	Limited bool // only reading, and nothing that cannot be looked into (mode "limited")
	Local   bool // local and private addresses are like any others (allowLocalBinding)

	// Domains has what patterns say: Allow, Deny, or Ask, which is as if it stood in Review.
	Domains map[string]Action
	// Review are the patterns whose hosts the client is asked about although they are allowed.
	Review []string

	// Ports are the only ports that may be reached. None: every port.
	Ports []uint16
}

// A Request is what a command wants to reach.
type Request struct {
	Protocol string
	Host     string // as Host returns it
	Port     uint16
	Method   string // of HTTP; CONNECT for tunnels; empty for SOCKS5
}

// A Hosts judges requests. It does not change, and may be used by many at once.
type Hosts struct {
	limited, local      bool
	allow, deny, review set
	ports               []uint16
	ceiling             *Hosts
}

// Compile returns the policy of some rules. Its errors are the texts of the contract, without
// "invalid network proxy config: " before them (network.md 2.4).
func Compile(r Rules) (*Hosts, error) {
	p := &Hosts{limited: r.Limited, local: r.Local, ports: slices.Clone(r.Ports)}
	p.deny.wide, p.review.wide = true, true
	for _, text := range slices.Sorted(maps.Keys(r.Domains)) {
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
		pattern, err := parse(text)
		if err != nil {
			return nil, err
		}
		p.review.add(pattern)
	}
	return p, nil
}

// Under returns the policy under a ceiling: what either denies is denied, and what either
// asks about is asked. A name that the ceiling does not list is denied, since an answer of the
// client cannot lift it. A nil ceiling is none.
func (p *Hosts) Under(ceiling *Hosts) *Hosts {
	under := *p
	under.ceiling = ceiling
	return &under
}

// Judge gives the verdict before a name is resolved. Whether a verdict to Ask is put to a
// client is the caller's to know: where there is none, it is a denial for the same reason.
func (p *Hosts) Judge(r Request) Verdict {
	v := p.judge(r)
	if p.ceiling == nil {
		return v
	}
	above := p.ceiling.Judge(r)
	if above.Decision == Ask && !p.ceiling.review.matches(r.Host, r.Port) {
		above.Decision = Deny
	}
	return stricter(v, above)
}

func (p *Hosts) judge(r Request) Verdict {
	if host, err := Host(r.Host); err != nil || host != r.Host {
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowed} // not from Host: never looked up
	}
	if p.limited && (r.Protocol == SOCKS5UDP || r.Protocol == SOCKS5TCP && r.Port != portTLS) {
		return Verdict{Deny, ScopeNonDomain, SourceMode, ReasonMethodNotAllowed}
	}
	addr, isLiteral := literal(r.Host)
	denied := p.deny.matches(r.Host, r.Port)
	for _, inner := range embedded(addr) {
		denied = denied || p.deny.matches(inner.String(), r.Port)
	}
	switch {
	case denied:
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonDenied}
	case !isLiteral && endsInNumber(r.Host):
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}
	case (r.Host == localhost || isLiteral && special(addr)) && !p.local && !p.allow.names(r.Host, r.Port):
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}
	case len(p.ports) > 0 && !slices.Contains(p.ports, r.Port):
		return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowed}
	case p.allow.matches(r.Host, r.Port) && !p.review.matches(r.Host, r.Port):
		return Verdict{Allow, ScopeDomain, SourceBaseline, ReasonAllow}
	default:
		return Verdict{Ask, ScopeDomain, SourceBaseline, ReasonNotAllowed}
	}
}

const (
	localhost = "localhost"
	portTLS   = 443
)

// JudgeAddresses judges where a name leads: refused, if any of its addresses is local and
// that is not allowed, or if it has none. It is asked also after the client has allowed the
// name.
func (p *Hosts) JudgeAddresses(r Request, addrs []netip.Addr) (v Verdict, refused bool) {
	for q := p; q != nil; q = q.ceiling {
		refused = refused || !q.local && len(addrs) == 0
		for _, addr := range addrs {
			refused = refused || !q.reaches(r, addr)
		}
	}
	return Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}, refused
}

// reaches reports whether a request that passed Judge may go to an address. An entry
// for localhost is also one for the loopback addresses, and one for an address for it.
func (p *Hosts) reaches(r Request, addr netip.Addr) bool {
	if p.local || !special(addr) {
		return true
	}
	if !p.allow.names(r.Host, r.Port) {
		return false
	}
	addr = plain(addr)
	return r.Host == localhost && addr.IsLoopback() || r.Host == addr.String()
}

// JudgeMethod judges what is done, in limited mode: plain requests only read, and a tunnel
// has to be intercepted, so that its requests can be judged in their turn.
func (p *Hosts) JudgeMethod(r Request, intercepted bool) (v Verdict, refused bool) {
	v = Verdict{Deny, ScopeNonDomain, SourceMode, ReasonMethodNotAllowed}
	switch {
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

// Reads reports whether a method of HTTP changes nothing, so that limited mode lets it pass.
func Reads(method string) bool {
	return method == "GET" || method == "HEAD" || method == "OPTIONS"
}

// JudgeDial judges the address that is dialled: a local one where these are not allowed, or
// one that an entry denies, whatever the name.
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
