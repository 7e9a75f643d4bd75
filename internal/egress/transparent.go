package egress

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/names"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/gate"
)

// A process with transparent connections connects to any address, and needs to know no proxy
// (transparent.md 2 and 3). Names have invented addresses, and the proxy judges and dials for each
// connect(2) of the process.

// resolver returns the names of a process. conf has the lines of the host's resolv.conf.
func (n *Networks) resolver(w *Network, conf [][]string) *names.Names {
	n.namesOnce.Do(func() { _, _ = rand.Read(n.names[:]) }) // it never fails
	var search names.Search
	if w.onHost {
		// The process has the /etc/resolv.conf of the host, and tries short names below the domains
		// in it.
		search.Domains = searchList(conf)
		search.Exists = func(ctx context.Context, name string) bool { return w.proxy.Exists(ctx, name) }
	}
	return names.New(n.names, search)
}

// hold serves the connections that the gate holds. conf is that of resolver.
func (w *Network) hold(invented *names.Names, conf [][]string) {
	w.resolver = names.NewServer(invented)
	var servers []netip.Addr
	if w.onHost {
		servers = nameServers(conf)
	}
	w.gate.Held().Serve(gate.Handler{
		Prepare: func(ctx context.Context, to, from netip.AddrPort) (gate.Prepared, syscall.Errno) {
			switch at := to.Addr(); {
			case w.onHost && to.Port() == gate.DomainPort && (at.IsLoopback() || slices.Contains(servers, at)):
				return stream{w.resolver}, 0 // a question by TCP
			case at.IsLoopback() || at.IsUnspecified():
				return nil, syscall.ECONNREFUSED // the process has no servers there
			}
			prepared, errno := w.proxy.Prepare(ctx, to, from)
			if errno != 0 {
				return nil, errno
			}
			return prepared, 0
		},
		Resolver: w.resolver,
	})
}

// stream is a connection to a resolver.
type stream struct{ to *names.Server }

func (s stream) Join(conn *net.TCPConn) { s.to.Stream(conn) }
func (s stream) Close()                 {}

const (
	// maxResolvConf bounds the bytes of /etc/resolv.conf that are read, and maxSearch the domains.
	maxResolvConf = 64 << 10
	maxSearch     = 32
)

// hostResolvConf returns the lines of resolv.conf(5) of this host, as fields.
func hostResolvConf() (lines [][]string) {
	file, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	defer file.Close()
	return resolvConf(file)
}

func resolvConf(r io.Reader) (lines [][]string) {
	text := bufio.NewScanner(io.LimitReader(r, maxResolvConf)) //nolint:scannererr // the lines that can be read count
	for text.Scan() {
		if fields := strings.Fields(text.Text()); len(fields) > 1 && !strings.ContainsAny(fields[0][:1], "#;") {
			lines = append(lines, fields)
		}
	}
	return lines
}

// nameServers returns the name servers in these lines.
func nameServers(lines [][]string) (servers []netip.Addr) {
	for _, fields := range lines {
		if addr, err := netip.ParseAddr(fields[1]); err == nil && fields[0] == "nameserver" {
			servers = append(servers, addr.Unmap().WithZone(""))
		}
	}
	return servers
}

// searchList returns the domains in these lines. The last list counts.
func searchList(lines [][]string) (domains []string) {
	for _, fields := range lines {
		list := fields[1:]
		switch fields[0] {
		case "domain":
			list = list[:1]
		case "search":
		default:
			continue
		}
		domains = nil
		for _, text := range list {
			if domain, err := rules.Host(text); err == nil && len(domains) < maxSearch {
				domains = append(domains, domain)
			}
		}
	}
	return domains
}

// TCPVariable is the variable that names the proxy for TCP, HOST:PORT.
const TCPVariable = "AGENT_TCP_UPSTREAM_PROXY"

// TCPUpstream returns the proxy for TCP of an operator: the one that the policy names, or that an
// environment names; nil: there is none.
func TCPUpstream(policy string, environ []string) (*netproxy.TCPUpstream, error) {
	named := variable(environ, TCPVariable)
	switch {
	case policy == "":
	case named != "" && named != policy:
		return nil, errors.New("tcp_upstream and --tcp-upstream-proxy name different proxies")
	default:
		named = policy
	}
	if named == "" {
		return nil, nil
	}
	host, text, err := net.SplitHostPort(named)
	if err == nil {
		_, err = rules.Host(host)
	}
	if port, failed := strconv.ParseUint(text, 10, 16); err != nil || failed != nil || port == 0 {
		return nil, errors.New("the proxy for TCP is not HOST:PORT")
	}
	return &netproxy.TCPUpstream{Address: named, Private: netproxy.Private(func(name string) string { return variable(environ, name) })}, nil
}
