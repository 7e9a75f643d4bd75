package netproxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A tunnel moves bytes between the command and a destination until both directions have ended.
// While no bytes move, it uses no memory except the stacks of its two goroutines.
type tunnel struct {
	here, there stream
	idle        time.Duration // the tunnel ends after this time without a byte in either direction
	moves       atomic.Int64  // number of reads that moved bytes
	standing    *standing
	resets      bool        // a reset of one end becomes a reset of the other, and not an end
	reset       atomic.Bool // one end was reset
}

// tunnel serves a tunnel to its end. from has the bytes that the command has already sent.
func (p *Proxy) tunnel(q request, here stream, from *head.Reader, l *link) {
	p.serveTunnel(q, &tunnel{here: here, there: l.raw.(stream), idle: p.times.tunnel}, from, l) // a tunnel is never encrypted by us
}

func (p *Proxy) serveTunnel(q request, t *tunnel, from *head.Reader, l *link) {
	t.standing = &standing{q: q, addrs: l.addrs, answered: l.answered, end: t.end}
	begun := p.begins(t.standing)
	defer t.standing.over()
	if !begun {
		return
	}
	if p.intercepts(q) {
		p.look(q, t, from, l)
		return
	}
	if !p.becomesOpaque(t.standing) {
		return
	}
	t.serve(l, func() bool {
		g, ok := p.hear(q, t, from)
		if !ok {
			return false
		}
		defer g.release()
		t.moves.Add(1)
		_, err := t.there.Write(g.said)
		return err == nil
	})
}

// serve moves bytes in both directions. begin forwards the first bytes of the command, and reports
// whether the tunnel may go on.
func (t *tunnel) serve(l *link, begin func() bool) {
	down := make(chan struct{})
	go func() {
		defer close(down)
		if _, err := t.here.Write(l.in.Buffered()); err != nil {
			t.end()
			return
		}
		l.in.Release()
		t.move(t.here, t.there)
	}()
	if begin() {
		t.move(t.there, t.here)
	} else {
		t.end()
	}
	<-down
}

// hear reads the first bytes of the command in a tunnel, including all bytes that from has
// buffered. If they are a TLS greeting with the name of another host, hear reports a refusal and
// returns false.
func (p *Proxy) hear(q request, t *tunnel, from *head.Reader) (*greeter, bool) {
	if len(from.Buffered()) == 0 {
		from.Release()
		if !t.await(t.here) {
			return nil, false
		}
	}
	if t.here.SetReadDeadline(time.Now().Add(p.times.head)) != nil {
		return nil, false
	}
	g := newGreeter(from)
	name, err := g.name()
	if err == nil && name != "" {
		var host string
		// An address has no name of its own. Whoever allows the address allows all its names.
		// But a name that has request rules is not reached by its address, because the rules would not hold.
		if host, err = rules.Host(name); host != q.Host && (!isAddress(q.Host) || p.policy().HasRequestRulesFor(host, q.Port)) {
			err = errOtherName
		}
	}
	if err == nil {
		g.said = append(g.said, from.Buffered()...)
		from.Release()
		return g, true
	}
	if g.lost == nil {
		p.report(q, rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceBaseline, Reason: rules.ReasonPolicyDenied}, false)
	}
	g.release()
	return nil, false
}

// isAddress reports whether a host is an address.
func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// burst is the longest time that one io.Copy runs. io.Copy holds a pipe (two descriptors), which is
// given back before move waits for the socket again.
const burst = time.Second

// move moves the bytes of one direction until the stream ends, and then closes the other side for
// writing. An error ends both directions.
func (t *tunnel) move(to, from stream) {
	for t.await(from) && from.SetReadDeadline(time.Now().Add(burst)) == nil {
		n, err := io.Copy(to, from)
		if n > 0 {
			t.moves.Add(1)
		}
		if err == nil {
			if to.CloseWrite() != nil {
				break
			}
			return
		}
		if !isTimeout(err) {
			t.note(err)
			break
		}
	}
	t.end()
}

// note notes that an end was reset.
func (t *tunnel) note(err error) {
	if errors.Is(err, syscall.ECONNRESET) {
		t.reset.Store(true)
	}
}

// await waits until there is something to read. It returns false if the tunnel has been idle in
// both directions for too long, or if the connection is broken.
func (t *tunnel) await(from stream) bool {
	for {
		before := t.moves.Load()
		if from.SetReadDeadline(time.Now().Add(t.idle)) != nil {
			return false
		}
		err := await(from)
		if err == nil {
			return true
		}
		if !isTimeout(err) || t.moves.Load() == before {
			t.note(err)
			return false
		}
	}
}

// end ends both directions. The owners of the connections also close them.
func (t *tunnel) end() {
	if t.resets && t.reset.Load() {
		for _, s := range []stream{t.here, t.there} {
			if tcp, ok := s.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // the close below then resets
			}
		}
	}
	_ = t.here.Close()
	_ = t.there.Close()
}
