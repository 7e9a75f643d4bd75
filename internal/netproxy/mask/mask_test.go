package mask

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

const (
	secret = "tok_abcdefghijabcdefghij"
	github = "ghp_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2"
	openai = "sk-proj-A1b2A1b2A1b2A1b2A1b2A1b2A1b2A1b2A1b2A1b2A1b2A1b2"
	bundle = "/bundle.pem"
)

var mine = map[string]Provider{"mine": {Env: []string{"TOK"}, Patterns: []string{"tok_[a-z]{20}"}, URLPrefixes: []string{"http://127.0.0.1:7310/api"}}}

// masked returns a broker, its environment as a map, and what it has logged. No secret may be
// in either.
func masked(t *testing.T, c Config, secrets ...string) (*Broker, map[string]string, string) {
	t.Helper()
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	b, err := New(c)
	rig.Must(t, err)
	environ := b.Environ(bundle)
	for _, s := range secrets {
		rig.Is(t, strings.Contains(strings.Join(environ, "\n"), s), false, "the environment shows %s", s)
		rig.Is(t, strings.Contains(log.String(), s), false, "the log shows %s", s)
	}
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		_, twice := env[name]
		rig.Is(t, twice, false, "%s is there twice", name)
		env[name] = value
	}
	return b, env, log.String()
}

// at is the destination of the provider mine.
func at(path string) Destination { return Destination{Host: "127.0.0.1", Port: 7310, Path: path} }

func TestEnviron(t *testing.T) {
	t.Parallel()
	_, env, log := masked(t, Config{Environ: []string{
		"PATH=/bin", "TOK=" + secret, "OTHER=a " + secret + " b", "EMPTY=", "noequals", "GITHUB_TOKEN=" + github, "OPENAI_API_KEY=" + openai,
		"URL=https://x:" + github + "@github.com/a", "OTHER_KEY=" + openai, "ANTHROPIC=sk-ant-" + strings.Repeat("x", 40), "TASK=task-" + strings.Repeat("x", 30),
		"SSL_CERT_FILE=/old", "ENCODED=x%3A" + github + "%40", "QUERY=a%3Dsk-" + strings.Repeat("Ab1", 10), "LONG=task-" + strings.Repeat("x", 30) + "-" + openai,
	}, Providers: mine}, secret, github, openai)
	rig.Is(t, log, "", "log")
	for name, want := range map[string]string{
		"PATH": `/bin`, "TOK": `tok_[a-z]{20}`, "OTHER": `a tok_[a-z]{20} b`, "EMPTY": ``, "GITHUB_TOKEN": `ghp_masked[A-Za-z0-9]{30}`, "OPENAI_API_KEY": `sk-proj-masked[A-Za-z0-9]{42}`,
		"URL": `https://x:ghp_masked[A-Za-z0-9]{30}@github.com/a`, "ANTHROPIC": `sk-ant-x{40}`, "TASK": `task-x{30}`,
		"ENCODED": `x%3Aghp_masked[A-Za-z0-9]{30}%40`, "QUERY": `a%3Dsk-masked[A-Za-z0-9]{24}`, "LONG": `task-x{30}-sk-proj-masked[A-Za-z0-9]{42}`,
		"CODEX_NETWORK_PROXY_CREDENTIAL_BROKER_ACTIVE": "1",
	} {
		rig.Is(t, regexp.MustCompile(`^`+want+`$`).MatchString(env[name]), true, "%s is %q, like %s", name, env[name], want)
	}
	rig.Is(t, env["OTHER_KEY"], env["OPENAI_API_KEY"], "the other placeholder of one value")
	for _, name := range bundles {
		rig.Is(t, env[name], bundle, "%s", name)
	}
	tok, hub, key := env["TOK"], env["GITHUB_TOKEN"], env["OPENAI_API_KEY"]
	query := strings.TrimPrefix(env["QUERY"], "a%3D")
	want, err := json.Marshal([][2]string{
		{"@alias:ENCODED", hub}, {"@alias:GITHUB_TOKEN", hub}, {"@alias:LONG", key}, {"@alias:OPENAI_API_KEY", key}, {"@alias:OTHER", tok}, {"@alias:OTHER_KEY", key}, {"@alias:QUERY", query}, {"@alias:TOK", tok}, {"@alias:URL", hub},
		{"GITHUB_TOKEN", hub}, {"OPENAI_API_KEY", key}, {"TOK", tok},
	})
	rig.Must(t, err)
	rig.Is(t, env["CODEX_NETWORK_PROXY_BROKERED_CREDENTIALS"], string(want), "the credentials")

	_, env, _ = masked(t, Config{Environ: []string{"A=b"}})
	rig.Is(t, env["CODEX_NETWORK_PROXY_BROKERED_CREDENTIALS"]+env["CURL_CA_BUNDLE"]+env["A"], "[]"+bundle+"b", "where nothing is masked")
}

