package rules

import (
	"testing"
)

func compile(t *testing.T, r Rules) *Policy {
	t.Helper()
	p, err := Compile(r)
	if err != nil {
		t.Fatal(err)
	}
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
		if err == nil || err.Error() != test.want {
			t.Errorf("%q %s: %v, want %s", test.pattern, test.action, err, test.want)
		}
		if test.action != Allow {
			continue
		}
		if _, err := Compile(Rules{Review: []string{test.pattern}}); err == nil || err.Error() != test.want {
			t.Errorf("%q in review: %v, want %s", test.pattern, err, test.want)
		}
	}
}
