package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

const (
	clientName = "execagent-exec"
	// maxToken is how long a token file may be, in bytes.
	maxToken = 64 << 10
)

// connect connects to the agent at the URL, or to one that it embeds. The
// caller calls disconnect, which ends the embedded one too.
func (e *execution) connect(ctx context.Context) (disconnect func(), err error) {
	if e.flags.URL != "" {
		dial, err := e.dialer()
		if err != nil {
			return nil, err
		}
		if e.client, err = client.Connect(ctx, client.Config{Dial: dial, ClientName: clientName}); err != nil {
			return nil, err
		}
		return func() { _ = e.client.Close() }, nil
	}
	embedded := e.embed()
	e.client, err = client.Connect(ctx, client.Config{Dial: embedded.dial, ClientName: clientName})
	if err != nil {
		embedded.close()
		return nil, err
	}
	return func() {
		_ = e.client.Close()
		embedded.close()
	}, nil
}

// dialer dials the URL, with the token as its bearer.
func (e *execution) dialer() (func(context.Context) (rpc.Conn, error), error) {
	var cfg transport.DialConfig
	if e.flags.TokenFile != "" {
		token, err := readToken(e.flags.TokenFile)
		if err != nil {
			return nil, err
		}
		cfg.Header = http.Header{"Authorization": {"Bearer " + token}}
	}
	return func(ctx context.Context) (rpc.Conn, error) {
		conn, err := transport.Dial(ctx, e.flags.URL, cfg)
		if err != nil {
			return nil, err // not conn, a nil that would not be nil
		}
		return conn, nil
	}, nil
}

// readToken reads a bearer token. What it holds is never repeated.
func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	switch {
	case len(content) > maxToken:
		return "", fmt.Errorf("token file %s exceeds %d bytes", file, maxToken)
	case token == "":
		return "", fmt.Errorf("token file %s is empty", file)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("token file %s holds characters that no token has", file)
	}
	return token, nil
}

// embedded is an agent in this process, at the other end of a pipe.
type embedded struct {
	agent  *agent.Agent
	guard  *procs.Guard
	reaper *procs.Reaper
	ended  chan struct{}
}

func (e *execution) embed() *embedded {
	m := &embedded{ended: make(chan struct{})}
	m.guard, m.reaper = newGuard()
	m.agent = agent.New(agent.Config{
		Confines: true,
		Version:  executorVersion,
		Environ:  e.sys.environ,
		Logger:   slog.New(slog.NewTextHandler(e.sys.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Reaper:   m.reaper,
		Guard:    m.guard,
	})
	return m
}

// dial connects to the agent; once only.
func (m *embedded) dial(context.Context) (rpc.Conn, error) {
	ours, theirs := rpc.Pipe()
	go func() {
		defer close(m.ended)
		// The client sees the end of the connection, and why.
		_ = m.agent.ServeConn(context.Background(), theirs)
	}()
	return ours, nil
}

// close kills what is left of the command.
func (m *embedded) close() {
	<-m.ended
	_ = errors.Join(m.agent.Close(), m.guard.Close()) // neither leaves anything that could be done
	m.reaper.Close()
}
