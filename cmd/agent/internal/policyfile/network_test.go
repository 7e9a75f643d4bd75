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
	cases := append(rig.Rows(t, "testdata/network.txt", "errors", 2),
		[]string{"a = " + strings.Repeat("[", 50), "nested deeper than 8"},
		[]string{"#" + strings.Repeat("x", maxFile), " is longer than 1048576 bytes"})
	for _, row := range cases {
		text, want := row[0], row[1]
		path := write(t, text)
		_, err := ReadNetwork(path)
		if err == nil || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%.60q: %v, want %s", text, err, want)
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