// TestNotMasked: what cannot be masked is not shown either; what is no credential stays.
func TestNotMasked(t *testing.T) {
	t.Parallel()
	long := "tok_" + strings.Repeat("x", maxSecret)
	for _, test := range []struct {
		name     string
		provider Provider
		environ  []string
		gone     string // a variable
		secret   string
	}{
		{"no second value of this length", Provider{Patterns: []string{"a{24}b?"}}, []string{"TOK=" + strings.Repeat("a", 24)}, "TOK", strings.Repeat("a", 24)},
		{"inside another variable", Provider{Patterns: []string{"a{24}b?"}}, []string{"TOK=" + strings.Repeat("a", 24), "X=" + strings.Repeat("a", 24) + "z"}, "X", strings.Repeat("a", 24)},
		{"in a name", Provider{Patterns: []string{"a{24}b?"}}, []string{"TOK=" + strings.Repeat("a", 24), strings.Repeat("a", 24) + "=1"}, strings.Repeat("a", 24), strings.Repeat("a", 24)},
		{"in a name, masked", Provider{Patterns: []string{"tok_[a-z]{20}"}}, []string{"TOK=" + secret, secret + "=1"}, secret, secret},
		{"in a prepared header", Provider{Patterns: []string{"tok_[a-z]{20}"}}, []string{"TOK=" + secret, "X=AUTHORIZATION: basic " + base64.StdEncoding.EncodeToString([]byte("x:"+secret))}, "X", base64.StdEncoding.EncodeToString([]byte("x:" + secret))},
		{"in base64", Provider{Patterns: []string{"tok_[a-z]{20}"}}, []string{"TOK=" + secret, "X=" + base64.URLEncoding.EncodeToString([]byte(secret+"?more"))}, "X", base64.URLEncoding.EncodeToString([]byte(secret + "?more"))},
		{"in base64, behind one byte", Provider{Patterns: []string{"tok_[a-z]{20}"}}, []string{"TOK=" + secret, "X=" + base64.StdEncoding.EncodeToString([]byte("x"+secret))}, "X", base64.StdEncoding.EncodeToString([]byte("x" + secret))},
		{"no text for a header", Provider{Patterns: []string{`(?s).{8}\n.{8}`}}, []string{"TOK=12345678\n12345678"}, "TOK", "12345678\n12345678"},
		{"too long", Provider{Patterns: []string{`tok_[a-z]+`}}, []string{"TOK=" + long}, "TOK", long},
		{"letters that no header has", Provider{Patterns: []string{`[а-я]{10}`}}, []string{"TOK=абвгдежзик"}, "TOK", "абвгдежзик"},
	} {
		test.provider.Env, test.provider.URLPrefixes = []string{"TOK"}, []string{"https://d.test"}
		_, env, log := masked(t, Config{Environ: append(test.environ, "KEEP=1"), Providers: map[string]Provider{"x": test.provider}}, test.secret)
		_, there := env[test.gone]
		rig.Is(t, there, false, "%s: it is there", test.name)
		rig.Is(t, env["KEEP"], "1", "%s: the other variable", test.name)
		rig.Is(t, strings.Contains(log, "removed"), true, "%s: %q: that is logged", test.name, log)
	}
	environ := []string{"TOK=other", "OPENAI_API_KEY=none", "GH_ENTERPRISE_TOKEN=" + github, "GITHUB_TOKEN=ghp_masked" + strings.Repeat("x", 30)}
	_, env, log := masked(t, Config{Environ: environ, Providers: mine})
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		rig.Is(t, env[name], value, "%s", name)
	}
	rig.Is(t, log, "", "log")
	// Of two values of one name each is masked.
	b, err := New(Config{Environ: []string{"TOK=" + secret, "TOK=tok_" + strings.Repeat("z", 20)}, Providers: mine})
	rig.Must(t, err)
	all := strings.Join(b.Environ(bundle), "\n")
	rig.Is(t, strings.Contains(all, secret) || strings.Contains(all, "zzzzzzzzzzzzzzzzzzzz"), false, "%s shows a secret", all)
}

// TestShortCredential: the letters of a short one stay where they only happen to be.
func TestShortCredential(t *testing.T) {
	t.Parallel()
	_, env, _ := masked(t, Config{Environ: []string{"TOK=bin", "SAME=bin", "PATH=/bin:/usr/bin"}, Providers: map[string]Provider{
		"x": {Env: []string{"TOK"}, Patterns: []string{"[a-z]{3}"}, URLPrefixes: []string{"https://d.test"}},
	}})
	rig.Is(t, env["TOK"] == "bin", false, "the credential is shown")
	rig.Is(t, env["SAME"], env["TOK"], "the same value")
	rig.Is(t, env["PATH"], "/bin:/usr/bin", "PATH")
}

