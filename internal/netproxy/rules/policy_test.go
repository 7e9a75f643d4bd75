package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// policies has cases of the tests below.
const policies = "testdata/policies.txt"

// TestCompileErrors has the texts of network.md 2.4.
func TestCompileErrors(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, policies, "errors", 3) {
		action, pattern, want := Action(row[0]), row[1], row[2]
		_, err := Compile(Rules{Domains: map[string]Action{pattern: action}})
		rig.Is(t, fmt.Sprint(err), want, "%q %s", pattern, action)
		if action == Allow {
			rig.Is(t, fmt.Sprint(rig.Err(Compile(Rules{Review: []string{pattern}}))), want, "%q in review", pattern)
		}
	}
}

// TestPatterns has the table of network.md 3.2, and the ports of leak L10.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, policies, "patterns", 3) {
		pattern, others := row[0], row[2]
		is := func(host, entries string, want Verdict) {
			t.Helper()
			got := rig.Value(policyOf(entries)).Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"})
			rig.Is(t, got, want, "%s of %s", entries, host)
		}
		for host := range strings.FieldsSeq(row[1]) {
			is(host, "allow="+pattern, allowed)
			is(host, "allow=*|review="+pattern, notAllowed)
			if others != "" {
				is(host, "allow=*|deny="+pattern, denied)
			}
		}
		for host := range strings.FieldsSeq(others) {
			is(host, "allow="+pattern, notAllowed)
		}
	}
}

var (
	allowed    = Verdict{Allow, ScopeDomain, SourceBaseline, ReasonAllow}
	denied     = Verdict{Deny, ScopeDomain, SourceBaseline, ReasonDenied}
	notAllowed = Verdict{Ask, ScopeDomain, SourceBaseline, ReasonNotAllowed}
	local      = Verdict{Deny, ScopeDomain, SourceBaseline, ReasonNotAllowedLocal}
)

// TestWideGlobs: stars of patterns that deny or ask go over dots, so that they deny more.
func TestWideGlobs(t *testing.T) {
	t.Parallel()
	p := rig.Value(policyOf("allow=*|deny=ads*.test|deny=*.x?y.test"))
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
	for _, row := range rig.Rows(t, policies, "judge", 4) {
		v := rig.Value(policyOf(row[1])).Judge(requestOf(t, row[2]))
		rig.Is(t, fmt.Sprint(v), "{"+row[3]+"}", "%s", row[0])
	}
}

// TestAddresses has the steps that judge where a name leads, and what is dialled.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, policies, "addresses", 5) {
		p, r := rig.Value(policyOf(row[1])), requestOf(t, "http "+row[2]+":80")
		var addrs []netip.Addr
		dialled := false
		for text := range strings.FieldsSeq(row[3]) {
			addrs = append(addrs, netip.MustParseAddr(text))
			v, refused := p.JudgeDial(r, addrs[len(addrs)-1])
			rig.Is(t, v, (Verdict{Deny, ScopeNonDomain, SourceBaseline, ReasonPolicyDenied}), "%s", row[0])
			dialled = dialled || refused
		}
		v, refused := p.JudgeAddresses(r, addrs)
		rig.Is(t, v, local, "%s", row[0])
		rig.Is(t, fmt.Sprint(refused, dialled), row[4], "%s: refused when resolved, and at the dial", row[0])
	}
}

// TestMethods has what limited mode looks at last.
func TestMethods(t *testing.T) {
	t.Parallel()
	limited, full := rig.Value(policyOf("limited")), rig.Value(policyOf("-"))
	for _, row := range rig.Rows(t, policies, "methods", 4) {
		r, intercepted := requestOf(t, row[0]), row[1] == "true"
		v, refused := limited.JudgeMethod(r, intercepted)
		rig.Is(t, fmt.Sprint(v, refused), "{"+row[2]+"} "+row[3], "%+v", r)
		_, inFull := full.JudgeMethod(r, intercepted)
		rig.Is(t, inFull, false, "%+v is refused in full mode", r)
		_, under := full.Under(limited).JudgeMethod(r, intercepted)
		rig.Is(t, under, refused, "%+v is refused under a limited ceiling", r)
	}
}

// TestCeiling: a client's rules only tighten those of the operator.
func TestCeiling(t *testing.T) {
	t.Parallel()
	operator := rig.Value(policyOf("allow=**.ok.test|deny=bad.ok.test|ask=ask.test|port=80|port=443"))
	client := rig.Value(policyOf("local|allow=*|deny=no.ok.test|review=review.ok.test")).Under(operator)
	for _, row := range rig.Rows(t, policies, "ceiling", 2) {
		rig.Is(t, fmt.Sprint(client.Judge(requestOf(t, row[0]))), "{"+row[1]+"}", "%s", row[0])
	}
	r := requestOf(t, "http a.ok.test:80")
	_, refused := client.JudgeAddresses(r, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	rig.Is(t, refused, true, "a local address, which the operator does not allow, is refused")
	_, refused = client.JudgeDial(r, netip.MustParseAddr("10.0.0.1"))
	rig.Is(t, refused, true, "to dial the address is refused")
	rig.Is(t, rig.Value(policyOf("limited")).Limited(), true, "limited")
	rig.Is(t, client.Limited(), false, "limited as neither is")
	rig.Is(t, rig.Value(policyOf("-")).Under(operator).Judge(r), notAllowed, "a client that lists nothing")
}
