package conns

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// Loopback returns the loopback addresses of both protocols if host is localhost or a name below it,
// else nil. No name server may be asked for these names (RFC 6761, 6.3).
func Loopback(host string) []netip.Addr {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host != "localhost" && !strings.HasSuffix(host, ".localhost") {
		return nil
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// Dial connects as [net.Dialer] does. For localhost it tries both loopback addresses, and returns the
// error of the first.
func Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var d net.Dialer
	host, port, _ := net.SplitHostPort(address) // the dialer reports an error
	targets := []string{address}
	if addresses := Loopback(host); addresses != nil && network == "tcp" {
		targets = nil
		for _, ip := range addresses {
			targets = append(targets, net.JoinHostPort(ip.String(), port))
		}
	}
	for i, target := range targets {
		tried, failed := d.DialContext(ctx, network, target)
		if failed == nil {
			return tried, nil
		}
		if i == 0 {
			err = failed
		}
	}
	return nil, err
}
