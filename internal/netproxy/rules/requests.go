package rules

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A requestRule is an entry about single HTTP requests: METHOD HOST[:PORT]/PATH. It stands in the same
// lists as patterns of hosts.
type requestRule struct {
	method string   // "*": every method
	host   set      // with one pattern
	path   []string // segments; "*" matches inside one, and "**" any number of them
}

// requests are the request rules of one policy. A deny beats an ask, and an ask beats an allow. Rules
// that deny or ask ignore the letter case of methods and paths, because some servers do. Rules that allow
// compare exactly.
type requests struct {
	allow, ask, deny []requestRule

	hosts     set // of all rules: the proxy has to look into connections to these hosts
	reachable set // of rules that allow or ask: these hosts may be connected to
	allowed   set // of rules that allow: these hosts may be local addresses

	bytes int // of all rules
}

const (
	maxPattern  = 2 << 10 // bytes of the path of a rule
	maxJudged   = 8 << 10 // bytes of a path that a rule may allow
	anySegments = "**"

	// maxSegments bounds the segments of a path, and maxRules the bytes of all rules of a policy. Together
	// they bound the time for one request, because a rule with ** compares each of its segments with each
	// of the path.
	maxSegments = 256
	maxRules    = 256 << 10
)

// isRequestRule reports whether an entry is a request rule. A pattern of hosts has neither a space nor a
// slash.
func isRequestRule(text string) bool {
	_, rest, ok := strings.Cut(strings.TrimSpace(text), " ")
	return ok && strings.Contains(rest, "/")
}

// parseRequestRule parses an entry, and returns its pattern of hosts too. A wide rule ignores letter case.
func parseRequestRule(text string, wide bool) (requestRule, pattern, error) {
	failed := func(err error) (requestRule, pattern, error) {
		return requestRule{}, pattern{}, fmt.Errorf("request rule %q: %w", text, err)
	}
	method, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	rest = strings.TrimLeft(rest, " ")
	slash := strings.IndexByte(rest, '/')
	switch {
	case method != "*" && !isMethod(method):
		return failed(errors.New("its method is neither in capital letters nor *"))
	case method == "CONNECT":
		return failed(errors.New("a tunnel (CONNECT) has no path; an entry HOST:PORT allows tunnels"))
	case slash < 1:
		return failed(errors.New("it is not METHOD HOST/PATH"))
	}
	host, err := parse(rest[:slash])
	if err != nil {
		return failed(err)
	}
	r := requestRule{method: method, host: set{wide: wide}}
	r.host.add(host)
	if r.path, err = parsePath(rest[slash:], wide); err != nil {
		return failed(err)
	}
	return r, host, nil
}

func isMethod(text string) bool {
	return text != "" && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == ""
}

// parsePath returns the segments of a rule's path.
func parsePath(text string, wide bool) ([]string, error) {
	switch lowered := strings.ToLower(text); {
	case len(text) > maxPattern:
		return nil, fmt.Errorf("its path is longer than %d bytes", maxPattern)
	case strings.ContainsAny(text, "?#"):
		return nil, errors.New("its path has ? or #, but only the path of a request is compared: leave out the query")
	case strings.Contains(lowered, "%2a"), strings.Contains(lowered, "%3f"):
		return nil, errors.New("its path has an encoded * or ?; write *, which matches them")
	}
	decoded, ok := decodedPath(text)
	if !ok {
		return nil, fmt.Errorf("its path has more than %d segments or is not plain: it has dot segments, empty segments, encoded slashes or percent signs, a backslash, a semicolon, a control character, or an escape that is none", maxSegments)
	}
	if wide {
		decoded = strings.ToLower(decoded)
	}
	segments := segmentsOf(decoded)
	for i, s := range segments {
		if s != anySegments && strings.Contains(s, anySegments) {
			return nil, fmt.Errorf("** is a part of its segment %q, but has to be a whole one", s)
		}
		if i > 0 && s == anySegments && segments[i-1] == anySegments {
			return nil, errors.New("** follows **")
		}
	}
	return segments, nil
}