// TestScope: placeholders are equal within a scope, and mean nothing to another broker (leak L3).
func TestScope(t *testing.T) {
	t.Parallel()
	c := Config{Environ: []string{"TOK=" + secret}, Providers: mine, Scope: []byte("one")}
	a, envA, _ := masked(t, c)
	_, envB, _ := masked(t, c)
	c.Scope = []byte("two")
	_, envC, _ := masked(t, c)
	c.Scope = nil
	_, envD, _ := masked(t, c)
	if envA["TOK"] != envB["TOK"] || envA["TOK"] == envC["TOK"] || envC["TOK"] == envD["TOK"] || envA["TOK"] == envD["TOK"] {
		t.Error(envA["TOK"], envB["TOK"], envC["TOK"], envD["TOK"])
	}
	without, _, _ := masked(t, Config{Providers: mine, Scope: []byte("one")})
	bearer := "Bearer " + envA["TOK"]
	rig.Is(t, a.Restore(at("/api"), "Authorization", bearer), "Bearer "+secret, "the result")
	rig.Is(t, without.Restore(at("/api"), "Authorization", bearer), bearer, "a command without the credential has it put in")
	rig.Is(t, without.Bound(false, "127.0.0.1", 7310), false, "the place is bound where nothing is masked")
	rig.Is(t, a.Bound(false, "127.0.0.1", 7310), true, "the place is bound")
}

func TestRestore(t *testing.T) {
	t.Parallel()
	all := Provider{
		Env: []string{"TOK"}, Patterns: []string{"tok_[a-z]{20}"}, URLPrefixes: []string{"https://d.test/api/", "*.w.test:8443"},
		Auth: []string{"bearer", "token", "basic", "header"}, Header: "x-api-KEY", Prefix: "Key ",
	}
	few := all
	few.Auth = nil
	b, env, _ := masked(t, Config{Environ: []string{"TOK=" + secret}, Providers: map[string]Provider{"all": all}}, secret)
	bearerOnly, fewEnv, _ := masked(t, Config{Environ: []string{"TOK=" + secret}, Providers: map[string]Provider{"few": few}}, secret)
	place := env["TOK"]
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	here := Destination{TLS: true, Host: "d.test", Port: 443, Path: "/api/x"}
	for _, test := range []struct {
		field, value, want string
		bearer             bool // restored also where auth is left out
	}{
		{"Authorization", "Bearer " + place, "Bearer " + secret, true},
		{"authorization", "bearer  " + place + " ", "bearer " + secret, true},
		{"Authorization", "token " + place, "token " + secret, false},
		{"Authorization", basic("u", place), basic("u", secret), false},
		{"Authorization", basic(place, ""), basic(secret, ""), false},
		{"Authorization", basic(place, place), basic(secret, secret), false},
		{"X-Api-Key", "Key " + place, "Key " + secret, false},

		{"X-Api-Key", place, "", false},
		{"X-Api-Key", "key " + place, "", false},
		{"X-Other", "Key " + place, "", false},
		{"X-Other", "Bearer " + place, "", false},
		{"Cookie", "k=" + place, "", false},
		{"Authorization", place, "", false},
		{"Authorization", "Bearer x" + place, "", false},
		{"Authorization", "Bearer " + place + "x", "", false},
		{"Authorization", "Bearer " + place + ", Bearer " + place, "", false},
		{"Authorization", "Digest " + place, "", false},
		{"Authorization", "Basic " + place, "", false},
		{"Authorization", "Basic !!!", "", false},
		{"Authorization", basic("u"+place, "x"), "", false},
		{"Authorization", "Bearer " + secret, "", false}, // the command has it itself
		{"Authorization", "", "", false},
	} {
		want := cmp.Or(test.want, test.value)
		rig.Is(t, b.Restore(here, test.field, test.value), want, "%s: %s", test.field, test.value)
		value := strings.ReplaceAll(test.value, place, fewEnv["TOK"])
		if !test.bearer {
			want = value
		}
		if got := bearerOnly.Restore(here, test.field, value); got != want && !strings.HasPrefix(value, "Basic") {
			t.Errorf("bearer only, %s: %s: %q, want %q", test.field, value, got, want)
		}
	}
	shown := basic("u", fewEnv["TOK"])
	rig.Is(t, bearerOnly.Restore(here, "Authorization", shown), shown, "Basic where only bearer is named")

	value := "Bearer " + place
	for _, test := range []struct {
		to   Destination
		want bool
	}{
		{Destination{true, "d.test", 443, "/api"}, true},
		{Destination{true, "d.test", 443, "/api/"}, true},
		{Destination{true, "d.test", 443, "/api/a.b/...x"}, true},
		{Destination{true, "a.w.test", 8443, "/any"}, true},
		{Destination{true, "a.b.w.test", 8443, "/"}, true},
		{Destination{true, "d.test", 443, "/apix"}, false},
		{Destination{true, "d.test", 443, "/"}, false},
		{Destination{true, "d.test", 443, "/API/x"}, false},
		{Destination{true, "d.test", 443, "/api/../x"}, false},
		{Destination{true, "d.test", 443, "/api/./x"}, false},
		{Destination{true, "d.test", 443, "/api/.."}, false},
		{Destination{true, "d.test", 443, "/api/%2e%2e/x"}, false},
		{Destination{true, "d.test", 443, "/api/%2E/x"}, false},
		{Destination{true, "d.test", 443, "/api/..%2fx"}, false},
		{Destination{true, "d.test", 443, "/api/a%2F..%2Fx"}, false},
		{Destination{true, "d.test", 443, `/api/..\x`}, false},
		{Destination{true, "d.test", 443, "/api/..%5cx"}, false},
		{Destination{true, "d.test", 443, "/api/%252e%252e/x"}, false},
		{Destination{true, "d.test", 443, "/api/..;a=b/x"}, false},
		{Destination{true, "d.test", 443, "/api/%2525252e%2525252e/x"}, false},
		{Destination{true, "d.test", 443, "/api/%" + strings.Repeat("25", 99) + "2e"}, false},
		{Destination{true, "d.test", 443, "/api/..%00/x"}, false},
		{Destination{true, "d.test", 443, "/api/..%09/x"}, false},
		{Destination{true, "d.test", 443, "/api/.%0d./x"}, false},
		{Destination{true, "d.test", 443, "/api/.%250D./x"}, false},
		{Destination{true, "d.test", 443, "/api/..%20/x"}, false},
		{Destination{true, "d.test", 443, "/api/a%20b%2fc"}, true},
		{Destination{true, "d.test", 443, "/api/%c0%ae%C0%AE/x"}, false},
		{Destination{true, "d.test", 443, "/api/%u002e%u002e/x"}, false},
		{Destination{true, "d.test", 8443, "/api/x"}, false},
		{Destination{false, "d.test", 443, "/api/x"}, false},
		{Destination{true, "x.d.test", 443, "/api/x"}, false},
		{Destination{true, "w.test", 8443, "/"}, false},
		{Destination{true, "a.w.test", 443, "/"}, false},
		{Destination{true, "aw.test", 8443, "/"}, false},
	} {
		rig.Is(t, b.Restore(test.to, "Authorization", value) != value, test.want, "%+v: restored", test.to)
		rig.Is(t, test.want && !b.Bound(test.to.TLS, test.to.Host, test.to.Port), false, "%+v is not bound", test.to)
	}
}

