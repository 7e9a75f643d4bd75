package egress

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxAskingID is the greatest length, in bytes, of a process's id if the client is
	// asked about its network.
	maxAskingID = 256
	// grace is how much later than its own time limit the client's answer may come.
	grace = 5 * time.Second
	// longestWait bounds the time limit of a client.
	longestWait = 24 * time.Hour
)

// Plan is a checked request for a network.
type Plan struct {
	// Transparent: the process may connect to any address, and each connection is judged as one through
	// SOCKS5. That is so where its network is enforced.
	Transparent bool
	// OwnServers: the process reaches its own servers at loopback addresses without the proxy, where it
	// can have any, even if local addresses are not allowed.
	OwnServers bool

	asked   *protocol.NetworkProxy
	process string
	policy  *rules.Hosts
	timeout time.Duration // 0: nobody is asked
}

// Of checks a client's request, for a process with that id. The texts of its errors are those of
// the reference (network.md 2.4).
func Of(asked *protocol.NetworkProxy, process string) (*Plan, error) {
	p := &Plan{asked: asked, process: process, Transparent: asked.Proxy.TransparentTCP}
	if !asked.Proxy.Enabled {
		return nil, invalid(errors.New("executor-local network proxy launch requires an enabled proxy"))
	}
	if asked.Proxy.TransparentTCP && !asked.Proxy.EnableSocks5 {
		return nil, invalid(errors.New("transparent_tcp requires an enabled managed SOCKS5 proxy"))
	}
	var err error
	if p.policy, err = rules.Compile(rulesOf(&asked.Proxy)); err != nil {
		return nil, invalid(err)
	}
	if err := checkSockets(asked.Proxy.UnixSockets); err != nil {
		return nil, invalid(err)
	}
	if ms := asked.PolicyDecisionTimeoutMs; ms != nil {
		switch {
		case *ms == 0:
			return nil, errors.New("network policy decision callback timeout must be nonzero")
		case process == "" || len(process) > maxAskingID:
			return nil, fmt.Errorf("callback-enabled process ID must be non-empty and at most %d bytes", maxAskingID)
		}
		p.timeout = grace + time.Duration(min(*ms, uint64(longestWait.Milliseconds())))*time.Millisecond
	}
	return p, nil
}

func invalid(err error) error { return fmt.Errorf("invalid network proxy config: %w", err) }

func rulesOf(p *protocol.ProxyParams) rules.Rules {
	r := rules.Rules{
		Limited: p.Mode == protocol.ProxyLimited,
		Local:   p.AllowLocalBinding,
		Domains: make(map[string]rules.Action, len(p.Domains)),
		Review:  p.ReviewDomains,
	}
	for pattern, word := range p.Domains {
		switch word {
		case protocol.DomainAllow:
			r.Domains[pattern] = rules.Allow
		case protocol.DomainDeny:
			r.Domains[pattern] = rules.Deny
		}
	}
	return r
}

// checkSockets refuses invalid paths of UNIX sockets. The paths have no other effect: a sandbox
// refuses all of these sockets, or none.
func checkSockets(words map[string]string) error {
	i := 0
	for _, path := range slices.Sorted(maps.Keys(words)) {
		if words[path] != protocol.DomainAllow {
			continue
		}
		if !strings.HasPrefix(path, "/") || strings.Contains(path, "\x00") {
			return fmt.Errorf("invalid network.allow_unix_sockets[%d]: expected a NUL-free absolute path for Linux, got %q", i, path)
		}
		i++
	}
	return nil
}

// SOCKS reports whether there is a SOCKS5 proxy too.
func (p *Plan) SOCKS() bool { return p.asked.Proxy.EnableSocks5 }

// Listeners returns the number of listeners of the proxy.
func (p *Plan) Listeners() int {
	if p.SOCKS() {
		return 2
	}
	return 1
}

// Means reports whether the process reaches this host at a loopback address that could also be its
// own, because an entry allows the address.
func (p *Plan) Means(host string) bool {
	return slices.Contains(loopbackHosts, host) && p.policy.Names(host)
}

// Allows reports whether the process reaches a host without a question.
func (p *Plan) Allows(host string, port uint16) bool {
	return p.policy.Judge(rules.Request{Protocol: rules.Connect, Host: host, Port: port}).Decision == rules.Allow
}

// AllUnixSockets reports whether the process may make UNIX sockets, whatever confines it.
func (p *Plan) AllUnixSockets() bool { return p.asked.Proxy.DangerouslyAllowAllUnixSockets }

// UnixSockets returns the paths of UNIX sockets that a client allows, sorted. proxy and managed may be nil.
func UnixSockets(proxy *protocol.NetworkProxy, managed *protocol.ManagedNetwork) []string {
	all := map[string]bool{}
	if managed != nil {
		for _, name := range managed.AllowUnixSockets {
			all[name] = true
		}
	}
	if proxy != nil {
		for name, word := range proxy.Proxy.UnixSockets {
			all[name] = word == protocol.DomainAllow
		}
	}
	maps.DeleteFunc(all, func(_ string, allowed bool) bool { return !allowed })
	return slices.Sorted(maps.Keys(all))
}
