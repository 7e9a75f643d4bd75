package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

const (
	// ClientName is how the command line names itself to an agent.
	ClientName = "execagent-exec"
	// RegistryTokenName is the variable with the token of a harness. As with the
	// other keys, no command inherits it (procs.Denied).
	RegistryTokenName = "AGENT_REGISTRY_TOKEN"
	// registryName is the variable of --registry.
	registryName = "AGENT_REGISTRY"
)

// Flags name an agent.
type Flags struct {
	Context *string `env:"AGENT_CONTEXT" placeholder:"NAME" complete:"contexts" help:"Context that names the agent (see agent context). Default: the current context, unless --url, --registry or one of their variables is set. An empty name means no context."`
	Config  string  `env:"AGENT_CONFIG" type:"path" placeholder:"FILE" help:"File with contexts and options. Default: execagent/config.toml in XDG_CONFIG_HOME or ~/.config."`

	URL       string `env:"AGENT_URL" name:"url" placeholder:"URL" help:"URL of the agent: ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH. If no agent is named and there are no contexts, exec, apply-patch, find, grep and ports work here."`
	TokenFile string `env:"AGENT_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the bearer token for --url."`
	TLSFlags

	Registry          string  `env:"AGENT_REGISTRY" placeholder:"URL" help:"Base URL of the registry through which to reach the agent. It needs a token in CODEX_API_KEY or AGENT_REGISTRY_TOKEN."`
	EnvironmentID     *string `env:"AGENT_ENVIRONMENT_ID" name:"environment-id" placeholder:"ID" complete:"environments" help:"Environment to use at the registry of --registry or of the context."`
	RegistryTokenFile string  `env:"AGENT_REGISTRY_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the token for --registry, instead of the variables."`
	// Its variable differs from the variable of the executor's flag. A command that an executor
	// started may have inherited the executor's variable, which must not choose the transport here.
	Transport string `default:"" enum:",noise,direct" env:"AGENT_REGISTRY_TRANSPORT" placeholder:"NAME" help:"How to reach the agent through the registry: noise, the default, is encrypted end to end. With direct, whoever runs the registry, or a proxy where TLS ends, can read and change everything. One never replaces the other. A context can set it."`

	Wait    *time.Duration `env:"AGENT_WAIT" placeholder:"DURATION" help:"How long to try to connect; 0 tries once. If it is given, every failure except a refused credential is tried again. Default: 30s, only for failures that can pass by themselves, such as a busy server or an environment without an executor."`
	Timeout time.Duration  `env:"AGENT_TIMEOUT" placeholder:"DURATION" help:"End after this time, with exit code 124."`

	// The variable differs from the server's AGENT_LOG_LEVEL. A command that an agent started may
	// have inherited the server's variable. If that command calls agent exec, its output must not
	// be mixed with a log.
	LogLevel string `default:"" enum:",debug,info,warn,error" env:"AGENT_EXEC_LOG_LEVEL" placeholder:"LEVEL" help:"What to log on standard error, between what the command writes there: debug, info, warn or error. Default: nothing."`

	chosen *chosen // nil: not looked for yet
}

// Elsewhere reports whether the agent is outside this process. It returns true also if the context
// of the agent cannot be found; then [Flags.Connect] fails and says why.
func (f *Flags) Elsewhere() bool {
	return f.choose().err != nil || f.URL != "" || f.Registry != "" // which choose fills in
}

// Check finds flags that contradict each other. The parser calls it.
func (f *Flags) Check() error {
	c := f.choose()
	switch {
	case f.URL != "" && f.Registry != "":
		return errors.New("--url and --registry cannot be used together")
	case f.Context != nil && *f.Context != "" && c.context == nil && c.err == nil:
		return errors.New("--context cannot be used with --url or --registry")
	case c.err != nil:
		// The command line may be right, and Connect returns the error.
	case c.context != nil && f.Registry != "" && f.EnvironmentID == nil:
		return fmt.Errorf("context %s names a registry but no environment: name one with --environment-id", c.context.Name)
	case f.TokenFile != "" && f.URL == "":
		return errors.New("--token-file needs --url")
	case f.RegistryTokenFile != "" && f.Registry == "":
		return errors.New("--registry-token-file needs --registry")
	case f.Transport != "" && f.Registry == "":
		return errors.New("--transport needs --registry")
	case f.Registry != "" && f.EnvironmentID == nil:
		return errors.New("--registry needs --environment-id")
	case f.Registry != "" && !strings.Contains(f.Registry, "://"):
		return fmt.Errorf("--registry %s is not a URL: write https://HOST, or http:// for this machine", f.Registry)
	}
	if c.err == nil {
		if err := f.CheckTLS(f.URL, f.Registry); err != nil {
			return err
		}
	}
	switch {
	case f.URL != "" && c.context == nil:
		if err := CheckURL(f.URL); err != nil {
			return err
		}
	}
	switch {
	case f.Wait != nil && *f.Wait < 0:
		return fmt.Errorf("--wait %v is negative", *f.Wait)
	case f.Timeout < 0:
		return fmt.Errorf("--timeout %v is negative", f.Timeout)
	}
	return nil
}

