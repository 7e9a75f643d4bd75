package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/forwarding"
	"github.com/execagent/execagent/cmd/internal/program"
)

// portForwardFlags name the forwards, and the address to listen at.
type portForwardFlags struct {
	agentFlags
	Address string `default:"127.0.0.1" env:"AGENT_FORWARD_ADDRESS" placeholder:"IP" help:"Address of this machine to listen at. With another address than ${default}, other machines may be able to connect too."`

	Forwards []string `arg:"" name:"forward" help:"PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH."`
}

func (*portForwardFlags) Help() string {
	return `Each FORWARD is one of these:

    8080                 port 8080 here and there
    8080:80              port 8080 here, port 80 there
    :80                  a free port here, port 80 there; so does 0:80
    8080:db.internal:80  port 80 of another host, as the agent's host sees it
    [::1]:80             a free port here, port 80 of an IPv6 address there
    8080:/run/app.sock   a UNIX socket there
    /tmp/s:/run/app.sock a UNIX socket here, which only this user can connect to

"There" is the agent's host; a port without a host is a port of its localhost. Each forward is printed on a line once it listens. If the connection to the agent is lost, forwarded connections wait, and then continue without losing data. Every local user can connect to a port here, but only this user to a socket here.

Examples:

    agent port-forward --url ws://127.0.0.1:7000 8080:80 5432
    agent port-forward --registry https://registry.example.com --environment-id build-1 /tmp/podman.sock:/run/podman/podman.sock

Exit codes: 0 after a signal, 1 when the agent cannot be reached or is lost for good, when a port here is taken, or after --timeout, 2 for a wrong command line.`
}

// Check finds flags that contradict each other, and invalid forwards. The parser calls it.
func (f *portForwardFlags) Check() error {
	if _, err := f.specs(); err != nil {
		return err
	}
	return f.agentFlags.Check()
}

func (f *portForwardFlags) specs() ([]forwarding.Spec, error) {
	host := f.Address
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, fmt.Errorf("--address %q is not an IP address", f.Address)
	}
	specs := make([]forwarding.Spec, len(f.Forwards))
	for i, text := range f.Forwards {
		var err error
		if specs[i], err = forwarding.ParseSpec(text, host); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// run forwards until a signal comes.
func (f *portForwardFlags) run(sys program.System) int {
	say := func(text string) { program.Complain(sys.Stderr, text) }
	lost := func(lost bool) {
		if lost {
			say("the connection is lost, waiting for it to come back")
		} else {
			say("the connection is back")
		}
	}
	return f.serve(sys, lost, func(ctx context.Context, c *client.Client) error {
		specs, err := f.specs()
		if err != nil {
			return err
		}
		if !auth.IsLoopback(f.Address) {
			say("everybody who can reach this machine at " + f.Address + " can use the forwarded ports")
		}
		forwarder := &forwarding.Forwarder{Client: c, Say: say}
		defer forwarder.Close()
		for _, s := range specs {
			address, err := forwarder.Listen(ctx, s)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(sys.Stdout, "%s -> %s\n", address, forwarding.Name(s.Remote)); err != nil {
				return fmt.Errorf("printing what is forwarded: %w", err)
			}
		}
		return forwarder.Serve(ctx)
	})
}
