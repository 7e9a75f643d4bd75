package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func compile(t *testing.T, r Rules) *Hosts {
	t.Helper()
	p, err := Compile(r)
	rig.Must(t, err)
	return p
}

// TestCompileErrors has the texts of network.md 2.4.
func TestCompileErrors(t *testing.T) {
	t.Parallel()
	const (
		empty    = "domain pattern is empty"
		denyAll  = " (allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"
		brackets = "brackets are only supported for IPv6 literals or [*]: "
	)
	for _, test := range []struct {
		pattern string
		action  Action
		want    string
	}{
		{"*", Deny, "invalid value for network.denied_domains: *" + denyAll},
		{"**.*", Deny, "invalid value for network.denied_domains: **.*" + denyAll},
		{"[*]", Deny, "invalid value for network.denied_domains: [*]" + denyAll},
		{"*:443", Deny, "invalid value for network.denied_domains: *:443" + denyAll},
		{"", Allow, empty},
		{"  ", Allow, empty},
		{".", Allow, empty},
		{"*.", Allow, empty},
		{"**.", Allow, empty},
		{"**", Allow, "unsupported repeated wildcard: **"},
		{"a.**.b", Allow, "unsupported repeated wildcard: a.**.b"},
		{"***.b", Deny, "unsupported repeated wildcard: ***.b"},
		{"[", Allow, brackets + "["},
		{"[a]", Allow, brackets + "[a]"},
		{"[127.0.0.1]", Allow, brackets + "[127.0.0.1]"},
		{"a{b", Allow, "unsupported domain pattern syntax: a{b"},
		{"http://a", Allow, "unsupported domain pattern syntax: http://a"},
		{"10.0.0.0/8", Deny, "unsupported domain pattern syntax: 10.0.0.0/8"},
		{"user@a", Allow, "unsupported domain pattern syntax: user@a"},
		{"a..b", Allow, "unsupported domain pattern syntax: a..b"},
		{"a:", Allow, "unsupported domain pattern syntax: a:"},
		{"a:0", Allow, "unsupported domain pattern syntax: a:0"},
		{"a:65536", Allow, "unsupported domain pattern syntax: a:65536"},
		{"a:+1", Allow, "unsupported domain pattern syntax: a:+1"},
		{"[::1]x", Allow, "unsupported domain pattern syntax: [::1]x"},
		{"fe80::1%eth0", Allow, "unsupported domain pattern syntax: fe80::1%eth0"},
		{"bü*.example", Allow, "unsupported domain pattern syntax: bü*.example"},
		{"a", "none", `domain pattern a: action "none" is none of allow, deny, ask`},
	} {
		_, err := Compile(Rules{Domains: map[string]Action{test.pattern: test.action}})
		rig.Is(t, fmt.Sprint(err), test.want, "%q %s", test.pattern, test.action)
		if test.action == Allow {
			rig.Is(t, fmt.Sprint(rig.Err(Compile(Rules{Review: []string{test.pattern}}))), test.want, "%q in review", test.pattern)
		}
	}
}

