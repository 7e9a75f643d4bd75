package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// inForce is a policy without a folder.
func inForce(c *execpolicy.Current) *ExecPolicy { return &ExecPolicy{current: c} }

// TestReadPolicy: the folder of rules is hidden, and read again when that is asked for. What is
// wrong with it changes nothing.
func TestReadPolicy(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(text string) {
		rig.Must(t, os.WriteFile(filepath.Join(folder, "a.rules"), []byte(text), 0o600))
	}
	write(`prefix_rule(pattern=["id"], decision="forbidden")`)
	p, err := ReadPolicy(Rules{Folder: folder, Enforce: "start"}, nil)
	rig.Must(t, err)
	decision := func() string { return p.inForce().Policy().Start([]string{"id"}, nil).Decision.String() }
	rig.Is(t, decision(), "forbidden", "id is")
	rig.Is(t, p.folder()[0], folder, "hidden is")
	write("wrong")
	rig.Is(t, p.Reread() != nil, true, "wrong rules are refused")
	rig.Is(t, decision(), "forbidden", "id is then")
	write(`prefix_rule(pattern=["id"])`)
	rig.Check(t, p.Reread())
	rig.Is(t, decision(), "allow", "with other rules id is")
	for _, r := range []Rules{{}, {Folder: folder, Unmatched: "alow"}, {Folder: folder, Enforce: "everywhere"}} {
		rig.Is(t, rig.Err(ReadPolicy(r, slog.New(slog.DiscardHandler))) != nil, true, "%+v is refused", r)
	}
}

// TestNewNetwork: what a policy says of names, and of proxies on the way out.
func TestNewNetwork(t *testing.T) {
	t.Parallel()
	environ := []string{"HTTPS_PROXY=http://proxy.example.org:3128", "NO_PROXY=*"}
	for _, tt := range []struct {
		name     string
		policy   *NetworkPolicy
		environ  []string
		upstream bool
		through  bool
	}{
		{"no policy", nil, environ, true, false},
		{"no policy, no proxy", nil, []string{"PATH=/bin"}, false, false},
		{"zero", &NetworkPolicy{}, environ, true, false},
		{"environment", &NetworkPolicy{Upstream: "environment"}, environ, true, false},
		{"none", &NetworkPolicy{Upstream: "none"}, environ, false, false},
		{"a proxy", &NetworkPolicy{Upstream: "http://other.example.org:1"}, nil, true, true},
	} {
		n, err := NewNetwork(tt.policy, tt.environ)
		rig.Must(t, err)
		if o := n.operator; (o.Upstream != nil) != tt.upstream || o.Through != tt.through || (o.Ceiling == nil) != (tt.policy == nil) {
			t.Errorf("%s: %+v", tt.name, o)
		}
	}
	n, err := NewNetwork(&NetworkPolicy{
		Allow: []string{"*.example.org:443", "packages.example.net"}, Deny: []string{"internal.example.org"}, Ask: []string{"github.com"},
	}, nil)
	rig.Must(t, err)
	for host, want := range map[string]rules.Action{
		"packages.example.net": rules.Allow, "a.example.org": rules.Allow, "internal.example.org": rules.Deny, "github.com": rules.Ask,
	} {
		v := n.operator.Ceiling.Judge(rules.Request{Protocol: rules.Connect, Host: host, Port: 443, Method: "CONNECT"})
		rig.Is(t, v.Decision, want, "%s", host)
	}
	for want, p := range map[string]NetworkPolicy{
		"in two lists":                {Allow: []string{"a.org"}, Ask: []string{"a.org"}},
		"unsupported domain pattern":  {Allow: []string{"a{b"}},
		"upstream is not environment": {Upstream: "http://u:geheim@"},
		`masking "x"`:                 {Masking: map[string]protocol.CredentialProvider{"x": {Env: []string{"A"}}}},
	} {
		if _, err := NewNetwork(&p, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%+v: %v, want %s", p, err, want)
		}
	}
}

// TestZeroOperator: what no constructor has made, and so has no rules, is not taken for a word that
// allows everything.
func TestZeroOperator(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{"an ExecPolicy": {ExecPolicy: new(ExecPolicy)}, "a Network": {Network: new(Network)}} {
		func() {
			defer func() {
				why, _ := recover().(string)
				rig.Is(t, strings.Contains(why, name), true, "%s: %q", name, why)
			}()
			_ = New(cfg).Close()
		}()
	}
}
