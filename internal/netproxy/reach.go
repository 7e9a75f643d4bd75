package netproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A request is an attempt of the command to reach a host, over any protocol.
type request struct {
	rules.Request
	client  string // address of the command's end of the connection
	encrypt bool   // the proxy itself speaks TLS with the destination
	// within is the longest time for making the connection; 0: dialTime.
	within time.Duration
}

// A refusal says why a request was not forwarded.
type refusal struct {
	rules.Verdict      // valid if failed is false
	failed        bool // the request was allowed, but the destination could not be reached
	// err says why the destination could not be reached. It is errNoAddress if the request was
	// refused because the name has no address.
	err error
}

// reach is the only way for a new request to get a TCP connection: it admits the request, and
// connects to one of the judged addresses. If have is a live link to the same place from an earlier
// request, its addresses are judged in the same way, and reach returns have. Otherwise reach does
// not touch have.
func (p *Proxy) reach(ctx context.Context, q request, have *link) (*link, *refusal) {
	place := net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	var known []netip.Addr
	if have != nil && have.place == place && have.alive() {
		known = have.addrs
	}
	addrs, answered, refused := p.admit(ctx, q, known)
	if refused != nil {
		return nil, refused
	}
	if known != nil {
		have.answered = answered
		return have, nil
	}
	l, err := p.connect(ctx, q, place, addrs)
	if err != nil {
		if p.cfg.Unreached != nil {
			p.cfg.Unreached(Question{Protocol: q.Protocol, Host: q.Host, Port: q.Port}, err)
		}
		return nil, &refusal{failed: true, err: err}
	}
	l.answered = answered
	return l, nil
}

// admit judges a request, asks the Decider if the policy says so, and resolves the name once unless
// known has its addresses. It judges all addresses and returns them. The request may go only to the
// returned addresses. Each verdict is reported. answered is true if the Decider has allowed the request.
func (p *Proxy) admit(ctx context.Context, q request, known []netip.Addr) (addrs []netip.Addr, answered bool, _ *refusal) {
	v, answered := p.judge(ctx, q)
	if v.Decision != rules.Allow {
		return nil, false, p.refuse(q, v)
	}
	addrs = known
	if addrs == nil {
		addrs = p.resolve(ctx, q.Host)
	}
	if v, refused := p.policy().JudgeAddresses(q.Request, addrs); refused {
		p.reportAbout(q, v, false, slices.Concat([]netip.Addr{}, addrs))
		refused := &refusal{Verdict: v}
		if len(addrs) == 0 {
			refused.err = errNoAddress
		}
		return nil, false, refused
	}
	p.report(q, v, answered)
	if v, refused := p.policy().JudgeMethod(q.Request, p.intercepts(q)); refused {
		return nil, false, p.refuse(q, v)
	}
	for _, addr := range addrs {
		v, refused := p.policy().JudgeDial(q.Request, addr)
		if refused || p.cfg.Own(netip.AddrPortFrom(addr, q.Port)) {
			return nil, false, p.refuse(q, v)
		}
	}
	return addrs, answered, nil
}

// Admit judges a request of this program itself as the proxy would judge a command's. It returns the
// addresses that the request may go to, for [Dial]. path is escaped and has no query. An empty path stands
// for a connection, whose bytes nobody judges. The error is the reason of a refusal, in words.
func (p *Proxy) Admit(ctx context.Context, host string, port uint16, method, path string) ([]netip.AddrPort, error) {
	host, err := rules.Host(host)
	if err != nil {
		return nil, err
	}
	r := rules.Request{Protocol: rules.Connect, Host: host, Port: port, Method: "CONNECT"}
	if path != "" {
		r.Protocol, r.Method, r.Path = rules.HTTP, method, path
	}
	addrs, _, refused := p.admit(ctx, request{Request: r}, nil)
	if refused != nil {
		return nil, errors.New(strings.ReplaceAll(refused.Reason, "_", " "))
	}
	return placesOf(addrs, port), nil
}

func placesOf(addrs []netip.Addr, port uint16) []netip.AddrPort {
	places := make([]netip.AddrPort, len(addrs))
	for i, addr := range addrs {
		places[i] = netip.AddrPortFrom(addr, port)
	}
	return places
}

// judge returns the verdict on a name, from the policy or from the Decider. It also reports whether
// the Decider has allowed a request that the policy does not allow.
func (p *Proxy) judge(ctx context.Context, q request) (v rules.Verdict, override bool) {
	v = p.policy().Judge(q.Request)
	if v.Decision != rules.Ask {
		return v, false
	}
	v.Decision = rules.Deny
	if p.cfg.Decide == nil {
		return v, false
	}
	v.Source = rules.SourceDecider
	question := Question{Protocol: q.Protocol, Host: q.Host, Port: q.Port}
	if path := p.pathOf(q); path != "" {
		question.Method, question.Path = shown(q.Method, maxMethod), path
	}
	answer, err := p.cfg.Decide(ctx, question)
	switch {
	case err != nil || ctx.Err() != nil:
	case answer.Decision == rules.Allow:
		v.Decision = rules.Allow
		return v, true
	case answer.Decision == rules.Deny || answer.Decision == rules.Ask:
		v.Decision, v.Reason = answer.Decision, answer.Reason
		v.Reason = cmp.Or(v.Reason, rules.ReasonPolicyDenied)
	}
	return v, false
}

