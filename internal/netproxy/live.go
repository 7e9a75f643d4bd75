package netproxy

import (
	"net/netip"
	"sync"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A standing is a request that was allowed and is not over: a tunnel, a request under way, or a
// destination of datagrams. When the policy changes, each standing is judged again.
type standing struct {
	q        request
	addrs    []netip.Addr
	answered bool   // the Decider has allowed the request; its answer holds unless the new policy denies the request
	end      func() // ends the request

	opaque bool // a tunnel into which the proxy does not look; guarded by Proxy.mu
	ending sync.Once
	over   func() // ends what Proxy.begins began
}

// policy returns the current policy.
func (p *Proxy) policy() *rules.Hosts { return p.current.Load() }

// SetPolicy replaces the policy. Each standing that the new policy does not allow ends, and is reported. A
// request that the Decider has allowed goes on, if the new policy leaves the request to the Decider.
func (p *Proxy) SetPolicy(policy *rules.Hosts) {
	p.current.Store(policy)
	p.changed.Store(true)
	p.mu.Lock()
	all := make([]*standing, 0, len(p.standings))
	for s := range p.standings {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		p.judgeAgain(s)
	}
}

// begins notes a standing until s.over is called. If the policy has changed since the request was judged, the
// request is judged once more. If that ends it, begins returns false, and nothing more may be sent for it.
func (p *Proxy) begins(s *standing) bool {
	s.over = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.standings, s)
	}
	p.mu.Lock()
	if p.standings == nil {
		p.standings = map[*standing]struct{}{}
	}
	p.standings[s] = struct{}{}
	p.mu.Unlock()
	return !p.changed.Load() || p.judgeAgain(s)
}

// becomesOpaque notes that the proxy does not look into a tunnel. Its result is that of begins.
func (p *Proxy) becomesOpaque(s *standing) bool {
	p.mu.Lock()
	s.opaque = true
	p.mu.Unlock()
	return !p.changed.Load() || p.judgeAgain(s)
}

// judgeAgain ends a standing that the current policy does not allow, and then returns false.
func (p *Proxy) judgeAgain(s *standing) bool {
	v, refused := p.refuses(s)
	if refused {
		s.ending.Do(func() {
			p.report(s.q, v, false)
			s.end()
		})
	}
	return !refused
}

// refuses reports whether the current policy refuses a standing. v is the verdict.
func (p *Proxy) refuses(s *standing) (v rules.Verdict, refused bool) {
	policy, r := p.policy(), s.q.Request
	r.Answered = r.Answered || s.answered
	v = policy.Judge(r)
	if v.Decision == rules.Deny || v.Decision == rules.Ask && !s.answered {
		v.Decision = rules.Deny
		return v, true
	}
	if v, refused = policy.JudgeAddresses(r, s.addrs); refused {
		return v, true
	}
	p.mu.Lock()
	opaque := s.opaque
	p.mu.Unlock()
	if opaque && policy.HasRequestRulesFor(r.Host, r.Port) {
		return unseen, true
	}
	if v, refused = policy.JudgeMethod(r, p.intercepts(s.q)); refused {
		return v, true
	}
	for _, addr := range s.addrs {
		if v, refused = policy.JudgeDial(r, addr); refused {
			return v, true
		}
	}
	return v, false
}
