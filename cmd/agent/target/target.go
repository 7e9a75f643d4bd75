// Package target is where a command of the command line does its work: the flags that
// name an agent, by its URL or behind a registry, and how it is reached.
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
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

const (
	// ClientName is how the command line names itself to an agent.
	ClientName = "execagent-exec"
	// RegistryTokenName is the variable with the token of a harness. As with the
	// other keys, no command inherits it (procs.Denied).
	RegistryTokenName = "AGENT_REGISTRY_TOKEN"
	// maxToken is how long a token file may be, in bytes.
	maxToken = 64 << 10
)

// Flags name an agent.
type Flags struct {
	URL       string `env:"AGENT_URL" name:"url" placeholder:"URL" help:"Agent to run the command on, ws://HOST:PORT, HOST:PORT or wss://. Without it an agent is embedded."`
	TokenFile string `env:"AGENT_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the bearer token for --url."`

	Registry          string  `env:"AGENT_REGISTRY" placeholder:"URL" help:"Base URL of the registry through which the agent is reached. It needs a token in CODEX_API_KEY or AGENT_REGISTRY_TOKEN."`
	EnvironmentID     *string `env:"AGENT_ENVIRONMENT_ID" name:"environment-id" placeholder:"ID" help:"Environment that --registry is asked for."`
	RegistryTokenFile string  `env:"AGENT_REGISTRY_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the token for --registry, instead of the variables."`

	Wait    *time.Duration `env:"AGENT_WAIT" placeholder:"DURATION" help:"How long to try to connect; 0 tries once. Given, it counts for every failure; by default 30s for those that pass by themselves: nobody is connected to the environment, or a server is busy."`
	Timeout time.Duration  `env:"AGENT_TIMEOUT" placeholder:"DURATION" help:"End everything after this time, with exit code 124."`

	// The variable is not the server's AGENT_LOG_LEVEL. A command that an agent
	// started may have inherited that one, and if it calls agent exec, its output
	// must not be mixed with a log.
	LogLevel string `default:"" enum:",debug,info,warn,error" env:"AGENT_EXEC_LOG_LEVEL" placeholder:"LEVEL" help:"What to log on standard error, between what the command writes there: debug, info, warn or error. Default: nothing."`
}

// Elsewhere tells whether the agent is outside this process.
func (f *Flags) Elsewhere() bool { return f.URL != "" || f.Registry != "" }

// Validate finds flags that contradict each other. The parser calls it.
func (f *Flags) Validate() error {
	switch {
	case f.URL != "" && f.Registry != "":
		return errors.New("--url and --registry exclude each other")
	case f.TokenFile != "" && f.URL == "":
		return errors.New("--token-file needs --url")
	case f.RegistryTokenFile != "" && f.Registry == "":
		return errors.New("--registry-token-file needs --registry")
	case f.Registry != "" && f.EnvironmentID == nil:
		return errors.New("--registry needs --environment-id")
	case f.Wait != nil && *f.Wait < 0:
		return fmt.Errorf("--wait %v is negative", *f.Wait)
	case f.Timeout < 0:
		return fmt.Errorf("--timeout %v is negative", f.Timeout)
	}
	return nil
}

// config says how a client reaches the agent. failed hears of attempts that are to be
// repeated, see [remote.Failed].
func (f *Flags) config(sys program.System, failed func(error) bool) (client.Config, error) {
	if f.URL != "" {
		f.URL = dialURL(f.URL)
		return f.byURL(sys)
	}
	return f.byRegistry(sys, failed)
}

// byRegistry asks the registry for the executor of the environment and connects to
// it through the relay, as a harness does (remote.md 9).
func (f *Flags) byRegistry(sys program.System, failed func(error) bool) (client.Config, error) {
	token, err := f.registryToken(sys)
	if err != nil {
		return client.Config{}, err
	}
	lookup := func(name string) string {
		value, _ := sys.Lookup(name)
		return value
	}
	roots, err := Roots(f.Registry, lookup("SSL_CERT_FILE"), lookup("CODEX_CA_CERTIFICATE"))
	if err != nil {
		return client.Config{}, err
	}
	return remote.Registry(f.Registry, strings.TrimSpace(*f.EnvironmentID), token,
		remote.Roots(roots), remote.Logger(f.Logger(sys)), remote.Failed(failed), remote.Settings(client.Config{ClientName: ClientName}))
}

// registryToken returns the token by which a registry lets a harness connect.
func (f *Flags) registryToken(sys program.System) (string, error) {
	if f.RegistryTokenFile != "" {
		return readToken(sys, f.RegistryTokenFile)
	}
	for _, name := range []string{RegistryTokenName, "CODEX_API_KEY"} {
		if token, _ := sys.Lookup(name); strings.TrimSpace(token) != "" {
			return strings.TrimSpace(token), nil
		}
	}
	return "", fmt.Errorf("--registry needs a token: set %s or CODEX_API_KEY, or name a file with --registry-token-file", RegistryTokenName)
}

// byURL connects to --url and shows the token of --token-file, if that is given.
// The file is read now, not with each connection.
func (f *Flags) byURL(sys program.System) (client.Config, error) {
	cfg := client.URL(f.URL, client.Settings(client.Config{ClientName: ClientName}))
	if f.TokenFile == "" {
		return cfg, nil
	}
	token, err := readToken(sys, f.TokenFile)
	if err != nil {
		return client.Config{}, err
	}
	// Who names a file with a token and a URL without TLS on the command line means it,
	// which client.Token does not take for granted.
	header := transport.DialConfig{Header: http.Header{"Authorization": {"Bearer " + token}}}
	cfg.Dial = func(ctx context.Context) (rpc.Conn, error) {
		conn, err := transport.Dial(ctx, f.URL, header)
		if err != nil {
			return nil, err // not conn: a nil *WebSocket makes an rpc.Conn that is not nil
		}
		return conn, nil
	}
	return cfg, nil
}

// readToken reads a bearer token. Its errors never quote the content of the file.
func readToken(sys program.System, file string) (string, error) {
	if err := secretfile.Exposed(file); err != nil {
		program.Complain(sys.Stderr, err)
	}
	content, err := program.ReadFile(file, maxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	switch {
	case token == "":
		return "", fmt.Errorf("token file %s is empty", file)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("token file %s holds characters that no token has", file)
	}
	return token, nil
}

// Logger logs from --log-level on, to standard error. Without the flag it logs
// nothing, since standard error belongs to the command.
func (f *Flags) Logger(sys program.System) *slog.Logger {
	if f.LogLevel == "" {
		return slog.New(slog.DiscardHandler)
	}
	return program.Logger(sys.Stderr, f.LogLevel, "text")
}