// TestPatterns has the table of network.md 3.2, and the ports of leak L10.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pattern, allowed, other string }{
		{"d.test", "d.test", "x.d.test d.tes xd.test d.test.x"},
		{" D.Test. ", "d.test", "x.d.test"},
		{"*.d.test", "a.d.test a.b.d.test", "d.test xd.test d.test.a"},
		{"**.d.test", "d.test a.d.test a.b.d.test", "xd.test test"},
		{"*", "d.test a.b.c 8.8.8.8 2606:4700::1", ""},
		{"**.*", "d.test a.b.c 8.8.8.8", ""},
		{"[*]", "d.test", ""},
		{"reg*.d.test", "reg1.d.test reg.d.test reg-eu-1.d.test", "x.reg1.d.test re.d.test reg1.d.tes reg1.x.d.test"},
		{"reg?.d.test", "reg1.d.test regx.d.test", "reg.d.test reg12.d.test"},
		{"*.reg?.test", "a.reg1.test a.b.reg2.test", "reg1.test a.reg.test"},
		{"**.reg?.test", "reg1.test a.reg1.test a.b.reg2.test", "reg.test xreg12.test"},
		{"a?b.test", "axb.test", "a.b.test"},
		{"*a*b*.test", "ab.test xaxbx.test", "ba.test a.b.test"},
		{"8.8.8.8", "8.8.8.8", "8.8.8.80 8.8.4.4"},
		{"::ffff:8.8.8.8", "8.8.8.8", "8.8.4.4"},
		{"[2606:4700:0::1]", "2606:4700::1", "2606:4700::2"},
		{"2606:4700::1", "2606:4700::1", "2606:4700::2"},
		{"bücher.test", "xn--bcher-kva.test", "bucher.test bcher-kva.test"},
		{"*.BÜCHER.test", "a.xn--bcher-kva.test", "xn--bcher-kva.test"},
		{"paypal.test", "paypal.test", "xn--pypal-4ve.test"},                        // the other has a Cyrillic a
		{"p\u0430ypal.test", "xn--pypal-4ve.test", "paypal.test"},                   // and so has this
		{"xn--bcher-kva.test", "xn--bcher-kva.test", "xn--bcher-kva-x.test b.test"}, // text, as any other
		{"a\u3002test", "a.test", "atest"},
	} {
		p := compile(t, Rules{Domains: map[string]Action{test.pattern: Allow}})
		asks := compile(t, Rules{Domains: map[string]Action{"*": Allow}, Review: []string{test.pattern}})
		denies := p
		if test.other != "" {
			denies = compile(t, Rules{Domains: map[string]Action{"*": Allow, test.pattern: Deny}})
		}
		for host := range strings.FieldsSeq(test.allowed) {
			rig.Is(t, p.Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"}), allowed, "%s, %s", test.pattern, host)
			rig.Is(t, asks.Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"}), notAllowed, "review of %s, %s", test.pattern, host)
			if denies != p {
				rig.Is(t, denies.Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"}), denied, "deny of %s, %s", test.pattern, host)
			}
		}
		for host := range strings.FieldsSeq(test.other) {
			rig.Is(t, p.Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"}), notAllowed, "%s, %s", test.pattern, host)
		}
	}
}

var (
	allowed      = Verdict{Allow, ScopeDomain, SourceBaseline, ReasonAllow}
	denied       = Verdict{Deny, ScopeDomain, SourceBaseline, ReasonDenied}
	notAllowed   = Verdict{Ask, ScopeDomain, SourceBaseline, ReasonNotAllowed}
	local        = Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}
	ceilingSays  = Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowed}
	methodDenied = Verdict{Deny, ScopeNonDomain, SourceMode, ReasonMethodNotAllowed}
)

// TestWideGlobs: stars of patterns that deny or ask go over dots, so that they deny more.
func TestWideGlobs(t *testing.T) {
	t.Parallel()
	p := compile(t, Rules{Domains: map[string]Action{"*": Allow, "ads*.test": Deny, "*.x?y.test": Deny}})
	for host, want := range map[string]Verdict{
		"ads.test": denied, "ads1.a.test": denied, "bads.test": allowed,
		"xay.test": allowed, "a.xay.test": denied, "a.x.y.test": denied,
	} {
		rig.Is(t, p.Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"}), want, "%s", host)
	}
}

// TestJudge has the order of the steps of network.md 3.1 before the address.
func TestJudge(t *testing.T) {
	t.Parallel()
	star := map[string]Action{"*": Allow}
	for _, test := range []struct {
		name  string
		rules Rules
		r     Request
		want  Verdict
	}{
		{"nothing listed", Rules{}, Request{Protocol: HTTP, Host: "d.test", Port: 80, Method: "GET"}, notAllowed},
		{"listed", Rules{Domains: star}, Request{Protocol: Connect, Host: "d.test", Port: 443, Method: "CONNECT"}, allowed},
		{"not normalised", Rules{Domains: star}, Request{Protocol: HTTP, Host: "D.test", Port: 80, Method: "GET"}, ceilingSays},
		{"no host", Rules{Domains: star}, Request{Protocol: HTTP, Host: "", Port: 80, Method: "GET"}, ceilingSays},
		{"deny beats a narrower allow", Rules{Domains: map[string]Action{"**.d.test": Deny, "a.d.test": Allow}}, Request{Protocol: HTTP, Host: "a.d.test", Port: 80, Method: "GET"}, denied},
		{"deny beats review", Rules{Domains: map[string]Action{"a.test": Deny}, Review: []string{"a.test"}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, denied},
		{"deny of another spelling", Rules{Domains: map[string]Action{"*": Allow, "::ffff:8.8.8.8": Deny}}, Request{Protocol: HTTP, Host: "8.8.8.8", Port: 80, Method: "GET"}, denied},
		{"deny through a translator", Rules{Domains: map[string]Action{"*": Allow, "8.8.8.8": Deny}}, Request{Protocol: HTTP, Host: "64:ff9b::808:808", Port: 80, Method: "GET"}, denied},
		{"deny beats the local check", Rules{Domains: map[string]Action{"127.0.0.1": Deny}}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, denied},
		{"deny of one port", Rules{Domains: map[string]Action{"*": Allow, "a.test:22": Deny}}, Request{Protocol: Connect, Host: "a.test", Port: 22, Method: "CONNECT"}, denied},
		{"deny of another port", Rules{Domains: map[string]Action{"*": Allow, "a.test:22": Deny}}, Request{Protocol: Connect, Host: "a.test", Port: 443, Method: "CONNECT"}, allowed},
		{"review", Rules{Domains: star, Review: []string{"a.test"}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, notAllowed},
		{"review of one port", Rules{Domains: star, Review: []string{"a.test:22"}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, allowed},
		{"ask is review", Rules{Domains: map[string]Action{"*": Allow, "a.test": Ask}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, notAllowed},
		{"allow of one port", Rules{Domains: map[string]Action{"a.test:443": Allow}}, Request{Protocol: Connect, Host: "a.test", Port: 443, Method: "CONNECT"}, allowed},
		{"allow of another port", Rules{Domains: map[string]Action{"a.test:443": Allow}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, notAllowed},
		{"allow of two ports", Rules{Domains: map[string]Action{"a.test:443": Allow, "A.test:80": Allow}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, allowed},
		{"one port of everything", Rules{Domains: map[string]Action{"*:443": Allow}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, notAllowed},
		{"one port of a parent", Rules{Domains: map[string]Action{"*.test:443": Allow}}, Request{Protocol: Connect, Host: "a.test", Port: 443, Method: "CONNECT"}, allowed},
		{"one port of a glob", Rules{Domains: map[string]Action{"a*.test:443": Allow}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, notAllowed},
		{"one port of an address", Rules{Domains: map[string]Action{"[2606:4700::1]:443": Allow}}, Request{Protocol: Connect, Host: "2606:4700::1", Port: 443, Method: "CONNECT"}, allowed},
		{"another port of an address", Rules{Domains: map[string]Action{"[2606:4700::1]:443": Allow}}, Request{Protocol: Connect, Host: "2606:4700::1", Port: 80, Method: "CONNECT"}, notAllowed},
		{"ports", Rules{Domains: star, Ports: []uint16{443}}, Request{Protocol: Connect, Host: "a.test", Port: 443, Method: "CONNECT"}, allowed},
		{"other ports", Rules{Domains: star, Ports: []uint16{443}}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET"}, ceilingSays},

		{"localhost", Rules{Domains: star}, Request{Protocol: HTTP, Host: "localhost", Port: 80, Method: "GET"}, local},
		{"loopback", Rules{Domains: star}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, local},
		{"local before the lists", Rules{}, Request{Protocol: HTTP, Host: "10.0.0.1", Port: 80, Method: "GET"}, local},
		{"a pattern is no literal", Rules{Domains: map[string]Action{"127.0.0.?": Allow, "**.localhost": Allow}}, Request{Protocol: HTTP, Host: "localhost", Port: 80, Method: "GET"}, local},
		{"a listed literal", Rules{Domains: map[string]Action{"127.0.0.1": Allow}}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, allowed},
		{"a listed literal of another port", Rules{Domains: map[string]Action{"127.0.0.1:81": Allow}}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, local},
		{"localhost does not cover", Rules{Domains: map[string]Action{"localhost": Allow}}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, local},
		{"nor the reverse", Rules{Domains: map[string]Action{"127.0.0.1": Allow}}, Request{Protocol: HTTP, Host: "localhost", Port: 80, Method: "GET"}, local},
		{"a listed literal under review", Rules{Domains: map[string]Action{"127.0.0.1": Allow}, Review: []string{"127.0.0.1"}}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, notAllowed},
		{"local allowed", Rules{Local: true, Domains: star}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, allowed},
		{"local allowed, not listed", Rules{Local: true}, Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, notAllowed},
		{"decimal", Rules{Local: true, Domains: star}, Request{Protocol: HTTP, Host: "2130706433", Port: 80, Method: "GET"}, local},
		{"short", Rules{Local: true, Domains: star}, Request{Protocol: HTTP, Host: "127.1", Port: 80, Method: "GET"}, local},
		{"octal", Rules{Domains: star}, Request{Protocol: HTTP, Host: "0177.0.0.1", Port: 80, Method: "GET"}, local},
		{"hexadecimal", Rules{Domains: star}, Request{Protocol: HTTP, Host: "0x7f000001", Port: 80, Method: "GET"}, local},
		{"hexadecimal parts", Rules{Domains: star}, Request{Protocol: HTTP, Host: "0x7f.0.0.0x1", Port: 80, Method: "GET"}, local},
		{"a number below a name", Rules{Domains: star}, Request{Protocol: HTTP, Host: "1.test", Port: 80, Method: "GET"}, allowed},

		{"limited, SOCKS", Rules{Limited: true, Domains: star}, Request{Protocol: SOCKS5TCP, Host: "a.test", Port: 80, Method: ""}, methodDenied},
		{"limited, SOCKS, before deny", Rules{Limited: true, Domains: map[string]Action{"a.test": Deny}}, Request{Protocol: SOCKS5TCP, Host: "a.test", Port: 80, Method: ""}, methodDenied},
		{"limited, SOCKS to 443", Rules{Limited: true, Domains: star}, Request{Protocol: SOCKS5TCP, Host: "a.test", Port: 443, Method: ""}, allowed},
		{"limited, UDP", Rules{Limited: true, Domains: star}, Request{Protocol: SOCKS5UDP, Host: "a.test", Port: 443, Method: ""}, methodDenied},
		{"limited, HTTP", Rules{Limited: true, Domains: star}, Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "POST"}, allowed},
	} {
		rig.Is(t, compile(t, test.rules).Judge(test.r), test.want, "%s", test.name)
	}
}

// TestAddresses has the steps that judge where a name leads, and what is dialled.
func TestAddresses(t *testing.T) {
	t.Parallel()
	star := map[string]Action{"*": Allow}
	for _, test := range []struct {
		name              string
		rules             Rules
		host              string
		addrs             string
		resolved, dialled bool // refused
	}{
		{"public", Rules{Domains: star}, "d.test", "8.8.8.8 2606:4700::1", false, false},
		{"none", Rules{Domains: star}, "d.test", "", true, false},
		{"none, local allowed", Rules{Local: true, Domains: star}, "d.test", "", false, false},
		{"one of two", Rules{Domains: star}, "d.test", "8.8.8.8 10.0.0.1", true, true},
		{"listed by name", Rules{Domains: map[string]Action{"d.test": Allow}}, "d.test", "127.0.0.1", true, true},
		{"local allowed", Rules{Local: true, Domains: star}, "d.test", "127.0.0.1 ::1 64:ff9b::7f00:1", false, false},
		{"localhost", Rules{Domains: map[string]Action{"localhost": Allow}}, "localhost", "127.0.0.1 ::1", false, false},
		{"localhost elsewhere", Rules{Domains: map[string]Action{"localhost": Allow}}, "localhost", "10.0.0.1", true, true},
		{"literal", Rules{Domains: map[string]Action{"10.0.0.1": Allow}}, "10.0.0.1", "10.0.0.1", false, false},
		{"literal, mapped", Rules{Domains: map[string]Action{"10.0.0.1": Allow}}, "10.0.0.1", "::ffff:10.0.0.1", false, false},
		{"literal, other", Rules{Domains: map[string]Action{"10.0.0.1": Allow}}, "10.0.0.1", "10.0.0.2", true, true},
		{"denied address", Rules{Local: true, Domains: map[string]Action{"*": Allow, "127.0.0.1": Deny}}, "localhost", "127.0.0.1", false, true},
		{"denied address of a port", Rules{Domains: map[string]Action{"*": Allow, "8.8.8.8:80": Deny}}, "d.test", "8.8.8.8", false, true},
		{"denied address of another port", Rules{Domains: map[string]Action{"*": Allow, "8.8.8.8:81": Deny}}, "d.test", "8.8.8.8", false, false},
		{"denied behind a translator", Rules{Domains: map[string]Action{"*": Allow, "8.8.8.8": Deny}}, "d.test", "64:ff9b::808:808", false, true},
	} {
		p := compile(t, test.rules)
		r := Request{Protocol: HTTP, Host: test.host, Port: 80, Method: "GET"}
		var addrs []netip.Addr
		dialled := false
		for text := range strings.FieldsSeq(test.addrs) {
			addrs = append(addrs, netip.MustParseAddr(text))
			v, refused := p.JudgeDial(r, addrs[len(addrs)-1])
			rig.Is(t, v, (Verdict{Deny, ScopeNonDomain, SourceBaseline, ReasonPolicyDenied}), "%s", test.name)
			dialled = dialled || refused
		}
		v, refused := p.JudgeAddresses(r, addrs)
		rig.Is(t, v, local, "%s", test.name)
		rig.Is(t, refused, test.resolved, "%s: refused when resolved", test.name)
		rig.Is(t, dialled, test.dialled, "%s: refused at the dial", test.name)
	}
}

// TestMethods has what limited mode looks at last.
func TestMethods(t *testing.T) {
	t.Parallel()
	p := compile(t, Rules{Limited: true})
	mitm := Verdict{Deny, ScopeNonDomain, SourceMode, ReasonMITMRequired}
	for _, test := range []struct {
		r           Request
		intercepted bool
		want        Verdict
		refused     bool
	}{
		{Request{Protocol: HTTP, Host: "d.test", Port: 80, Method: "GET"}, false, methodDenied, false},
		{Request{Protocol: HTTP, Host: "d.test", Port: 80, Method: "HEAD"}, false, methodDenied, false},
		{Request{Protocol: HTTP, Host: "d.test", Port: 80, Method: "OPTIONS"}, false, methodDenied, false},
		{Request{Protocol: HTTP, Host: "d.test", Port: 80, Method: "get"}, false, methodDenied, true},
		{Request{Protocol: HTTP, Host: "d.test", Port: 80, Method: "POST"}, false, methodDenied, true},
		{Request{Protocol: Connect, Host: "d.test", Port: 443, Method: "CONNECT"}, false, mitm, true},
		{Request{Protocol: Connect, Host: "d.test", Port: 443, Method: "CONNECT"}, true, mitm, false},
		{Request{Protocol: SOCKS5TCP, Host: "d.test", Port: 443, Method: ""}, false, mitm, true},
	} {
		v, refused := p.JudgeMethod(test.r, test.intercepted)
		rig.Is(t, v, test.want, "%+v", test.r)
		rig.Is(t, refused, test.refused, "%+v is refused", test.r)
		_, refused = compile(t, Rules{}).JudgeMethod(test.r, test.intercepted)
		rig.Is(t, refused, false, "%+v is refused in full mode", test.r)
		_, refused = compile(t, Rules{}).Under(p).JudgeMethod(test.r, test.intercepted)
		rig.Is(t, refused, test.refused, "%+v is refused under a limited ceiling", test.r)
	}
}

// TestCeiling: a client's rules only tighten those of the operator.
func TestCeiling(t *testing.T) {
	t.Parallel()
	operator := compile(t, Rules{
		Domains: map[string]Action{"**.ok.test": Allow, "bad.ok.test": Deny, "ask.test": Ask},
		Ports:   []uint16{80, 443},
	})
	client := compile(t, Rules{Local: true, Domains: map[string]Action{"*": Allow, "no.ok.test": Deny}, Review: []string{"review.ok.test"}}).Under(operator)
	for _, test := range []struct {
		r    Request
		want Verdict
	}{
		{Request{Protocol: HTTP, Host: "a.ok.test", Port: 80, Method: "GET"}, allowed},
		{Request{Protocol: HTTP, Host: "a.ok.test", Port: 81, Method: "GET"}, ceilingSays},
		{Request{Protocol: HTTP, Host: "no.ok.test", Port: 80, Method: "GET"}, denied},
		{Request{Protocol: HTTP, Host: "bad.ok.test", Port: 80, Method: "GET"}, denied},
		{Request{Protocol: HTTP, Host: "review.ok.test", Port: 80, Method: "GET"}, notAllowed},
		{Request{Protocol: HTTP, Host: "ask.test", Port: 80, Method: "GET"}, notAllowed},
		{Request{Protocol: HTTP, Host: "other.test", Port: 80, Method: "GET"}, ceilingSays},
		{Request{Protocol: HTTP, Host: "127.0.0.1", Port: 80, Method: "GET"}, local},
	} {
		rig.Is(t, client.Judge(test.r), test.want, "%+v", test.r)
	}
	r := Request{Protocol: HTTP, Host: "a.ok.test", Port: 80, Method: "GET"}
	_, refused := client.JudgeAddresses(r, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	rig.Is(t, refused, true, "a local address, which the operator does not allow, is refused")
	_, refused = client.JudgeDial(r, netip.MustParseAddr("10.0.0.1"))
	rig.Is(t, refused, true, "to dial the address is refused")
	rig.Is(t, compile(t, Rules{Limited: true}).Limited(), true, "limited")
	rig.Is(t, client.Limited(), false, "limited as neither is")
	rig.Is(t, compile(t, Rules{}).Under(operator).Judge(r), notAllowed, "a client that lists nothing")
}
