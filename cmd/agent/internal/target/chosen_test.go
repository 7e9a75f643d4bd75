package target

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestTokenRenewed: when a token of a command is no longer taken, the command is asked again,
// once, and not when its first token is refused.
func TestTokenRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret, ran, config := filepath.Join(dir, "secret"), filepath.Join(dir, "ran"), filepath.Join(dir, "config.toml")
	write := func(name, text string) {
		t.Helper()
		rig.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	runs := func() int {
		t.Helper()
		return len(rig.Value(os.ReadFile(ran)))
	}
	listen := func(url, token string) *transport.Listener {
		t.Helper()
		file := filepath.Join(t.TempDir(), "token")
		write(file, token)
		auth := rig.Value((transport.AuthOptions{Mode: "capability-token", TokenFile: file}).Authenticator())
		l := rig.Value(transport.Listen(transport.Config{URL: url, Auth: auth}))
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	write(secret, "one")
	url := "ws://" + rig.FreeAddress(t)
	l := listen(url, "one")
	write(config, "[contexts.a]\nurl = '"+url+"'\ntoken_command = ['sh', '-c', 'printf x >>"+ran+"; cat "+secret+"']\n")
	sys := program.System{Environ: os.Environ(), Stderr: os.Stderr}
	f := &Flags{Context: new("a"), Config: config}
	cfg := rig.Value(f.config(t.Context(), sys, nil))
	dial := func() error {
		conn, err := cfg.Dial(t.Context())
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	for range 2 {
		rig.Must(t, dial())
	}
	rig.Is(t, runs(), 1, "runs for the same token")
	rig.Close(t, l)
	l = listen(url, "two")
	write(secret, "two")
	rig.Check(t, dial())
	rig.Is(t, runs(), 2, "runs with another token")
	rig.Close(t, l)
	listen(url, "three")
	for range 2 { // the command has no better one
		if err := dial(); err == nil || !strings.Contains(err.Error(), "401") || runs() != 3 {
			t.Errorf("without a token that is taken: %v, after %d runs", err, runs())
		}
	}
}

// TestTokenOfOther: the key of a variable goes to no registry of a context, and to none that is
// not the one that the variables name, where they name one.
func TestTokenOfOther(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.WriteFile(config, []byte("[contexts.other]\nregistry = 'https://other'\nenvironment_id = 'e'\n"), 0o600))
	const none, elsewhere = "context other has no token: give it a token_file or a token_command",
		"--registry needs a token: name a file with --registry-token-file, because the tokens in variables are for AGENT_REGISTRY"
	for _, key := range []string{RegistryTokenName, "CODEX_API_KEY"} {
		for _, tt := range []struct {
			flags    Flags
			variable string
			want     string
		}{
			{Flags{Context: new("other"), Config: config}, "", none},
			{Flags{Context: new("other"), Config: config}, "https://prod", none},
			{Flags{Context: new("other"), Config: config}, "https://other", none},
			{Flags{Registry: "https://other"}, "https://prod", elsewhere},
			{Flags{Registry: "https://prod"}, "https://prod", "key"},
			{Flags{Registry: "https://other"}, "", "key"},
		} {
			sys := program.System{Environ: []string{"AGENT_REGISTRY=" + tt.variable, key + "=key"}, Stderr: os.Stderr}
			tt.flags.choose()
			got, err := tt.flags.registryToken(t.Context(), sys)
			if err != nil {
				got = err.Error()
			}
			rig.Is(t, got, tt.want, "%s, AGENT_REGISTRY=%s, registry %s", key, tt.variable, tt.flags.Registry)
			if _, err := tt.flags.Environments(t.Context(), sys); tt.want == none && (err == nil || err.Error() != none) {
				t.Errorf("environments: %v", err)
			}
		}
	}
}
