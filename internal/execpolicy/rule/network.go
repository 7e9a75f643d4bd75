package rule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Network is a rule about a host and a protocol. It never matches a command.
type Network struct {
	Host          string // without a port, in lower case
	Protocol      string // one of the names that ParseProtocol returns
	Decision      Decision
	Justification string
}

var protocols = []string{"http", "https", "socks5_tcp", "socks5_udp"}

// ParseProtocol returns the name of a protocol of a rule about a host.
func ParseProtocol(name string) (string, error) {
	switch {
	case name == "https_connect" || name == "http-connect":
		return "https", nil
	case slices.Contains(protocols, name):
		return name, nil
	}
	return "", fmt.Errorf("network_rule protocol must be one of %s (got %s)", strings.Join(protocols, ", "), name)
}

// ParseHost returns the normalized host of a rule: in lower case, without surrounding blanks, port,
// brackets and trailing dots.
func ParseHost(text string) (string, error) {
	host := strings.TrimFunc(text, unicode.IsSpace)
	switch {
	case host == "":
		return "", errors.New("network_rule host cannot be empty")
	case strings.Contains(host, "://") || strings.ContainsAny(host, "/?#"):
		return "", errors.New("network_rule host must be a hostname or IP literal (without scheme or path)")
	}
	whole := host
	if rest, ok := strings.CutPrefix(host, "["); ok {
		address, port, ok := strings.Cut(rest, "]")
		if !ok {
			return "", fmt.Errorf("network_rule host has an invalid bracketed IPv6 literal: %s", whole)
		}
		if digits, isPort := strings.CutPrefix(port, ":"); port != "" && (!isPort || !isDigits(digits)) {
			return "", fmt.Errorf("network_rule host contains an unsupported suffix: %s", whole)
		}
		host = address
	} else if strings.Count(host, ":") == 1 {
		if name, port, _ := strings.Cut(host, ":"); name != "" && isDigits(port) {
			host = name
		}
	}
	host = strings.ToLower(strings.TrimRight(host, "."))
	switch {
	case strings.TrimFunc(host, unicode.IsSpace) == "":
		return "", errors.New("network_rule host cannot be empty")
	case strings.Contains(host, "*"):
		return "", errors.New("network_rule host must be a specific host; wildcards are not allowed")
	case strings.IndexFunc(host, unicode.IsSpace) >= 0:
		return "", errors.New("network_rule host cannot contain whitespace")
	}
	return host, nil
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
