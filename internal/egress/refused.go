package egress

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/refusals"
)

// Refused returns the refusal that a verdict is.
func Refused(r netproxy.Report) refusals.Refusal {
	place := net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
	refused := refusals.Refusal{Layer: refusals.Network, Operation: refusals.Connect, Subject: place}
	if r.Path != "" {
		refused.Operation, refused.Subject = refusals.Send, RequestText(r.Protocol, r.Method, r.Host, r.Port, r.Path)
	}
	refused.Reason = strings.ReplaceAll(r.Reason, "_", " ")
	_, err := netip.ParseAddr(r.Host)
	local := slices.IndexFunc(r.Addrs, rules.IsLocal)
	switch {
	case r.Reason == rules.ReasonNotAllowed:
		refused.Need, refused.At = refusals.ToReach, place
	case r.Reason == rules.ReasonRequestNotAllowed && !strings.HasSuffix(r.Path, "..."):
		refused.Need, refused.At = refusals.ToRequest, r.Method+" "+place+r.Path
	case r.Reason != rules.ReasonNotAllowedLocal:
	case err == nil || r.Host == "localhost":
		refused.Reason += ": a local or private address"
		refused.Need, refused.At = refusals.ToReach, r.Host
	case local >= 0:
		refused.Reason += ": the name leads to " + r.Addrs[local].String() + ", a local or private address"
		refused.Need = refusals.ToReachLocal
	case r.Addrs != nil:
		refused.Reason += ": the name has no address here"
	}
	return refused
}

// RequestText returns METHOD URL of a request.
func RequestText(network, method, host string, port uint16, path string) string {
	scheme, usual := "https", uint16(443)
	if network == rules.HTTP {
		scheme, usual = "http", 80
	}
	switch {
	case port != usual:
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	return method + " " + scheme + "://" + host + path
}
