package executor

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// right returns flags that are complete, with a change.
func right(change func(*Flags)) *Flags {
	f := &Flags{Remote: new("https://registry.example.com"), EnvironmentID: new("e")}
	change(f)
	return f
}

// TestUsage: flags that contradict each other, or lack one, and of which none means anything
// without --remote.
func TestUsage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Flags)
		want   string
	}{
		"right":                {func(*Flags) {}, ""},
		"no remote":            {func(f *Flags) { f.Remote = nil }, ""},
		"no id":                {func(f *Flags) { f.EnvironmentID = nil }, "--remote needs --environment-id"},
		"two credentials":      {func(f *Flags) { f.APIKeyFile, f.AWSSigV4 = "x", true }, "--api-key-file and --aws-sigv4 cannot be used together"},
		"two transports":       {func(f *Flags) { f.Transport, f.RemoteTransport = "noise", "direct" }, "different transports"},
		"direct unsigned":      {func(f *Flags) { f.RemoteTransport = "direct" }, "needs --aws-sigv4"},
		"direct, ours":         {func(f *Flags) { f.Transport = "direct" }, ""},
		"a region for nothing": {func(f *Flags) { f.AWSRegion = "r" }, "need --aws-sigv4"},
		"an account":           {func(f *Flags) { f.ChatGPTAccountID = "a" }, "--chatgpt-account-id needs --chatgpt-token-stdin"},
		"a region, no remote":  {func(f *Flags) { f.Remote, f.AWSRegion = nil, "r" }, "--aws-region needs --remote"},
		"a service, no remote": {func(f *Flags) { f.Remote, f.AWSService = nil, new("") }, "--aws-service needs --remote"},
		"a transport alone":    {func(f *Flags) { f.Remote, f.Transport = nil, "noise" }, "--transport needs --remote"},
		"a key, no remote":     {func(f *Flags) { f.Remote, f.APIKeyFile = nil, "x" }, "--api-key-file needs --remote"},
	} {
		rig.Says(t, right(tt.change).Usage(), tt.want, "%s", name)
	}
}

// TestConfiguration: what the flags ask for and cannot have is refused before anything is read
// from standard input, or sent.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Flags)
		want   string
	}{
		"right":                 {func(*Flags) {}, ""},
		"signed, not direct":    {func(f *Flags) { f.AWSSigV4 = true }, "only requests of the direct transport"},
		"signed and direct":     {func(f *Flags) { f.AWSSigV4, f.RemoteTransport = true, "direct" }, ""},
		"a blank service":       {func(f *Flags) { f.AWSSigV4, f.Transport, f.AWSService = true, "direct", new(" ") }, "--aws-service must not be empty"},
		"an id with a slash":    {func(f *Flags) { f.EnvironmentID = new("a/b") }, "--environment-id must be"},
		"blanks around the id":  {func(f *Flags) { f.EnvironmentID = new(" e ") }, ""},
		"plain http":            {func(f *Flags) { f.Remote = new("http://192.0.2.1") }, "plain http"},
		"an identity, and none": {func(f *Flags) { f.UseAgentIdentityAuth = true }, "CODEX_ACCESS_TOKEN"},
	} {
		err := rig.Err(NewRemote(program.System{}, right(tt.change), slog.New(slog.DiscardHandler)))
		rig.Says(t, err, tt.want, "%s", name)
	}
}

// TestSecrets: the one file with the credentials that are used is known, so that commands can be
// kept from it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	shared := filepath.Join(home, ".aws")
	rig.Must(t, os.Mkdir(shared, 0o700))
	shared = filepath.Join(shared, "credentials")
	rig.Must(t, os.WriteFile(shared, []byte("[p]\naws_access_key_id = a\naws_secret_access_key = b\n"), 0o600))
	signed := func(f *Flags) { f.AWSSigV4, f.Transport = true, "direct" }
	for name, tt := range map[string]struct {
		change  func(*Flags)
		environ string
		want    string
	}{
		"signed in":       {func(*Flags) {}, "", home + "/.codex/auth.json"},
		"a key":           {func(*Flags) {}, "CODEX_API_KEY=k", ""},
		"a file":          {func(f *Flags) { f.APIKeyFile = "/key" }, "CODEX_API_KEY=k", "/key"},
		"an identity":     {func(*Flags) {}, "CODEX_API_KEY=k OPENAI_FEDERATION_RULE_ID=r OPENAI_IDENTITY_TOKEN_FILE=/token", "/token"},
		"a flag":          {func(f *Flags) { f.APIKeyFile = "/key" }, "OPENAI_FEDERATION_RULE_ID=r", "/key"},
		"only a context":  {func(*Flags) {}, "CODEX_API_KEY=k OPENAI_WORKLOAD_IDENTITY_CONTEXT={}", ""},
		"standard input":  {func(f *Flags) { f.RegistrationBearerStdin = true }, "", ""},
		"shared files":    {func(f *Flags) { signed(f); f.AWSProfile = "p" }, "", shared},
		"keys in the way": {signed, "AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b", ""},
	} {
		f := right(tt.change)
		sys := program.System{Environ: append([]string{"HOME=" + home}, strings.Fields(tt.environ)...)}
		s, err := newSignIn(sys, f, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rig.Is(t, strings.Join(s.Secrets(f), " "), tt.want, "%s", name)
	}
}
