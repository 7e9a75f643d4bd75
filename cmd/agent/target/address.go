package target

import "strings"

// ListenURL makes a URL to listen on of the short forms that a command line takes:
// 127.0.0.1:7000, :7000 for all addresses of this machine (IPv4), localhost:7000 for its
// loopback address. Everything else is returned as it is.
func ListenURL(address string) string { return short(address, "0.0.0.0", "127.0.0.1") }

// dialURL makes a URL to connect to of the same forms; :7000 is on this machine.
func dialURL(address string) string { return short(address, "127.0.0.1", "localhost") }

func short(address, all, local string) string {
	rest, ok := strings.CutPrefix(address, "ws://")
	if !ok && (strings.Contains(address, "/") || !strings.Contains(address, ":")) {
		return address // another kind of URL, or none
	}
	switch {
	case strings.HasPrefix(rest, ":"):
		rest = all + rest
	case strings.HasPrefix(rest, "localhost:"):
		rest = local + strings.TrimPrefix(rest, "localhost")
	}
	return "ws://" + rest
}