// TestBuiltin has the destinations of what needs no provider, and the ports of leak L23.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		environ []string
		where   string // HOST:PORT, with http:// without TLS
		want    bool
	}{
		{[]string{"GH_TOKEN=" + github}, "api.github.com", true},
		{[]string{"GITHUB_TOKEN=" + github}, "github.com", true},
		{[]string{"GITHUB_TOKEN=" + github}, "uploads.github.com", true},
		{[]string{"GITHUB_TOKEN=" + github}, "a.ghe.com", true},
		{[]string{"GITHUB_TOKEN=" + github}, "ghe.com", false},
		{[]string{"GITHUB_TOKEN=" + github}, "evil-github.com", false},
		{[]string{"GITHUB_TOKEN=" + github}, "api.github.com:8443", false},
		{[]string{"GITHUB_TOKEN=" + github}, "http://api.github.com:443", false},
		{[]string{"GITHUB_TOKEN=" + github}, "http://api.github.com:80", false},
		{[]string{"ANY=" + github}, "api.github.com", true},
		{[]string{"GITHUB_TOKEN=" + strings.Repeat("0a", 20)}, "api.github.com", true}, // of the old shape
		{[]string{"GH_ENTERPRISE_TOKEN=" + github, "GH_HOST=pub.test"}, "pub.test", true},
		{[]string{"GITHUB_ENTERPRISE_TOKEN=" + github, "GH_HOST=pub.test"}, "pub.test:7311", false},
		{[]string{"GITHUB_ENTERPRISE_TOKEN=" + github, "GH_HOST=pub.test:7311"}, "pub.test:7311", true},
		{[]string{"GH_ENTERPRISE_TOKEN=" + github, "GH_HOST=pub.test"}, "api.github.com", false},
		{[]string{"OPENAI_API_KEY=" + openai}, "api.openai.com", true},
		{[]string{"OPENAI_API_KEY=" + openai}, "api.openai.com:8443", false},
		{[]string{"OPENAI_API_KEY=" + openai, "OPENAI_BASE_URL=https://o.test/v1"}, "o.test", true},
		{[]string{"OPENAI_API_KEY=" + openai, "OPENAI_BASE_URL=https://o.test/v1"}, "api.openai.com", false},
		{[]string{"OPENAI_API_KEY=" + openai, "OPENAI_BASE_URL=https://o.test:7311/v1"}, "o.test:7311", true},
		{[]string{"OPENAI_API_KEY=" + openai, "OPENAI_BASE_URL=https://o.test:7311/v1"}, "o.test", false},
		{[]string{"OPENAI_API_KEY=" + openai, "OPENAI_BASE_URL=http://o.test/v1"}, "http://o.test:80", false},
		{[]string{"OPENAI_API_KEY=" + openai, "OPENAI_BASE_URL=http://127.0.0.1:1234/v1"}, "http://127.0.0.1:1234", true},
	} {
		b, env, _ := masked(t, Config{Environ: test.environ}, github, openai)
		to := Destination{TLS: !strings.HasPrefix(test.where, "http://"), Port: 443, Path: "/any"}
		p, err := parsePlace("https://" + strings.TrimPrefix(test.where, "http://"))
		rig.Must(t, err)
		to.Host, to.Port = p.host, p.port
		name, value, _ := strings.Cut(test.environ[0], "=")
		rig.Is(t, env[name] == value, false, "%s is shown", name)
		want := map[bool]string{true: value, false: env[name]}[test.want]
		rig.Is(t, b.Restore(to, "Authorization", "Bearer "+env[name]), "Bearer "+want, "%v at %s", test.environ, test.where)
		rig.Is(t, b.Bound(to.TLS, to.Host, to.Port), test.want, "%v at %s: bound", test.environ, test.where)
	}
}

