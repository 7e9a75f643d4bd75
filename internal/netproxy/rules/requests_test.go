package rules

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// policyOf compiles entries, of which those that begin with @ are a ceiling's.
func policyOf(entries string) (*Hosts, error) {
	own, above := Rules{Domains: map[string]Action{}}, Rules{Domains: map[string]Action{}}
	for entry := range strings.SplitSeq(entries, "|") {
		text, ceiling := strings.CutPrefix(entry, "@")
		action, pattern, _ := strings.Cut(text, "=")
		map[bool]Rules{false: own, true: above}[ceiling].Domains[pattern] = Action(action)
	}
	p, err := Compile(own)
	if err != nil || len(above.Domains) == 0 {
		return p, err
	}
	ceiling, err := Compile(above)
	return p.Under(ceiling), err
}

func TestRequestRules(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/requests.txt", "right", 3) {
		p, err := policyOf(row[0])
		if row[1] == "-" {
			rig.Says(t, err, row[2], "%s", row[0])
			continue
		}
		rig.Must(t, err)
		text, r := row[1], Request{Protocol: Connect, Method: "CONNECT"}
		text, r.Answered = strings.CutPrefix(text, "!")
		if method, rest, ok := strings.Cut(text, " "); ok {
			at := strings.IndexAny(rest, "/*")
			r.Method, text, r.Path = method, rest[:at], rest[at:]
		}
		host, port, err := net.SplitHostPort(text)
		rig.Must(t, err)
		r.Host, r.Port = host, uint16(rig.Value(strconv.Atoi(port)))
		v := p.Judge(r)
		rig.Is(t, fmt.Sprint(v.Decision, " ", v.Reason), row[2], "%s: %s", row[0], row[1])
	}
}

// TestRequestBounds: the time for one request is bounded.
func TestRequestBounds(t *testing.T) {
	t.Parallel()
	domains := map[string]Action{}
	for i := range maxRules / 1024 {
		domains[fmt.Sprintf("* *.test/**%s/%d", strings.Repeat("/a*a", 250), i)] = Deny
	}
	p := rig.Value(Compile(Rules{Domains: domains}))
	for n, want := range map[int]string{maxSegments: ReasonRequestNotAllowed, maxSegments + 1: ReasonRequestDenied} {
		v := p.Judge(Request{Protocol: HTTP, Host: "a.test", Port: 80, Method: "GET", Path: strings.Repeat("/aa", n)})
		rig.Is(t, v.Reason, want, "%d segments", n)
	}
	for i := range 4 {
		domains[fmt.Sprintf("GET *.test/%s/%d", strings.Repeat("x", maxPattern-9), i)] = Allow
	}
	rig.Says(t, rig.Err(Compile(Rules{Domains: domains})), "all of them together have more than 262144 bytes", "many rules")
}

// FuzzRequestRule: what is accepted matches as a naive matcher says, and only plain paths.
func FuzzRequestRule(f *testing.F) {
	f.Add("GET a.test/a/**/b*", "/a/x/bc")
	f.Add("* *.b.test:443/%41", "/A/")
	f.Fuzz(func(t *testing.T, entry, path string) {
		rule, _, err := parseRequestRule(entry, false)
		decoded, ok := decodedPath(path)
		if err != nil || !ok || len(entry)+len(path) > 100 {
			return
		}
		segments := segmentsOf(decoded)
		rig.Is(t, matchPath(rule.path, segments), naive(rule.path, segments), "%q %q", entry, path)
	})
}

func naive(pattern, segments []string) bool {
	switch {
	case len(pattern) == 0:
		return len(segments) == 0
	case pattern[0] == "**":
		return naive(pattern[1:], segments) || len(segments) > 0 && naive(pattern, segments[1:])
	}
	return len(segments) > 0 && wildcard(pattern[0], segments[0], true) && naive(pattern[1:], segments[1:])
}
