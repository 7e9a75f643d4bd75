package rules

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// hosts and patterns are drawn of few letters, so that they meet.
var (
	hosts    = rapid.StringMatching(`[ab]{1,2}(\.[ab]{1,2}){0,2}|localhost|8\.8\.8\.8|127\.0\.0\.1|::1`)
	patterns = rapid.StringMatching(`(\*\*?\.)?[ab*?]{1,2}(\.[ab]{1,2}){0,1}(:8[01])?|\*|localhost|127\.0\.0\.1|8\.8\.8\.8`).
			Filter(func(s string) bool { _, err := parse(s); return err == nil })
	addresses = rapid.SampledFrom([]netip.Addr{
		netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("64:ff9b::7f00:1"), netip.MustParseAddr("2606:4700::1"),
	})
)

func drawRules(t *rapid.T) Rules {
	r := Rules{
		Limited: rapid.Bool().Draw(t, "limited"),
		Local:   rapid.Bool().Draw(t, "local"),
		Domains: rapid.MapOfN(patterns, rapid.SampledFrom([]Action{Allow, Allow, Deny, Ask}), 0, 5).Draw(t, "domains"),
		Review:  rapid.SliceOfN(patterns, 0, 2).Draw(t, "review"),
		Ports:   rapid.SliceOfN(rapid.SampledFrom([]uint16{80, 81, 443}), 0, 2).Draw(t, "ports"),
	}
	for text := range r.Domains {
		if p, _ := parse(text); p.kind == everything && r.Domains[text] == Deny {
			r.Domains[text] = Allow
		}
	}
	return r
}

func drawRequest(t *rapid.T) Request {
	return Request{
		Protocol: rapid.SampledFrom([]string{HTTP, Connect, SOCKS5TCP, SOCKS5UDP}).Draw(t, "protocol"),
		Host:     hosts.Draw(t, "host"),
		Port:     rapid.SampledFrom([]uint16{80, 81, 443}).Draw(t, "port"),
		Method:   "GET",
	}
}

// TestCeilingTightens: under a ceiling nothing is allowed that either policy alone does not
// allow, nor asked about that either denies.
func TestCeilingTightens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, errA := Compile(drawRules(t))
		b, errB := Compile(drawRules(t))
		rig.Must(t, errA, errB)
		r, addr := drawRequest(t), addresses.Draw(t, "address")
		both := a.Under(b)
		got, one, other := both.Judge(r), a.Judge(r), b.Judge(r)
		rig.Is(t, got.rank() >= max(one.rank(), other.rank()), true, "%+v: %+v under %+v gives %+v, which is as strict", r, one, other, got)
		for _, judge := range []func(*Hosts) bool{
			func(p *Hosts) bool { _, refused := p.JudgeAddresses(r, []netip.Addr{addr}); return refused },
			func(p *Hosts) bool { _, refused := p.JudgeDial(r, addr); return refused },
			func(p *Hosts) bool { _, refused := p.JudgeMethod(r, false); return refused },
		} {
			rig.Is(t, judge(both), judge(a) || judge(b), "%+v at %s: refused by both together", r, addr)
		}
	})
}

// TestMoreEntries: another entry that denies or asks never allows more.
func TestMoreEntries(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rules, r := drawRules(t), drawRequest(t)
		before, err := Compile(rules)
		rig.Must(t, err)
		rules.Review = append(rules.Review, patterns.Draw(t, "more"))
		after, err := Compile(rules)
		rig.Must(t, err)
		v, w := before.Judge(r), after.Judge(r)
		rig.Is(t, w.rank() >= v.rank(), true, "%+v: %+v, then %+v: it is as strict", r, v, w)
	})
}

// expression writes a pattern as a regular expression, which is the other implementation.
func expression(p pattern, wide bool) *regexp.Regexp {
	star, one := `[^.]*`, `[^.]`
	if wide {
		star, one = `.*`, `.`
	}
	quoted := strings.NewReplacer(`\*`, star, `\?`, one).Replace(regexp.QuoteMeta(p.text))
	switch p.kind {
	case everything:
		quoted = `.*`
	case below, globBelow:
		quoted = `.+\.` + quoted
	case from, globFrom:
		quoted = `(.+\.)?` + quoted
	}
	return regexp.MustCompile(`^` + quoted + `$`)
}