// TestIgnoredProviders has the rows of network.md 8.2.
func TestIgnoredProviders(t *testing.T) {
	t.Parallel()
	good := mine["mine"]
	with := func(change func(*Provider)) Provider {
		p := good
		change(&p)
		return p
	}
	for _, test := range []struct {
		name     string
		provider Provider
		reason   string
	}{
		{"", good, "no name"},
		{"x", with(func(p *Provider) { p.Env = nil }), "names no variable"},
		{"x", with(func(p *Provider) { p.Env = []string{"A=B"} }), "not the name of a variable"},
		{"x", with(func(p *Provider) { p.Env = []string{"TOK", "GITHUB_TOKEN"} }), "earlier provider"},
		{"x", with(func(p *Provider) { p.Patterns = nil }), "no pattern"},
		{"x", with(func(p *Provider) { p.Patterns = []string{"("} }), "pattern"},
		{"x", with(func(p *Provider) { p.Patterns = []string{"(a{900}){900}"} }), "pattern"},
		{"x", with(func(p *Provider) { p.Patterns = []string{"[ab]{0,900}", "((ab?){100}){9}(c{1000}d{1000}){9}"} }), "pattern"},
		{"x", with(func(p *Provider) { p.Patterns = []string{"a*"} }), "empty text"},
		{"x", with(func(p *Provider) { p.Patterns = []string{"tok_(abc){2}"} }), "one text only"},
		{"x", with(func(p *Provider) { p.URLPrefixes = nil }), "no destination"},
		{"x", with(func(p *Provider) { p.URLPrefixes, p.URLPrefixFromEnv = nil, "UNSET" }), "not set"},
		{"x", with(func(p *Provider) { p.URLPrefixFromEnv = "BAD" }), "BAD"},
		{"x", with(func(p *Provider) { p.Auth = []string{"header"} }), "cannot carry"},
		{"x", with(func(p *Provider) { p.Auth, p.Header = []string{"header"}, "Cookie" }), "cannot carry"},
		{"x", with(func(p *Provider) { p.Auth, p.Header = []string{"header"}, "Content-length" }), "cannot carry"},
		{"x", with(func(p *Provider) { p.Auth, p.Header = []string{"header"}, "a b" }), "cannot carry"},
		{"x", with(func(p *Provider) { p.Auth, p.Header, p.Prefix = []string{"header"}, "X-Key", "a\r\nb" }), "prefix"},
		{"x", with(func(p *Provider) { p.Auth = []string{"digest"} }), "is not one of bearer"},
	} {
		_, env, log := masked(t, Config{Environ: []string{"TOK=" + secret, "BAD=http://not.loopback"}, Providers: map[string]Provider{test.name: test.provider}})
		rig.Is(t, env["TOK"], secret, "%s: the variable", test.reason)
		rig.Is(t, strings.Count(log, "\n"), 1, "%s: lines of %s", test.reason, log)
		rig.Is(t, strings.Contains(log, test.reason) && !strings.Contains(log, "not.loopback"), true, "%s is the reason in %s", test.reason, log)
	}
	for _, text := range []string{"http://d.test", "https://", "https:///x", "ftp://d.test", "https://u@d.test", "https://d.test?q", "https://d.test#f", "https://d.test:0", "https://d.test:x", "https://d.test:65536", "https://d.test/a/../b", "https://d.test/%2e", "d..test", "http://*.localhost", ""} {
		_, env, log := masked(t, Config{Environ: []string{"TOK=" + secret}, Providers: map[string]Provider{"x": with(func(p *Provider) { p.URLPrefixes = []string{text} })}})
		rig.Is(t, env["TOK"], secret, "%q: the variable", text)
		rig.Is(t, strings.Contains(log, "destination"), true, "%q: %s names what is wrong", text, log)
	}
	for text, want := range map[string]destination{
		"https://d.test":         {tls: true, host: "d.test", port: 443},
		"HTTPS://D.test:8443/a/": {tls: true, host: "d.test", port: 8443, path: "/a"},
		"d.test/a":               {tls: true, host: "d.test", port: 443, path: "/a"},
		"*.d.test":               {tls: true, host: "d.test", wildcard: true, port: 443},
		"localhost":              {host: "localhost", port: 80},
		"127.0.0.1:7310":         {host: "127.0.0.1", port: 7310},
		"http://[::1]:80/x":      {host: "::1", port: 80, path: "/x"},
		"https://localhost":      {tls: true, host: "localhost", port: 443},
	} {
		rig.Is(t, rig.Value(parsePlace(text)), want, "%s", text)
	}
	_, env, log := masked(t, Config{Environ: []string{"TOK=" + secret, "TOK2=" + secret}, Providers: map[string]Provider{"a": good, "b": good}}, secret)
	rig.Is(t, env["TOK2"], env["TOK"], "the placeholder of the same value")
	rig.Is(t, strings.Contains(log, "provider=b"), true, "%s names the second provider of a variable", log)
}