// refuse reports a verdict that refuses a request.
func (p *Proxy) refuse(q request, v rules.Verdict) *refusal {
	p.report(q, v, false)
	return &refusal{Verdict: v}
}

func (p *Proxy) report(q request, v rules.Verdict, override bool) { p.reportAbout(q, v, override, nil) }

func (p *Proxy) reportAbout(q request, v rules.Verdict, override bool, addrs []netip.Addr) {
	if len(q.Method) > maxMethod {
		q.Method = strings.Clone(q.Method[:maxMethod]) // a copy, so that the report does not keep the rest in memory
	}
	p.cfg.Report(Report{
		Time: time.Now(), Scope: v.Scope, Decision: v.Decision, Source: v.Source, Reason: v.Reason,
		Protocol: q.Protocol, Host: q.Host, Port: q.Port, Method: q.Method, Path: p.pathOf(q), Client: q.client, Override: override, Addrs: addrs,
	})
}

// pathOf returns the path of a request in a form that can be shown; "" if its host has no request rules.
func (p *Proxy) pathOf(q request) string {
	if q.Path == "" || !p.policy().HasRequestRulesFor(q.Host, q.Port) {
		return ""
	}
	return shown(q.Path, maxPath)
}

// shown returns the beginning of a text from a request. Bytes that are no visible ASCII are escaped.
func shown(text string, most int) string {
	var b strings.Builder
	for i := range len(text) {
		if b.Len() >= most {
			b.WriteString("...")
			break
		}
		if c := text[i]; c <= ' ' || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// resolve returns the addresses of a host. If the host is an address, the result is this address.
// If the host cannot be resolved, the result is empty.
func (p *Proxy) resolve(ctx context.Context, host string) []netip.Addr {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{reached(addr)}
	}
	if addrs := conns.Loopback(host); addrs != nil {
		return addrs
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return nil
	}
	addrs, err := p.cfg.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	for i, addr := range addrs {
		addrs[i] = reached(addr)
	}
	return addrs
}

// Exists reports whether a name is allowed at some port and has an address. Only for an allowed name
// the resolver is asked.
func (p *Proxy) Exists(ctx context.Context, name string) bool {
	return p.policy().MayAllow(name) && len(p.resolve(ctx, name+".")) > 0
}

// reached returns the address that a connection to addr arrives at, because this address has to be
// judged. For an unspecified address (0.0.0.0, ::) it is the loopback address.
func reached(addr netip.Addr) netip.Addr {
	switch addr = addr.Unmap(); addr {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return addr
}

// connect makes the connection for a request that was allowed.
func (p *Proxy) connect(ctx context.Context, q request, place string, addrs []netip.Addr) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(q.within, dialTime))
	defer cancel()
	if p.cfg.TCP != nil && q.Protocol == rules.SOCKS5TCP {
		return p.connectTCP(ctx, q, place, addrs)
	}
	hop := p.cfg.Upstream.hop(q)
	var conn net.Conn
	var err error
	if hop != nil {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", hop.address)
	} else {
		conn, err = Dial(ctx, placesOf(addrs, q.Port))
	}
	if err != nil {
		return nil, err
	}
	if !p.hold(conn) {
		return nil, net.ErrClosed
	}
	l := &link{raw: conn, conn: conn, in: head.NewReader(conn).Within(p.heads), place: place, addrs: addrs, hop: hop}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // it fails only if conn is closed, and then the calls below fail too
	if hop != nil && (q.encrypt || q.Protocol == rules.Connect) {
		err = l.open(place)
		l.hop = nil // after open, the other end of the link is the destination
	}
	if err == nil && q.encrypt {
		err = l.encrypt(ctx, q.Host, p.cfg.Roots())
	}
	if err != nil {
		p.cut(l)
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return l, nil
}

// Dial connects to the first of these places that accepts. If none accepts, it returns the error of
// the first.
func Dial(ctx context.Context, places []netip.AddrPort) (net.Conn, error) {
	var dialer net.Dialer
	first := errNoAddress
	for i, place := range places[:min(len(places), maxTries)] {
		try, done := ctx, context.CancelFunc(func() {})
		if i < len(places)-1 {
			try, done = context.WithTimeout(ctx, tryTime)
		}
		// DialTCP is not used, because it binds a local port first. Local ports are few, and all
		// destinations would share them.
		conn, err := dialer.DialContext(try, "tcp", place.String())
		done()
		if err == nil {
			return conn, nil
		}
		if i == 0 {
			first = err
		}
	}
	return nil, first
}

var errNoAddress = errors.New("connecting: the name has no address")
