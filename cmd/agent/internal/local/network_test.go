package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

func TestParse(t *testing.T) {
	t.Parallel()
	values := func(cell string) []string {
		return slices.DeleteFunc(strings.Split(cell, " | "), func(value string) bool { return value == "" })
	}
	for _, row := range rig.Rows(t, "testdata/network.txt", "right", 2) {
		w, err := ParseNetwork(values(row[0]))
		rig.Must(t, err)
		rig.Is(t, fmt.Sprint(w.On, w.Managed, w.local, w.domains, w.review), row[1], "%s", row[0])
	}
	for _, row := range rig.Rows(t, "testdata/network.txt", "with a profile", 2) {
		w := rig.Value(ParseNetwork(values(row[0])))
		rig.Must(t, w.AllowToo([]string{"a.org", "b.org:8443"}))
		rig.Is(t, fmt.Sprint(w.domains), row[1], "%s", row[0])
	}
	for _, row := range rig.Rows(t, "testdata/network.txt", "wrong", 2) {
		rig.Says(t, rig.Err(ParseNetwork(values(row[0]))), row[1], "%s", row[0])
	}
}

// TestAsker: what the user says holds once or for the run, whatever the protocol; a word that is
// none is asked again.
func TestAsker(t *testing.T) {
	t.Parallel()
	types := make(chan string, 2)
	asked := 0
	a := newAsker(func(ctx context.Context, _ []string, take func(string) bool) error {
		asked++
		for {
			select {
			case line := <-types:
				if take(line) {
					return nil
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	for i, tt := range []struct {
		host, protocol string
		types          []string
		want           string
	}{
		{"a.org", "http", []string{"once"}, "allow"},
		{"a.org", "https_connect", []string{"a"}, "allow"},
		{"a.org", "socks5_tcp", nil, "allow"},
		{"b.org", "http", []string{"what?", "n"}, "deny"},
		{"b.org", "https_connect", nil, "deny"},
		{"c.org", "http", []string{"y"}, "allow"},
	} {
		var answer protocol.PolicyAnswer
		params := &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Protocol: tt.protocol, Host: tt.host, Port: 1}}
		for _, text := range tt.types {
			types <- text
		}
		rig.Check(t, a.answer(t.Context(), "", params, &answer))
		rig.Is(t, answer.Decision.Type, tt.want, "%d", i)
	}
	rig.Is(t, asked, 4, "times asked")
	// Nobody answers: the end of the network does.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var answer protocol.PolicyAnswer
	nobody := &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Host: "d.org"}}
	rig.Is(t, a.answer(ctx, "", nobody, &answer) != nil, true, "nobody answers")
}

func TestTally(t *testing.T) {
	t.Parallel()
	words := rig.Value(ParseNetwork([]string{"allow=127.0.0.1:80 local"}))
	n := tally{plan: rig.Value(words.plan(false))}
	add := func(host string, r netproxy.Report, times int) {
		r.Host, r.Port = host, 443
		for range times {
			n.add(r)
		}
	}
	refused := func(reason string, addrs ...string) netproxy.Report {
		r := netproxy.Report{Decision: rules.Deny, Reason: reason}
		for _, a := range addrs {
			r.Addrs = append(r.Addrs, netip.MustParseAddr(a))
		}
		return r
	}
	allowed := netproxy.Report{Decision: rules.Allow, Reason: rules.ReasonAllow}
	rig.Is(t, len(n.lines()), 0, "lines of nothing")
	add("b.org", allowed, 1)
	add("a.org", allowed, 3)
	add("2001:4860::1", refused(rules.ReasonNotAllowed), 2)
	add("127.0.0.1", refused(rules.ReasonNotAllowed), 1)
	n.unreached(netproxy.Question{Host: "127.0.0.1", Port: 443}, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
	local := netproxy.Report{Decision: rules.Deny, Reason: rules.ReasonNotAllowedLocal}
	add("10.0.0.5", local, 1)
	add("127.1", local, 1)
	add("in.example", refused(rules.ReasonNotAllowedLocal, "192.88.99.77", "10.9.8.7"), 1)
	local.Addrs = []netip.Addr{}
	add("no.example", local, 1)
	const own = "; --network allow=127.0.0.1 makes 127.0.0.1 this host: leave it out to reach servers of the command itself"
	want := []string{
		"network: reached a.org:443 (3 times)", "network: reached b.org:443",
		"network: refused 10.0.0.5:443: not allowed local: a local or private address; add --network allow=10.0.0.5",
		"network: refused 127.0.0.1:443: not allowed" + own,
		"network: refused 127.1:443: not allowed local",
		"network: refused [2001:4860::1]:443 (2 times): not allowed; add --network 'allow=[2001:4860::1]:443'",
		"network: refused in.example:443: not allowed local: the name leads to 192.88.99.77, a local or private address; add --network local",
		"network: refused no.example:443: not allowed local: the name has no address here",
		"network: no connection to 127.0.0.1:443: connection refused" + own,
	}
	rig.Same(t, "lines", want, n.lines())
	for i := range maxTally {
		add(fmt.Sprint("h", i), refused(rules.ReasonDenied), 1)
	}
	if got := n.lines(); len(got) != maxTally+1 || got[maxTally] != "network: 9 more attempts to reach other hosts" {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
}

// TestNotTransparent: on a host whose filters can have no listener, programs get a proxy, and are told.
func TestNotTransparent(t *testing.T) {
	t.Parallel()
	layers := sandbox.LayersOf(append(sandbox.Namespaces(), sandbox.Procfs, sandbox.Seccomp)...)
	why := map[sandbox.Layer]sandbox.Reason{sandbox.UserNotify: {Error: "too old", Remedy: "run a later kernel"}}
	for _, tt := range []struct {
		layers sandbox.Layers
		plain  bool
		want   string // that is said
		lacks  bool
	}{
		{layers, false, "agent: programs have to use the proxy that their variables name, because connections cannot be transparent: " +
			"this host cannot enforce the sandbox: seccomp is missing: too old; run a later kernel\n", false},
		{layers, true, "", false},
		{layers.With(sandbox.UserNotify, sandbox.Pidfd), false, "", false},
		{layers.Without(sandbox.NetNS), false, "", true},
	} {
		stderr := rig.Value(os.Create(t.TempDir() + "/stderr"))
		defer stderr.Close()
		c := &Command{Sys: program.System{Stderr: stderr}, Network: NetworkWords{Managed: true, Plain: tt.plain}}
		c.Profile.Entries = []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}
		host := sandbox.Host{Layers: tt.layers, Landlock: 7, Reasons: why}
		door := &confine.Door{Host: func() (sandbox.Host, error) { return host, nil }, Served: new(resolve.Served)}
		held, err := c.enterManaged(door)
		_, lacks := errors.AsType[*sandbox.UnenforceableError](err)
		rig.Is(t, lacks, tt.lacks, "%v: %v", tt, err)
		rig.Is(t, string(rig.Value(os.ReadFile(stderr.Name()))), tt.want, "%v: what is said", tt)
		rig.Is(t, c.Network.Plain, tt.plain || tt.want != "", "%v: plain", tt)
		held.Release()
	}
}

// TestReached: the hosts that a command has reached, as a profile names them, without those that the words allow.
func TestReached(t *testing.T) {
	t.Parallel()
	words := rig.Value(ParseNetwork([]string{"allow=**.known.test,other.test:22 deny=closed.test ask=asked.test"}))
	wide := rig.Value(words.Everywhere())
	plan, everywhere := rig.Value(words.plan(false)), rig.Value(wide.plan(false))
	rig.Is(t, everywhere.Allows("any.test", 99), true, "a host that no word is about")
	rig.Is(t, everywhere.Allows("closed.test", 443) || everywhere.Allows("asked.test", 443), false, "a host that is denied, or asked about")
	rig.Is(t, everywhere.Allows("127.0.0.1", 443), false, "a local address")
	rig.Is(t, plan.Allows("any.test", 99), false, "a host that no word is about, before")
	var y tally
	for _, r := range []netproxy.Report{
		{Decision: rules.Allow, Host: "b.test", Port: 443}, {Decision: rules.Allow, Host: "b.test", Port: 80}, {Decision: rules.Allow, Host: "a.test", Port: 22},
		{Decision: rules.Allow, Host: "x.known.test", Port: 443}, {Decision: rules.Allow, Host: "other.test", Port: 22}, {Decision: rules.Allow, Host: "other.test", Port: 443},
		{Decision: rules.Deny, Host: "closed.test", Port: 443},
	} {
		y.add(r)
	}
	rig.Same(t, "hosts", []string{"a.test:22", "b.test", "other.test"}, y.reached(plan))
}