// TestHiddenProvider: what the variables of an operator's provider hold is masked or removed,
// never shown.
func TestHiddenProvider(t *testing.T) {
	t.Parallel()
	const other = "in-no-shape-at-all"
	for _, change := range []func(*Provider){
		func(p *Provider) { p.Patterns = []string{"("} },
		func(p *Provider) { p.URLPrefixes, p.URLPrefixFromEnv = nil, "UNSET" },
		func(p *Provider) { p.Env = []string{"GITHUB_TOKEN", "TOK", "MORE"} },
		func(p *Provider) { p.Env = []string{"TOK", "MORE"} },
	} {
		p := mine["mine"]
		change(&p)
		earlier := mine["mine"]
		earlier.Env = []string{"GITHUB_TOKEN"}
		_, env, _ := masked(t, Config{Environ: []string{"PATH=/bin", "TOK=" + other, "COPY=a " + other}, Operator: map[string]Provider{"earlier": earlier, "x": p}}, other)
		_, there := env["TOK"]
		rig.Is(t, there, false, "%+v: it is there", p)
		rig.Is(t, env["PATH"], "/bin", "PATH")
	}
}

// TestShapes: a placeholder is as long as the value, and matches its pattern.
func TestShapes(t *testing.T) {
	t.Parallel()
	for pattern, values := range map[string][]string{
		`tok_[a-z]{20}`:   {secret},
		`(?:key|tok)-\d+`: {"key-1", "tok-12345678"},
		`[[:xdigit:]]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`: {"123e4567-e89b-12d3-a456-426614174000"},
		`^AKIA[0-9A-Z]{16}$`:                            {"AKIAIOSFODNN7EXAMPLE"},
		`(a|b)*c+`:                                      {"abc", "abbbcccc"},
		`.{30,}`:                                        {strings.Repeat("x y", 12)},
		`(?i)secret[0-9]{4}`:                            {"SECRET1234"},
		`\bkey_\w{10}\b`:                                {"key_0123456789"},
		`([a-z]*)*[0-9]`:                                {"abc1"},
		`npm_[A-Za-z0-9]{36}`:                           {"npm_" + strings.Repeat("aB3", 12)},
		`[A-Za-z0-9+/]{30,90}={0,2}`:                    {strings.Repeat("Ab+/", 10) + "=="},
		`x[^a-zA-Z0-9 ]{9}`:                             {"x---------"},
	} {
		s, err := newShape(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for _, value := range values {
			seen := map[string]bool{}
			next := s.texts(len(value))
			for i := range 20 {
				text := next(rand.New(rand.NewPCG(1, uint64(i))))
				rig.Is(t, len(text) == len(value) && s.whole.MatchString(text), true, "%s: %q is like %q", pattern, text, value)
				seen[text] = true
			}
			rig.Is(t, len(seen) >= 2, true, "%s: %q has the placeholders %v", pattern, value, seen)
		}
	}
	s, err := newShape("tok_[a-z]{20}")
	rig.Must(t, err)
	rig.Is(t, s.texts(23) == nil, true, "there are no texts of another length")
}

// TestOperator: of a variable that an operator names, nobody else says what it is: neither what is
// built in nor a client, and a client not even where the operator's provider is ignored.
func TestOperator(t *testing.T) {
	t.Parallel()
	ours := func(env, pattern, prefix string) Provider {
		return Provider{Env: []string{env}, Patterns: []string{pattern}, URLPrefixes: []string{prefix}}
	}
	const token, other = "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "tok_abcdefghijabcdefghij"
	b, err := New(Config{
		Environ:  []string{"GH_TOKEN=" + token, "OTHER=" + other},
		Operator: map[string]Provider{"gh": ours("GH_TOKEN", "ghp_[a-z0-9]{36}", "https://api.github.com/repos/us"), "bad": ours("OTHER", "[", "https://us.example")},
		Providers: map[string]Provider{
			"gh": ours("GH_TOKEN", "ghp_[a-z0-9]{36}", "https://client.example"), "other": ours("OTHER", "tok_[a-z]{20}", "https://client.example"),
		},
	})
	rig.Must(t, err)
	for placeholder := range b.byPlaceholder {
		for _, tt := range []struct{ host, path, want string }{
			{"api.github.com", "/repos/us/x", token}, {"api.github.com", "/user", placeholder}, {"github.com", "/", placeholder}, {"client.example", "/", placeholder},
		} {
			got := b.Restore(Destination{TLS: true, Host: tt.host, Port: 443, Path: tt.path}, "Authorization", "Bearer "+placeholder)
			rig.Is(t, got, "Bearer "+tt.want, "%s%s gets", tt.host, tt.path)
		}
	}
	rig.Is(t, len(b.byPlaceholder), 1, "credentials")
}

// TestOperatorAlone: where the operator's credentials go is not said by a client either that has the
// same value in another variable, a longer one, or only a variable with the destination; and they are
// hidden from a command that does not inherit their variable.
func TestOperatorAlone(t *testing.T) {
	t.Parallel()
	const place = "https://client.example"
	operator := map[string]Provider{"op": {Env: []string{"TOK"}, Patterns: []string{"tok_[a-z]{20}"}, URLPrefixFromEnv: "PLACE"}}
	host := []string{"TOK=" + secret, "PLACE=https://us.example"}
	client := map[string]Provider{
		"same":   {Env: []string{"SAME"}, Patterns: []string{"tok_[a-z]{20}"}, URLPrefixes: []string{place}},
		"longer": {Env: []string{"LONGER"}, Patterns: []string{"x=tok_[a-z]{20}"}, URLPrefixes: []string{place}},
	}
	for _, own := range []string{"TOK=" + secret, "OTHER="} {
		b, env, _ := masked(t, Config{
			Environ: []string{own, "SAME=" + secret, "LONGER=x=" + secret, "PLACE=" + place}, Host: host, Operator: operator, Providers: client,
		}, secret)
		rig.Is(t, "x="+env["SAME"], env["LONGER"], "the placeholder in a longer value")
		for text, want := range map[string]string{env["SAME"]: secret, env["LONGER"]: env["LONGER"]} {
			got := b.Restore(Destination{TLS: true, Host: "us.example", Port: 443}, "Authorization", "Bearer "+text)
			rig.Is(t, got, "Bearer "+want, "the operator's place gets")
			got = b.Restore(Destination{TLS: true, Host: "client.example", Port: 443}, "Authorization", "Bearer "+text)
			rig.Is(t, got, "Bearer "+text, "the client's place gets")
		}
	}
}

// FuzzPlaceholder: whatever the pattern and the value, the environment does not show the value
// of a variable that the pattern matches, and the way back is exact.
func FuzzPlaceholder(f *testing.F) {
	f.Add("tok_[a-z]{20}", secret, "x")
	f.Add("(a|b)*c", "aabc", "aabcaabc")
	f.Add(".+", "anything else", "=")
	f.Add(`\bx\B.*`, "xyz", "")
	f.Fuzz(func(t *testing.T, pattern, value, other string) {
		if len(pattern) > 200 || strings.ContainsRune(value+other, 0) {
			return
		}
		b, err := New(Config{Environ: []string{"TOK=" + value, "OTHER=" + other + value}, Providers: map[string]Provider{
			"x": {Env: []string{"TOK"}, Patterns: []string{pattern}, URLPrefixes: []string{"https://d.test"}},
		}})
		rig.Must(t, err)
		s, err := newShape(pattern)
		if err != nil || !s.whole.MatchString(value) {
			return
		}
		for _, entry := range b.Environ(bundle) {
			name, text, _ := strings.Cut(entry, "=")
			if name == "TOK" && text == value || name == "OTHER" && len(value) >= minReplaced && strings.Contains(text, value) {
				t.Errorf("%q shows %q", entry, value)
			}
			if name == "TOK" {
				got := b.Restore(Destination{true, "d.test", 443, "/"}, "Authorization", "Bearer "+text)
				rig.Is(t, got, "Bearer "+value, "%q comes back as", value)
			}
		}
	})
}

// FuzzRestore: no field makes the broker fail, and none has a credential that had no
// placeholder.
func FuzzRestore(f *testing.F) {
	b, err := New(Config{Environ: []string{"TOK=" + secret}, Scope: []byte("fixed"), Providers: map[string]Provider{
		"x": {Env: []string{"TOK"}, Patterns: []string{"tok_[a-z]{20}"}, URLPrefixes: []string{"https://d.test/api"}, Auth: []string{"bearer", "token", "basic", "header"}, Header: "X-Key", Prefix: "k "},
	}})
	rig.Must(f, err)
	var placeholder string
	for _, entry := range b.Environ(bundle) {
		if name, value, _ := strings.Cut(entry, "="); name == "TOK" {
			placeholder = value
		}
	}
	for _, value := range []string{"Bearer " + placeholder, "k " + placeholder, "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+placeholder)), "", " ", "Basic", placeholder} {
		for _, path := range []string{"/api", "/api/../x", "%2e", "//"} {
			f.Add("authorization", value, path)
			f.Add("x-key", value, path)
		}
	}
	f.Fuzz(func(t *testing.T, field, value, path string) {
		got := b.Restore(Destination{true, "d.test", 443, path}, field, value)
		if got == value {
			return
		}
		here := strings.HasPrefix(path, "/api") && slices.Contains([]string{"authorization", "x-key"}, strings.ToLower(field))
		rig.Is(t, here, true, "%q: %q at %q gives %q", field, value, path, got)
		if scheme, text, _ := strings.Cut(value, " "); strings.EqualFold(scheme, "basic") {
			decoded, err := base64.StdEncoding.DecodeString(strings.Trim(text, " "))
			rig.Is(t, err == nil && strings.Contains(string(decoded), placeholder), true, "%q gives %q", value, got)
		} else if !strings.Contains(value, placeholder) || strings.Contains(got, placeholder) {
			t.Errorf("%q gives %q", value, got)
		}
	})
}

// FuzzDestination: a destination that is taken is one that its own text leads to, and has nothing
// that a URL hides a host with.
func FuzzDestination(f *testing.F) {
	for _, seed := range []string{"https://d.test", "d.test:8443/a/b", "*.d.test", "http://127.0.0.1:1/x", "http://[::1]/", "https://a@b", "https://d.test/..", "//", "https://d.test:", "localhost"} {
		f.Add(seed, "/a/b")
	}
	f.Fuzz(func(t *testing.T, text, path string) {
		p, err := parsePlace(text)
		if err != nil {
			return
		}
		rig.Is(t, (p.tls || p.loopback()) && p.port > 0, true, "%q is %+v", text, p)
		rig.Is(t, strings.ContainsAny(text, "@?#") || strings.HasSuffix(p.path, "/"), false, "%q is %+v", text, p)
		to := Destination{TLS: p.tls, Host: p.host, Port: p.port, Path: p.path + path}
		if p.wildcard {
			to.Host = "x." + p.host
		}
		if p.contains(to) && p.path != "" && (path != "" && path[0] != '/' || strings.Contains(path, "/../") || strings.Contains(strings.ToLower(path), "%2e")) {
			t.Errorf("%q contains %q", text, to.Path)
		}
	})
}

// BenchmarkNew is what masking adds to the start of a command.
func BenchmarkNew(b *testing.B) {
	environ := []string{"TOK=" + secret, "GITHUB_TOKEN=" + github, "OPENAI_API_KEY=" + openai}
	for i := range 60 {
		environ = append(environ, "VARIABLE_"+strings.Repeat("X", i%7)+"=/usr/local/lib/some/path:/usr/lib/another/path:"+strings.Repeat("x", i))
	}
	for b.Loop() {
		broker, err := New(Config{Environ: environ, Providers: mine})
		rig.Must(b, err)
		if len(broker.Environ(bundle)) < len(environ) {
			b.Fatal("variables are missing")
		}
	}
}
