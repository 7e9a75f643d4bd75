package netproxy

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A tunnel moves bytes between the command and a destination until both directions have ended.
// While nothing moves, it uses no memory but the stacks of its two goroutines.
type tunnel struct {
	here, there stream
	idle        time.Duration // after which it ends
	moves       atomic.Int64  // how often something has moved
}

// tunnel serves a tunnel to its end. What the command has sent already is in from.
func (p *Proxy) tunnel(q request, here stream, from *head.Reader, l *link) {
	t := &tunnel{here: here, there: l.raw.(stream), idle: p.times.tunnel} // a tunnel is never encrypted by us
	if p.intercepts(q) {
		p.look(q, t, from, l)
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

// serve moves bytes both ways. What the command has said first is passed on by begin.
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

// hear reads what the command says first in a tunnel, with all that from has. If that is the
// greeting of TLS with the name of another host, the verdict is reported.
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
		if host, err = rules.Host(name); host != q.Host {
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

// burst is how long a direction that moves keeps what it moves bytes with: two descriptors.
const burst = time.Second

// move moves one direction to its end, and passes the end on. An error ends both.
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
			break
		}
	}
	t.end()
}

// await waits until there is something to move. It returns false if the tunnel is idle for too
// long in both directions, or broken.
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
			return false
		}
	}
}

// end ends both directions. The connections are closed by who has them.
func (t *tunnel) end() {
	_ = t.here.Close()
	_ = t.there.Close()
}
