package netproxy

import (
	"net/netip"
	"sync"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A standing is a request that was allowed and is not over: a tunnel, a request under way, or a
// destination of datagrams. When the policy changes, it is judged again.
type standing struct {
	q        request
	addrs    []netip.Addr
	answered bool   // the Decider has allowed it; that stays, unless the new policy denies it
	end      func() // ends it

	opaque bool // a tunnel into which the proxy does not look; guarded by Proxy.mu
	ending sync.Once
	over   func() // ends the watch of Proxy.stands
}

// policy returns the current policy.
func (p *Proxy) policy() *rules.Hosts { return p.current.Load() }

// SetPolicy replaces the policy. What it does not allow any more ends, and is reported. A request that
// the Decider has allowed goes on, if the new policy leaves it to the Decider.
func (p *Proxy) SetPolicy(policy *rules.Hosts) {
	p.current.Store(policy)
	p.changed.Store(true)
	p.mu.Lock()
	standing := make([]*standing, 0, len(p.stand))
	for s := range p.stand {
		standing = append(standing, s)
	}
	p.mu.Unlock()
	for _, s := range standing {
		p.judgeAgain(s)
	}
}

// stands notes a request that was allowed, until s.over is called. The policy may have changed since the
// request was judged; then it is judged once more. If it has ended then, stands returns false, and nothing
// more may be sent for it.
func (p *Proxy) stands(s *standing) bool {
	s.over = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.stand, s)
	}
	p.mu.Lock()
	if p.stand == nil {
		p.stand = map[*standing]struct{}{}
	}
	p.stand[s] = struct{}{}
	p.mu.Unlock()
	return !p.changed.Load() || p.judgeAgain(s)
}

// becomesOpaque notes that the proxy does not look into a tunnel. Its result is that of stands.
func (p *Proxy) becomesOpaque(s *standing) bool {
	p.mu.Lock()
	s.opaque = true
	p.mu.Unlock()
	return !p.changed.Load() || p.judgeAgain(s)
}

// judgeAgain ends what the current policy does not allow. It returns false if it does not allow s.
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

// refuses reports whether the current policy refuses what stands, with its verdict.
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
	if opaque && policy.Sees(r.Host, r.Port) {
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
