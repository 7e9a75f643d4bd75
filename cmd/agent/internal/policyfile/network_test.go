package policyfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

const example = `
allow = ["packages.example.net", "*.example.org:443", "packages.example.net"]
deny  = ["internal.example.org"]
ask   = ["github.com"]      # the client has to be asked
ports = [443, 80, 443]
local = true
upstream = "http://proxy.example.org:3128"
tcp_upstream = "tcp.example.org:3128"

[masking.forge]
env = ["FORGE_TOKEN"]
patterns = ["fg_[a-z0-9]{40}"]
url_prefixes = ["https://forge.example.org/api"]
auth = ["bearer", "header"]
header = "x-token"
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.toml")
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestRead(t *testing.T) {
	t.Parallel()
	got, err := ReadNetwork(write(t, example))
	rig.Must(t, err)
	want := &agent.NetworkPolicy{
		Allow: []string{"*.example.org:443", "packages.example.net"}, Deny: []string{"internal.example.org"}, Ask: []string{"github.com"},
		Ports: []uint16{80, 443}, Local: true, Upstream: "http://proxy.example.org:3128", TCPUpstream: "tcp.example.org:3128",
		Masking: map[string]protocol.CredentialProvider{"forge": {
			Env: []string{"FORGE_TOKEN"}, Patterns: []string{"fg_[a-z0-9]{40}"}, URLPrefixes: []string{"https://forge.example.org/api"},
			Auth: []string{"bearer", "header"}, Header: new("x-token"),
		}},
	}
	rig.Same(t, "the result", want, got)
	empty := rig.Value(ReadNetwork(write(t, "")))
	rig.Is(t, empty.Upstream, "environment", "the upstream of an empty file")
}

func TestReadErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"\nalow = []\n", ":2: unknown key alow, expected one of allow, deny, ask"},
		{"# alow\n[masking.x]\nhost = 1\n", ":3: unknown key masking.x.host, expected one of env"},
		{"allow = 5", ":1: allow is not a list of texts"},
		{"allow = [5]", ":1: allow has a member that is not a text"},
		{"\n\nallow = [\n\"ok.org\",\n\"a{b\"]", ":3: allow: unsupported domain pattern syntax: a{b"},
		{`deny = ["*"]`, ":1: deny: invalid value for network.denied_domains: *"},
		{"allow = [\"a.org\"]\nask = [\"a.org\"]", `:2: "a.org" is in both allow and ask`},
		{"ports = []", ":1: ports is not a list of 1 to 1024 ports"},
		{"ports = [0]", ":1: ports has 0, which is not 1 to 65535"},
		{"ports = [65536]", "which is not"},
		{`ports = ["443"]`, "which is not"},
		{`local = "yes"`, ":1: local is not true or false"},
		{`tcp_upstream = "x"`, ":1: tcp_upstream is not HOST:PORT"},
		{`upstream = "socks5://x:1"`, ":1: upstream is not environment, none or http://HOST:PORT"},
		{`upstream = "http://u:geheim@"`, "upstream is not environment, none"},
		{`masking = 1`, ":1: masking is not a table"},
		{"\n[masking.x]\nenv = [\"A\"]\npatterns = [\"[a-z]{9}\"]", ":2: masking.x: it has no destination"},
		{"[masking.x]\nenv = [\"A\"]\npatterns = [\"(\"]\nurl_prefixes = [\"https://a.org\"]", ":1: masking.x: "},
		{"[masking.x]\nenv = [\"A\"]\npatterns = [\"[a-z]{9}\"]\nurl_prefixes = [\"ftp://a.org\"]", ":1: masking.x: "},
		{"[masking.x]\nenv = [\"A\"]\npatterns = [\"[a-z]{9}\"]\nurl_prefix_from_env = \"B\"\nauth = [\"digest\"]", `:1: masking.x: auth "digest" is not one of`},
		{"upstream = \"http://u:geheim@a\"b", ":1: not TOML"},
		{"allow = [", ":1: "},
		{"allow = []\nallow = []", ":2: "},
		{"x = \"\xff\"", " is not UTF-8"},
		{"a = " + strings.Repeat("[", 50), "nested deeper than 8"},
		{"#" + strings.Repeat("x", maxFile), " is longer than 1048576 bytes"},
	} {
		path := write(t, tt.text)
		_, err := ReadNetwork(path)
		if err == nil || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%.60q: %v, want %s", tt.text, err, tt.want)
		}
	}
}

// TestReadPipe: a pipe, which is empty when the file is read again, is none; nor is it waited for.
func TestReadPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.toml")
	rig.Must(t, syscall.Mkfifo(path, 0o600))
	rig.Is(t, rig.Err(ReadNetwork(path)), paths.ErrNotRegular, "")
}

func TestChanges(t *testing.T) {
	t.Parallel()
	read := func(text string) *agent.NetworkPolicy {
		return rig.Value(parse("policy", text))
	}
	old := read(example)
	for _, tt := range []struct{ next, want string }{
		{example, ""},
		{strings.Replace(example, `"github.com"`, `"gitlab.com"`, 1), "ask +gitlab.com -github.com"},
		{strings.Replace(strings.Replace(example, "443, 80, 443", "443, 8080", 1), "true", "false", 1), "ports +8080 -80; local false"},
		{strings.Replace(example, "proxy.", "other.", 1), "another upstream"},
		{strings.Replace(example, "tcp.", "other.", 1), "another tcp_upstream"},
		{strings.Replace(example, "x-token", "y-token", 1), "other masking"},
	} {
		rig.Is(t, changes(old, read(tt.next)), tt.want, "the result")
	}
	var many strings.Builder
	for i := range 30 {
		many.WriteString(`"h` + strings.Repeat("x", i) + `.org",`)
	}
	got := changes(read(""), read("allow = ["+many.String()+"]"))
	rig.Is(t, strings.HasSuffix(got, " and 10 more"), true, "30 new patterns: %q", got)
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{example, "", "allow = [\"a\"]\nallow = 1", "[masking]\nx.env = [\"A\"]", "a.b.c = 1", "ports = [99999999999999999999]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse("policy", text)
		if err != nil {
			return
		}
		_, err = agent.NewNetwork(p, nil)
		rig.Is(t, err == nil && changes(p, p) == "", true, "%+v", p)
	})
}
