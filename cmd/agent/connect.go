package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// connectFlags name the agent that is offered, and the place.
type connectFlags struct {
	target.Flags
	Listen string `default:"stdio" env:"AGENT_CONNECT_LISTEN" placeholder:"URL" help:"Where to accept clients: stdio for one client; ws://IP:PORT (port 0 takes a free one) or unix:///PATH for many. The bound URL is printed on one line. Default: ${default}."`
	uidFlags
	authFlags
}

func (*connectFlags) Help() string {
	return `Lets local programs reach an agent behind a registry, or at another URL, if they speak only WebSocket or lines on standard input and output. Through a registry, messages are encrypted between the agent and this machine, and passed on unencrypted here. Each local connection gets a connection of its own to the agent.

With --listen ws:// clients need a token: the one of --ws-auth, or else a new one. The file with the new token is named on standard error, and removed at exit. Without a token, every local user and every confined command that has a network could use the agent.

With --listen unix:/// this user, root and the users of --allow-uid can connect. They need a token only with --ws-auth. Put the socket in a folder where no confined command may write.

Examples:

    agent connect --registry https://registry.example.com --environment-id build-1
    agent connect --registry https://registry.example.com --environment-id build-1 --listen ws://127.0.0.1:7000
    agent connect --registry https://registry.example.com --environment-id build-1 --listen unix:///run/user/1000/build-1.sock

Exit codes: 0 after a signal or the end of standard input, 1 when the agent cannot be reached or has ended the connection, 2 for a wrong command line.`
}

func (f *connectFlags) Check() error {
	switch {
	case !f.Elsewhere():
		return f.Nowhere()
	case f.Listen == "stdio" && f.authFlags != (authFlags{}):
		return errors.New("--ws-auth cannot be used with --listen stdio")
	}
	if err := errors.Join(f.uidFlags.validate(f.Listen), f.auth().Validate()); err != nil {
		return err
	}
	return f.Flags.Check()
}

// run passes connections on until a signal comes.
func (f *connectFlags) run(sys program.System) int {
	return serveUntilSignal(sys, f.Timeout, func(ctx context.Context) error {
		return unlessEnded(ctx, connect(ctx, sys, f))
	})
}

func connect(ctx context.Context, sys program.System, flags *connectFlags) error {
	budget := rpc.NewBudget(planShares().messages)
	if flags.Listen == "stdio" {
		return connectStdio(ctx, sys, flags, budget)
	}
	auth, err := flags.auth().Authenticator()
	if err != nil {
		return err
	}
	url := target.ListenURL(flags.Listen)
	token := "" // the name of a file with a new token
	if auth == nil && !isUnix(url) {
		file, err := newToken()
		if err != nil {
			return err
		}
		defer os.Remove(file)
		if auth, err = (transport.AuthOptions{Mode: "capability-token", TokenFile: file}).Authenticator(); err != nil {
			return err
		}
		token = file
	}
	listener, err := transport.Listen(transport.Config{URL: url, AllowUIDs: flags.AllowUID, Auth: auth, Budget: budget})
	if err != nil {
		return err
	}
	if token != "" {
		program.Complain(sys.Stderr, "clients need the token in the file "+token)
	}
	b := &bridge{logger: program.Logger(sys.Stderr, "warn", "text"), dial: func(ctx context.Context) (rpc.Conn, error) {
		conn, release, err := flags.Dial(ctx, sys)
		if err != nil {
			return nil, err
		}
		return &released{conn, release}, nil
	}}
	if _, err := fmt.Fprintln(sys.Stdout, listener.URL()); err != nil {
		return errors.Join(fmt.Errorf("printing the URL: %w", err), listener.Close())
	}
	return b.serve(ctx, listener)
}

func connectStdio(ctx context.Context, sys program.System, flags *connectFlags, budget *rpc.Budget) error {
	here := transport.Stdio(sys.Stdin, sys.Stdout, budget)
	defer here.Close()
	there, release, err := flags.Dial(ctx, sys)
	if err != nil {
		return err
	}
	defer release()
	input := &watched{Conn: here}
	joinConns(ctx, input, there)
	if ctx.Err() == nil && !input.ended {
		return fmt.Errorf("%s has ended the connection", flags.Name())
	}
	return context.Cause(ctx)
}

// watched is a connection that records whether its peer has closed it.
type watched struct {
	rpc.Conn
	ended bool // read after joinConns has returned
}

func (c *watched) Read() ([]byte, error) {
	message, err := c.Conn.Read()
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
		c.ended = true
	}
	return message, err
}

// Intake takes back messages that Read has returned.
func (c *watched) Intake() *rpc.Intake { return rpc.IntakeOf(c.Conn) }

// released is a connection that calls release when it is closed.
type released struct {
	rpc.Conn
	release func()
}

func (c *released) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// Intake takes back messages that Read has returned.
func (c *released) Intake() *rpc.Intake { return rpc.IntakeOf(c.Conn) }

// newToken makes a token in a file that only this user can read, and returns its name.
func newToken() (file string, err error) {
	f, err := os.CreateTemp(os.Getenv("XDG_RUNTIME_DIR"), "execagent-token-*")
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintln(f, rand.Text()+rand.Text())
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
