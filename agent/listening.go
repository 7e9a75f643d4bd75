package agent

import (
	"fmt"
	"net/netip"

	"github.com/execagent/execagent/sandbox"
)

// Listening is a place where clients reach an agent: a TCP address, or the path of a
// UNIX socket, which no confined command may see.
type Listening struct {
	Addr netip.AddrPort
	Path string // "" for TCP
	// Authenticated is false if anybody may connect as a client.
	Authenticated bool
}

// refuseOpenListeners refuses a policy under which a command could become a
// client of this agent, and so run unconfined commands. A confined command with
// the network cannot reach the ports of the agent at any address of this host.
// But a port that is published elsewhere, or a proxy, may lead to a listener that
// is not on a loopback address. The agent cannot know of such ports and proxies.
func refuseOpenListeners(listening []Listening, policy *sandbox.Policy) error {
	if !policy.Confined || policy.Network != sandbox.NetworkEnabled {
		return nil
	}
	for _, l := range listening {
		if l.open() {
			return openListenerError(fmt.Sprintf("this agent cannot enforce the sandbox: it listens at %v without authentication, and a command with the "+
				"network could become its client by way of a proxy or a published port; start the agent with --ws-auth, or have it "+
				"listen at a loopback address", l.Addr))
		}
	}
	return nil
}

// open reports whether processes on other hosts may be clients without authentication.
func (l Listening) open() bool {
	return l.Path == "" && !l.Authenticated && !l.Addr.Addr().Unmap().IsLoopback()
}

// openListenerError reports that a command could become a client.
type openListenerError string

func (e openListenerError) Error() string { return string(e) }

// portsAndPaths returns the ports of these listeners, and the paths of their sockets.
func portsAndPaths(listening []Listening) (ports []uint16, paths []string) {
	for _, l := range listening {
		if l.Path != "" {
			paths = append(paths, l.Path)
		} else {
			ports = append(ports, l.Addr.Port())
		}
	}
	return ports, paths
}
