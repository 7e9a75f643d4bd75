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

// begins notes a standing until over is called. If the policy has changed since the request was judged, the
// request is judged once more.
func (p *Proxy) begins(s *standing) (over func()) {
	p.mu.Lock()
	if p.standings == nil {
		p.standings = map[*standing]struct{}{}
	}
	p.standings[s] = struct{}{}
	p.mu.Unlock()
	if p.changed.Load() {
		p.judgeAgain(s)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.standings, s)
	}
}

// becomesOpaque notes that the proxy does not look into a tunnel.
func (p *Proxy) becomesOpaque(s *standing) {
	p.mu.Lock()
	s.opaque = true
	p.mu.Unlock()
	if p.changed.Load() {
		p.judgeAgain(s)
	}
}

// judgeAgain ends a standing that the current policy does not allow.
func (p *Proxy) judgeAgain(s *standing) {
	v, refused := p.refuses(s)
	if !refused {
		return
	}
	s.ending.Do(func() {
		p.report(s.q, v, false)
		s.end()
	})
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
	if r.Path == "" {
		p.mu.Lock()
		opaque := s.opaque
		p.mu.Unlock()
		if opaque && policy.HasRequestRulesFor(r.Host, r.Port) {
			return unseen, true
		}
		if v, refused = policy.JudgeMethod(r, p.intercepts(s.q)); refused {
			return v, true
		}
	}
	for _, addr := range s.addrs {
		if v, refused = policy.JudgeDial(r, addr); refused {
			return v, true
		}
	}
	return v, false
}