// TestMatching compares the maps and the matcher of globs with regular expressions.
func TestMatching(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := set{wide: rapid.Bool().Draw(t, "wide")}
		host, port := hosts.Draw(t, "host"), rapid.SampledFrom([]uint16{80, 81, 443}).Draw(t, "port")
		want := false
		for _, text := range rapid.SliceOfN(patterns, 0, 4).Draw(t, "patterns") {
			p, err := parse(text)
			rig.Must(t, err)
			s.add(p)
			want = want || (p.port == 0 || p.port == port) && expression(p, s.wide).MatchString(host)
		}
		rig.Is(t, s.matches(host, port), want, "%s:%d", host, port)
	})
}

func FuzzHost(f *testing.F) {
	for _, seed := range []string{"pub.test", "[::1]", "127.1", "::ffff:127.0.0.1", "p\u0430ypal.test", "a..b", "fe80::1%eth0", "user@d", "xn--a.", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		host, err := Host(text)
		if err != nil {
			return
		}
		rig.Is(t, rig.Value(Host(host)), host, "%q, again", text)
		rig.Is(t, len(host) <= maxHost && !strings.ContainsAny(host, "%@/[]*? \r\n\x00"), true, "%q is %q", text, host)
		rig.Is(t, strings.ToLower(host), host, "%q, in lower case", text)
		rig.Is(t, strings.ContainsFunc(host, func(r rune) bool { return r >= 0x80 }), false, "%q is %q, beyond ASCII", text, host)
	})
}

// FuzzPattern: a pattern that is taken matches by its maps as by its regular expression, and
// its errors are those of the contract.
func FuzzPattern(f *testing.F) {
	for _, seed := range []string{"*.d.test", "**.d", "reg*.d", "a:80", "[::1]:443", "**", "[", "a{b", "bücher.test", "*.a?b.test:1", "*", "[*]:80", "a**b", "::1"} {
		f.Add(seed, "a.d.test", uint16(80), false)
		f.Add(seed, "reg1.d", uint16(443), true)
	}
	f.Fuzz(func(t *testing.T, text, host string, port uint16, wide bool) {
		p, err := parse(text)
		if err != nil {
			said := err.Error()
			known := strings.HasPrefix(said, "unsupported ") || strings.HasPrefix(said, "brackets ")
			rig.Is(t, said == errEmpty.Error() || known && strings.HasSuffix(said, ": "+text), true, "%q: %s: an error of the contract", text, said)
			return
		}
		if host, err = Host(host); err != nil {
			return
		}
		s := set{wide: wide}
		s.add(p)
		want := (p.port == 0 || p.port == port) && expression(p, wide).MatchString(host)
		rig.Is(t, s.matches(host, port), want, "%q and %s:%d", text, host, port)
	})
}

// FuzzAddress: no way to write an address makes a local one public.
func FuzzAddress(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{8, 8, 8, 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 4 {
			return
		}
		v4 := netip.AddrFrom4([4]byte(b))
		want := special(v4)
		for _, form := range []string{"::ffff:%s", "64:ff9b::%s"} {
			rig.Is(t, special(netip.MustParseAddr(fmt.Sprintf(form, v4))), want, form, v4)
		}
		rig.Is(t, special(netip.AddrFrom16([16]byte{0x20, 0x02, b[0], b[1], b[2], b[3]})), want, "6to4 of %s", v4)
		for _, form := range []string{"::%s", "::ffff:0:%s", "64:ff9b:1::%s"} {
			rig.Is(t, special(netip.MustParseAddr(fmt.Sprintf(form, v4))), true, form, v4)
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	for _, test := range []struct{ name, form string }{{"Exact", "host%d.example.test"}, {"Below", "*.host%d.test"}, {"Globs", "host%d-*.test"}} {
		b.Run(test.name, func(b *testing.B) {
			r := Rules{Domains: map[string]Action{"last.test": Allow}}
			for i := range 10_000 {
				r.Domains[fmt.Sprintf(test.form, i)] = Allow
			}
			p, err := Compile(r)
			rig.Must(b, err)
			for b.Loop() {
				if v := p.Judge(Request{Protocol: HTTP, Host: "host-a.of.some.example.test", Port: 80, Method: "GET"}); v.Decision != Ask {
					b.Fatal(v)
				}
			}
		})
	}
	b.Run("Blowup", func(b *testing.B) {
		p, err := Compile(Rules{Domains: map[string]Action{strings.Repeat("*a", 30) + "b.test": Deny}})
		rig.Must(b, err)
		host := strings.Repeat(strings.Repeat("a", 60)+".", 4) + "test"
		for b.Loop() {
			p.Judge(Request{Protocol: HTTP, Host: host, Port: 80, Method: "GET"})
		}
	})
}
