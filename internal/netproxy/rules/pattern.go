package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// A pattern matches hosts according to its kind, and either all ports or one port.
type pattern struct {
	kind kind
	text string // the host of exact, the parent of below and from, or the glob
	port uint16 // 0: every port
}

type kind int

const (
	exact      kind = iota
	below           // *.d: every name below d, but not d
	from            // **.d: d and every name below
	everything      // *
	glob            // a star or a question mark at another place
	globBelow       // *.glob
	globFrom        // **.glob
)

var errEmpty = errors.New("domain pattern is empty")

// parse parses a pattern (network.md 3.2). Its errors are those of network.md 2.4, and quote the
// unchanged text.
func parse(text string) (pattern, error) {
	unsupported := fmt.Errorf("unsupported domain pattern syntax: %s", text)
	host := strings.TrimSpace(text)
	var p pattern
	var bracketed bool
	if strings.HasPrefix(host, "[") {
		brackets := fmt.Errorf("brackets are only supported for IPv6 literals or [*]: %s", text)
		end := strings.IndexByte(host, ']')
		if end < 0 {
			return p, brackets
		}
		inner, rest := host[1:end], host[end+1:]
		if addr, err := netip.ParseAddr(inner); inner != "*" && (err != nil || !addr.Is6()) {
			return p, brackets
		}
		bracketed = true
		host = inner
		if port, ok := strings.CutPrefix(rest, ":"); ok {
			if p.port = parsePort(port); p.port == 0 {
				return p, unsupported
			}
		} else if strings.Trim(rest, ".") != "" {
			return p, unsupported
		}
	} else if before, port, ok := strings.Cut(host, ":"); ok && !strings.Contains(port, ":") {
		if host, p.port = before, parsePort(port); p.port == 0 {
			return p, unsupported
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return p, unsupported
		}
		p.text = addr.Unmap().String()
		return p, nil
	} else if bracketed && host != "*" {
		return p, unsupported
	}
	if trimmed := strings.TrimRight(host, "."); trimmed != host && (trimmed == "*" || trimmed == "**") {
		return p, errEmpty // not the pattern "everything": it means names below an empty name
	}
	host, err := ascii(strings.TrimRight(host, "."))
	if err != nil {
		return p, unsupported
	}
	p.kind, p.text = exact, host
	if rest, ok := strings.CutPrefix(host, "**."); ok {
		p.kind, p.text = from, rest
	} else if rest, ok := strings.CutPrefix(host, "*."); ok {
		p.kind, p.text = below, rest
	}
	switch {
	case p.text == "":
		return p, errEmpty
	case strings.Contains(p.text, "**"):
		return p, fmt.Errorf("unsupported repeated wildcard: %s", text)
	case host == "*", p.kind == from && p.text == "*":
		p.kind, p.text = everything, ""
		return p, nil
	case len(p.text) > maxHost, !isName(p.text, "*?"):
		return p, unsupported
	}
	if strings.ContainsAny(p.text, "*?") {
		p.kind = [...]kind{exact: glob, below: globBelow, from: globFrom}[p.kind]
	}
	return p, nil
}

// parsePort returns the port of a pattern, or 0 if the text is not a port.
func parsePort(text string) uint16 {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// ascii returns a pattern in lower case. Labels with letters outside ASCII become A-labels; such a
// label cannot have a wildcard.
func ascii(text string) (string, error) {
	labels := strings.Split(text, ".")
	for i, label := range labels {
		if strings.IndexFunc(label, func(r rune) bool { return r >= 0x80 }) < 0 {
			labels[i] = lower(label)
			continue
		}
		converted, err := idna.Lookup.ToASCII(label)
		if err != nil {
			return "", fmt.Errorf("converting label %d: %w", i, err)
		}
		labels[i] = converted
	}
	return strings.Join(labels, "."), nil
}

// ports are the ports of all patterns for one host.
type ports struct {
	every bool
	some  []uint16
}

func (p ports) with(port uint16) ports {
	if port == 0 {
		p.every = true
	} else {
		p.some = append(p.some, port)
	}
	return p
}

func (p ports) has(port uint16) bool { return p.every || slices.Contains(p.some, port) }

// A set has the patterns of one action. A host is looked up in the maps, once for each of its
// labels. Only globs are tried one by one.
type set struct {
	everything         ports
	exact, below, from map[string]ports
	globs              []pattern
	named              []uint16 // ports that patterns name
	// wide: stars of globs match dots too; otherwise a star matches inside one label. The interface
	// does not specify it, so each action uses the reading that allows less.
	wide bool
}

func (s *set) add(p pattern) {
	put := func(m *map[string]ports) {
		if *m == nil {
			*m = map[string]ports{}
		}
		(*m)[p.text] = (*m)[p.text].with(p.port)
	}
	if p.port != 0 && !slices.Contains(s.named, p.port) {
		s.named = append(s.named, p.port)
	}
	switch p.kind {
	case everything:
		s.everything = s.everything.with(p.port)
	case exact:
		put(&s.exact)
	case below:
		put(&s.below)
	case from:
		put(&s.from)
	default:
		s.globs = append(s.globs, p)
	}
}

// names reports whether a pattern without wildcards matches.
func (s *set) names(host string, port uint16) bool { return s.exact[host].has(port) }

func (s *set) matches(host string, port uint16) bool {
	if s.everything.has(port) || s.names(host, port) || s.from[host].has(port) {
		return true
	}
	if len(s.below)+len(s.from) > 0 {
		for rest := host; ; {
			_, parent, ok := strings.Cut(rest, ".")
			if !ok {
				break
			}
			if rest = parent; s.below[rest].has(port) || s.from[rest].has(port) {
				return true
			}
		}
	}
	for _, g := range s.globs {
		if (g.port == 0 || g.port == port) && s.globMatches(g, host) {
			return true
		}
	}
	return false
}

func (s *set) globMatches(g pattern, host string) bool {
	if s.wide {
		return g.kind != globBelow && wildcard(g.text, host, true) ||
			g.kind != glob && wildcard("?*."+g.text, host, true)
	}
	// Stars match inside one label, so a pattern of n labels can only match the last n labels of the
	// host.
	if spare := strings.Count(host, ".") - strings.Count(g.text, "."); spare > 0 && g.kind != glob {
		for range spare {
			_, host, _ = strings.Cut(host, ".")
		}
		return wildcard(g.text, host, false)
	}
	return g.kind != globBelow && wildcard(g.text, host, false)
}

// wildcard reports whether a text matches a pattern in which * is any text and ? is one character.
// If wide is false, neither matches a dot. It backtracks only to the last star, so its time is at
// most proportional to the product of the two lengths.
func wildcard(pattern, text string, wide bool) bool {
	p, t := 0, 0
	star, mark := -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && (pattern[p] == text[t] || pattern[p] == '?' && (wide || text[t] != '.')):
			p++
			t++
		case star >= 0 && (wide || text[mark] != '.'):
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