// segmentsOf returns the segments of a decoded path. A slash at the end makes no difference.
func segmentsOf(path string) []string {
	path = strings.TrimSuffix(path[1:], "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

// PlainPath reports whether a path means what its text says, without dot segments. Some servers
// resolve dots even if they are encoded, often more than once, or follow an encoded slash. Others drop
// control characters and spaces, or read no further than a NUL. Such a path could begin with an
// allowed prefix and lead elsewhere.
func PlainPath(path string) bool {
	text := strings.ToLower(path)
	for range maxLevels {
		for _, odd := range []string{"%2e", "%c0", "%e0%80", "%u", "%0", "%1", "%7f"} { // dots, as old servers accept them too, and controls
			if strings.Contains(text, odd) {
				return false
			}
		}
		decoded := strings.NewReplacer("%2f", "/", "%5c", "/", "%20", " ", "%25", "%", "\\", "/").Replace(text)
		if len(decoded) == len(text) {
			return !slices.ContainsFunc(strings.Split(decoded, "/"), isOdd)
		}
		text = decoded
	}
	return false
}

// maxLevels is how often a path may be encoded.
const maxLevels = 8

// isOdd reports whether a segment of a path is a dot segment for some server, or has a control
// character.
func isOdd(segment string) bool {
	if strings.ContainsFunc(segment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return true
	}
	segment, _, _ = strings.Cut(segment, ";") // some servers remove parameters before they resolve dots
	segment = strings.TrimSpace(segment)
	return segment == "." || segment == ".."
}

// decodedPath returns a path without escapes. ok is false if servers could disagree about the path's
// segments, or if it is too long: a rule must not decide about such a path.
func decodedPath(path string) (decoded string, ok bool) {
	if len(path) > maxJudged || strings.Count(path, "/") > maxSegments || !strings.HasPrefix(path, "/") || !PlainPath(path) || strings.Contains(strings.ToLower(path), "%2f") {
		return "", false
	}
	decoded, err := url.PathUnescape(path)
	if err != nil || !utf8.ValidString(decoded) || strings.ContainsAny(decoded, `\;%`) || strings.Contains(decoded, "//") || strings.ContainsFunc(decoded, unicode.IsControl) {
		return "", false
	}
	for segment := range strings.SplitSeq(decoded, "/") {
		if strings.TrimSpace(segment) != segment {
			return "", false
		}
	}
	return decoded, true
}

// add adds an entry.
func (q *requests) add(text string, action Action) error {
	r, host, err := parseRequestRule(text, action != Allow)
	if err != nil {
		return err
	}
	if q.bytes += len(text); q.bytes > maxRules {
		return fmt.Errorf("request rule %.64q: all of them together have more than %d bytes", text, maxRules)
	}
	q.hosts.wide = true
	q.hosts.add(host)
	switch action {
	case Allow:
		q.allow = append(q.allow, r)
		q.allowed.add(host)
		q.reachable.add(host)
	case Ask:
		q.ask = append(q.ask, r)
		q.reachable.add(host)
	case Deny:
		q.deny = append(q.deny, r)
	default:
		return fmt.Errorf("request rule %q: action %q is none of allow, deny, ask", text, action)
	}
	return nil
}

// judge returns the verdict of the request rules; ok is false if they have none. by is byRequest if a rule
// asks.
func (q *requests) judge(r Request) (v Verdict, by listed, ok bool) {
	if !q.hosts.matches(r.Host, r.Port) {
		return v, unlisted, false
	}
	if r.Path == "" { // a tunnel, whose requests are judged later
		v = Verdict{Allow, ScopeDomain, SourceBaseline, ReasonAllow}
		return v, unlisted, q.reachable.matches(r.Host, r.Port)
	}
	refusal := Verdict{Deny, ScopeNonDomain, SourceBaseline, ReasonRequestDenied}
	path, plain := decodedPath(r.Path)
	if !plain {
		return refusal, unlisted, true
	}
	segments, lowered := segmentsOf(path), segmentsOf(strings.ToLower(path))
	anyOf := func(list []requestRule, method string, segments []string) bool {
		return slices.ContainsFunc(list, func(rule requestRule) bool {
			return (rule.method == "*" || rule.method == method) && rule.host.matches(r.Host, r.Port) && matchPath(rule.path, segments)
		})
	}
	switch {
	case anyOf(q.deny, strings.ToUpper(r.Method), lowered):
		return refusal, unlisted, true
	case anyOf(q.ask, strings.ToUpper(r.Method), lowered):
		return Verdict{Ask, ScopeNonDomain, SourceBaseline, ReasonRequestNotAllowed}, byRequest, true
	case anyOf(q.allow, r.Method, segments):
		return Verdict{Allow, ScopeNonDomain, SourceBaseline, ReasonAllow}, unlisted, true
	}
	return v, unlisted, false
}

// matchPath reports whether segments match a pattern. It backtracks only to the last **, so its time is
// at most proportional to the product of the two lengths.
func matchPath(pattern, segments []string) bool {
	p, s := 0, 0
	star, mark := -1, 0
	for s < len(segments) {
		switch {
		case p < len(pattern) && pattern[p] == anySegments:
			star, mark = p, s
			p++
		case p < len(pattern) && matchSegment(pattern[p], segments[s]):
			p++
			s++
		case star >= 0:
			mark++
			p, s = star+1, mark
		default:
			return false
		}
	}
	return len(pattern) == p || len(pattern) == p+1 && pattern[p] == anySegments
}

// matchSegment reports whether a segment matches a pattern, in which only stars have a meaning. It never goes
// back.
func matchSegment(pattern, segment string) bool {
	before, rest, some := strings.Cut(pattern, "*")
	if !some {
		return pattern == segment
	}
	segment, ok := strings.CutPrefix(segment, before)
	for ok {
		var piece string
		if piece, rest, some = strings.Cut(rest, "*"); !some {
			return strings.HasSuffix(segment, piece)
		}
		_, segment, ok = strings.Cut(segment, piece)
	}
	return false
}

// listed is the kind of entry that makes a verdict Ask.
type listed int

const (
	unlisted  listed = iota // none: nothing is said about the host or the request
	byHost                  // a pattern of hosts
	byRequest               // a request rule
)

// HasRequestRules reports whether the policy, or a ceiling above it, has request rules.
func (p *Hosts) HasRequestRules() bool {
	return p != nil && (p.requests != nil || p.ceiling.HasRequestRules())
}

// HasRequestRulesFor reports whether the policy, or a ceiling above it, has request rules for a host at a
// port. Then the proxy has to see each request to the host. A connection that it cannot look into is refused.
func (p *Hosts) HasRequestRulesFor(host string, port uint16) bool {
	for q := p; q != nil; q = q.ceiling {
		if q.requests != nil && q.requests.hosts.matches(host, port) {
			return true
		}
	}
	return false
}
