package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	harness "github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

const (
	clientName = "execagent-exec"
	// maxToken is how long a token file may be, in bytes.
	maxToken = 64 << 10
	// registryTokenName is the variable with the token of a harness. As with the
	// other keys, no command inherits it (procs.Denied).
	registryTokenName = "AGENT_REGISTRY_TOKEN"
)

// connect sets e.client: a client of the agent at --url, of the one behind
// --registry, or else of an agent that it starts in this process. The caller calls
// disconnect, which also ends an agent in this process.
func (e *execution) connect(ctx context.Context) (disconnect func(), err error) {
	switch {
	case e.flags.URL != "":
		cfg, err := e.byURL()
		if err != nil {
			return nil, err
		}
		return e.connectBy(ctx, cfg)
	case e.flags.Registry != "":
		cfg, err := e.byRegistry()
		if err != nil {
			return nil, err
		}
		return e.connectBy(ctx, cfg)
	}
	embedded := e.embed()
	closeClient, err := e.connectBy(ctx, client.Config{Dial: embedded.dial, Single: true, ClientName: clientName})
	if err != nil {
		embedded.close()
		return nil, err
	}
	return func() {
		closeClient()
		embedded.close()
	}, nil
}

// connectBy sets e.client.
func (e *execution) connectBy(ctx context.Context, cfg client.Config) (disconnect func(), err error) {
	if e.client, err = client.Connect(ctx, cfg); err != nil {
		return nil, err
	}
	return func() { _ = e.client.Close() }, nil // the exit code of the command counts
}

// byRegistry asks the registry for the executor of the environment and connects to
// it through the relay, as a harness does (remote.md 9).
func (e *execution) byRegistry() (client.Config, error) {
	token, err := e.registryToken()
	if err != nil {
		return client.Config{}, err
	}
	lookup := func(name string) string {
		value, _ := e.sys.lookup(name)
		return value
	}
	roots, err := trustedRoots(e.flags.Registry, lookup("SSL_CERT_FILE"), lookup("CODEX_CA_CERTIFICATE"))
	if err != nil {
		return client.Config{}, err
	}
	return harness.Registry(e.flags.Registry, strings.TrimSpace(*e.flags.EnvironmentID), token,
		harness.Roots(roots), harness.Logger(e.logger()), harness.Settings(client.Config{ClientName: clientName}))
}

// registryToken returns the token by which a registry lets a harness connect.
func (e *execution) registryToken() (string, error) {
	if e.flags.RegistryTokenFile != "" {
		return e.readToken(e.flags.RegistryTokenFile)
	}
	for _, name := range []string{registryTokenName, "CODEX_API_KEY"} {
		if token, _ := e.sys.lookup(name); strings.TrimSpace(token) != "" {
			return strings.TrimSpace(token), nil
		}
	}
	return "", fmt.Errorf("--registry needs a token: set %s or CODEX_API_KEY, or name a file with --registry-token-file", registryTokenName)
}

// byURL connects to --url and shows the token of --token-file, if that is given.
// The file is read now, not with each connection.
func (e *execution) byURL() (client.Config, error) {
	cfg := client.URL(e.flags.URL, client.Settings(client.Config{ClientName: clientName}))
	if e.flags.TokenFile == "" {
		return cfg, nil
	}
	token, err := e.readToken(e.flags.TokenFile)
	if err != nil {
		return client.Config{}, err
	}
	// Who names a file with a token and a URL without TLS on the command line means it,
	// which client.Token does not take for granted.
	header := transport.DialConfig{Header: http.Header{"Authorization": {"Bearer " + token}}}
	cfg.Dial = func(ctx context.Context) (rpc.Conn, error) {
		conn, err := transport.Dial(ctx, e.flags.URL, header)
		if err != nil {
			return nil, err // not conn: a nil *WebSocket makes an rpc.Conn that is not nil
		}
		return conn, nil
	}
	return cfg, nil
}

// readToken reads a bearer token. Its errors never quote the content of the file.
func (e *execution) readToken(file string) (string, error) {
	if err := secretfile.Exposed(file); err != nil {
		complain(e.sys.stderr, err)
	}
	content, err := readBounded(file, maxToken)
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

// logger logs from --log-level on, to standard error. Without the flag it logs
// nothing, since standard error belongs to the command.
func (e *execution) logger() *slog.Logger {
	if e.flags.LogLevel == "" {
		return slog.New(slog.DiscardHandler)
	}
	return (&logFlags{LogLevel: e.flags.LogLevel}).logger(e.sys.stderr)
}

// embedded is an agent in this process. Its one client reaches it by rpc.Pipe.
type embedded struct {
	agent  *agent.Agent
	guard  *procs.Guard
	reaper *procs.Reaper
	ended  chan struct{} // closed when the connection has ended
}

// embed starts an agent. The caller calls dial, and then close.
func (e *execution) embed() *embedded {
	m := &embedded{ended: make(chan struct{})}
	m.guard, m.reaper = newGuard()
	m.agent = agent.New(agent.Config{
		Confines: true,
		Version:  executorVersion,
		Environ:  e.sys.environ,
		Logger:   e.logger(),
		Reaper:   m.reaper,
		Guard:    m.guard,
	})
	return m
}

// dial connects to the agent. It may be called once.
func (m *embedded) dial(context.Context) (rpc.Conn, error) {
	ours, theirs := rpc.Pipe()
	go func() {
		defer close(m.ended)
		// The error needs no report: the client sees the connection end and reports
		// that.
		_ = m.agent.ServeConn(context.Background(), theirs)
	}()
	return ours, nil
}

// close waits until the client has closed the connection, then kills what is left
// of the command. Without an earlier dial it would wait for ever.
func (m *embedded) close() {
	<-m.ended
	// There is nothing left to do about an error, and the command's exit code counts.
	_ = errors.Join(m.agent.Close(), m.guard.Close())
	m.reaper.Close()
}
