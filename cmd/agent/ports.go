package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// portsFlags say how ports are listed.
type portsFlags struct {
	hereFlags
	Watch  bool   `short:"w" help:"Go on: print a line for each port that opens or closes, until you end it."`
	Output string `short:"o" default:"table" enum:"table,json" placeholder:"FORMAT" help:"Output format: table, or json for programs (objects with port, address, uid, pid, program; with --watch one object on each line, with opened and closed). Default: ${default}."`
}

func (*portsFlags) Help() string {
	return `Lists the TCP ports that listen, sorted by port: here, or on the agent's host. The user, the process and its program are those that the agent can see: all of them if it is root, else those of its own user.

--watch prints the ports that listen now, and then each that opens (+) or closes (-). The kernel tells the agent that a port has closed; that one has opened, the agent notices within half a second.

Examples:

    agent ports --url 127.0.0.1:7000
    agent ports --url 127.0.0.1:7000 -o json | jq '.[] | select(.program == "node") | .port'
    agent ports --watch

Exit codes: 0, 1 when agent itself failed or not all ports are listed, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *portsFlags) run(sys program.System) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		if f.Watch {
			return 0, f.watch(ctx, sys, c)
		}
		ports, more, err := c.Ports(ctx, nil)
		if err == nil {
			err = program.PrintList(sys.Stdout, f.Output == "json", ports, "PORT\tADDRESS\tUSER\tPID\tPROGRAM", portRow)
		}
		if err == nil && more {
			return complained(sys, []error{fmt.Errorf("there are more than %d ports", protocol.MaxPorts)}, 0, program.ExitFailure), nil
		}
		return program.ExitOK, err
	})
}

// portRow returns the cells of a port.
func portRow(p protocol.Port) []string {
	number := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatUint(*n, 10)
	}
	name := "-"
	if p.Program != nil {
		name = program.Plain(*p.Program)
	}
	return []string{strconv.Itoa(int(p.Port)), program.Plain(p.Address), number(p.UID), number(p.PID), name}
}

// watch prints changes until the context ends.
func (f *portsFlags) watch(ctx context.Context, sys program.System, c *client.Client) error {
	w, err := c.WatchPorts(ctx, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		changes, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if f.Output == "json" {
			err = json.NewEncoder(sys.Stdout).Encode(portsChanged{
				Opened: append([]protocol.Port{}, changes.Opened...), Closed: append([]protocol.Port{}, changes.Closed...),
			})
			if err != nil {
				return err
			}
			continue
		}
		for _, list := range []struct {
			mark  string
			ports []protocol.Port
		}{{"-", changes.Closed}, {"+", changes.Opened}} {
			for _, p := range list.ports {
				row := portRow(p)
				_, err := fmt.Fprintf(sys.Stdout, "%s %s uid %s pid %s %s\n", list.mark, net.JoinHostPort(row[1], row[0]), row[2], row[3], row[4])
				if err != nil {
					return err
				}
			}
		}
	}
}

// portsChanged is a change in JSON.
type portsChanged struct {
	Opened []protocol.Port `json:"opened"`
	Closed []protocol.Port `json:"closed"`
}