// config returns the configuration of a client of the agent. failed is called with the error of
// each attempt that is repeated, see [remote.Failed].
func (f *Flags) config(ctx context.Context, sys program.System, failed func(error) bool) (client.Config, error) {
	switch {
	case f.choose().err != nil:
		return client.Config{}, f.chosen.err
	case f.URL != "":
		return f.byURL(ctx, sys)
	}
	return f.byRegistry(ctx, sys, failed)
}

// byRegistry asks the registry for the executor of the environment and connects to
// it, through the relay unless --transport says otherwise, as a harness does (remote.md 9).
func (f *Flags) byRegistry(ctx context.Context, sys program.System, failed func(error) bool) (client.Config, error) {
	token, err := f.registryToken(ctx, sys)
	if err != nil {
		return client.Config{}, err
	}
	roots, err := rootsFor(sys, f.Registry, f.TLSCA)
	if err != nil {
		return client.Config{}, err
	}
	options := []remote.Option{
		remote.Roots(roots), remote.Logger(f.Logger(sys)), remote.Failed(failed), remote.Settings(client.Config{ClientName: ClientName}),
	}
	if f.Transport == "direct" {
		options = append(options, remote.Direct())
	}
	return remote.Registry(f.Registry, strings.TrimSpace(*f.EnvironmentID), token, options...)
}

// registryToken returns the token that lets a harness connect through a registry. Tokens in
// variables are used for a registry that the command line or a variable names, never for the
// registry of a context. If a variable names a registry, the tokens are used only for that
// registry.
func (f *Flags) registryToken(ctx context.Context, sys program.System) (string, error) {
	if f.RegistryTokenFile != "" {
		return ReadToken(sys, f.RegistryTokenFile)
	}
	if token, err := f.choose().once(ctx, sys); token != "" || err != nil {
		return token, err
	}
	if c := f.chosen.context; c != nil {
		return "", fmt.Errorf("context %s has no token: give it a token_file or a token_command", c.Name)
	}
	if known, _ := sys.Lookup(registryName); known != "" && known != f.Registry {
		return "", fmt.Errorf("--registry needs a token: name a file with --registry-token-file, because the tokens in variables are for %s", registryName)
	}
	for _, name := range []string{RegistryTokenName, "CODEX_API_KEY"} {
		if token, _ := sys.Lookup(name); strings.TrimSpace(token) != "" {
			return strings.TrimSpace(token), nil
		}
	}
	return "", fmt.Errorf("--registry needs a token: set %s or CODEX_API_KEY, or name a file with --registry-token-file", RegistryTokenName)
}

// dialURL returns the URL that --url, or the context, means.
func (f *Flags) dialURL() string { return DialURL(f.secure(f.URL)) }

// byURL connects to --url with the token of --token-file, or of the context. A file is read now,
// not for each connection. The token command of a context runs again if the server no longer
// accepts the token.
func (f *Flags) byURL(ctx context.Context, sys program.System) (client.Config, error) {
	secure, err := f.TLSFlags.config(sys)
	if err != nil {
		return client.Config{}, err
	}
	url := f.dialURL()
	cfg := client.URL(url, client.Settings(client.Config{ClientName: ClientName}), client.TLS(secure))
	var token string
	if f.TokenFile != "" {
		token, err = ReadToken(sys, f.TokenFile)
	} else {
		token, err = f.choose().once(ctx, sys)
	}
	if err != nil || token == "" {
		return cfg, err
	}
	// A user who names a token file and a URL without TLS intends this, but client.Token would
	// refuse it.
	dial := func(ctx context.Context) (rpc.Conn, error) {
		config := transport.DialConfig{Header: http.Header{"Authorization": {"Bearer " + token}}, TLS: secure}
		conn, err := transport.Dial(ctx, url, config)
		if err != nil {
			return nil, err // not conn, because a nil *WebSocket makes an rpc.Conn that is not nil
		}
		return conn, nil
	}
	accepted := false
	cfg.Dial = func(ctx context.Context) (rpc.Conn, error) {
		conn, err := dial(ctx)
		status, refused := errors.AsType[*transport.StatusError](err)
		if accepted && refused && status.Status == http.StatusUnauthorized && f.TokenFile == "" && f.chosen.renews() {
			accepted = false
			if token, err = f.chosen.token(ctx, sys); err != nil {
				return nil, err
			}
			conn, err = dial(ctx)
		}
		accepted = accepted || err == nil
		return conn, err
	}
	return cfg, nil
}

// Logger logs messages of --log-level and above to standard error. Without the flag it logs
// nothing, because standard error belongs to the command.
func (f *Flags) Logger(sys program.System) *slog.Logger {
	if f.LogLevel == "" {
		return slog.New(slog.DiscardHandler)
	}
	return program.Logger(sys.Stderr, f.LogLevel, "text")
}
