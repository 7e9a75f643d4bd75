package rules

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// policyOf compiles entries, of which those that begin with @ are a ceiling's. Beside ACTION=PATTERN there
// are review=PATTERN, port=NUMBER, limited, local, and "-" for none.
func policyOf(entries string) (*Hosts, error) {
	all := [2]Rules{{Domains: map[string]Action{}}, {Domains: map[string]Action{}}} // own, and above
	has := false
	for entry := range strings.SplitSeq(entries, "|") {
		text, ceiling := strings.CutPrefix(entry, "@")
		r := &all[0]
		if ceiling {
			r, has = &all[1], true
		}
		switch word, value, _ := strings.Cut(text, "="); word {
		case "-":
		case "limited":
			r.Limited = true
		case "local":
			r.Local = true
		case "review":
			r.Review = append(r.Review, value)
		case "port":
			r.Ports = append(r.Ports, uint16(rig.Value(strconv.Atoi(value))))
		default:
			r.Domains[value] = Action(word)
		}
	}
	p, err := Compile(all[0])
	if err != nil || !has {
		return p, err
	}
	ceiling, err := Compile(all[1])
	return p.Under(ceiling), err
}

// requestOf returns a request: a protocol, HOST:PORT, and a method other than GET or CONNECT.
func requestOf(t *testing.T, text string) Request {
	t.Helper()
	words := append(strings.Fields(text), map[string]string{HTTP: "GET", Connect: "CONNECT"}[strings.Fields(text)[0]])
	host, port, err := net.SplitHostPort(words[1])
	rig.Must(t, err)
	return Request{Protocol: words[0], Host: host, Port: uint16(rig.Value(strconv.Atoi(port))), Method: words[2]}
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
		text, answered := strings.CutPrefix(row[1], "!")
		path := ""
		if method, rest, ok := strings.Cut(text, " "); ok {
			at := strings.IndexAny(rest, "/*")
			text, path = rest[:at]+" "+method, rest[at:]
		}
		r := requestOf(t, Connect+" "+text)
		r.Answered, r.Path = answered, path
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
