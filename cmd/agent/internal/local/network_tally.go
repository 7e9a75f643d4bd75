package local

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// maxTally is how many places are counted separately.
const maxTally = 1000

// tally counts the decisions of the proxy.
type tally struct {
	plan *egress.Plan // of the network; nil: an agent has it

	mu     sync.Mutex // guards the fields below
	places map[destination]int
	others int // decisions about further places
}

// destination is a host and a port, and what has become of an attempt to reach it.
type destination struct {
	what string
	host string
	port uint16
	why  string // "": it was reached
	// request is METHOD URL, if the proxy refused a request; "": it refused a connection, or nothing.
	request string
}

// The outcomes, in the order of their lines.
var outcomes = []string{"reached", "refused", "no connection to"}

// add notes a verdict.
func (t *tally) add(r netproxy.Report) {
	p := destination{what: outcomes[0], host: r.Host, port: r.Port}
	if r.Decision != rules.Allow {
		p.what, p.why = outcomes[1], whyRefused(r)
		if r.Path != "" {
			p.request = requestText(r.Protocol, r.Method, r.Host, r.Port, r.Path)
		}
	}
	t.count(p)
}

// unreached notes that nobody was found after a verdict.
func (t *tally) unreached(q netproxy.Question, err error) {
	t.count(destination{what: outcomes[2], host: q.Host, port: q.Port, why: whyFailed(err)})
}

func (t *tally) count(p destination) {
	if p.why != "" && p.request == "" && t.plan != nil && t.plan.Means(p.host) {
		p.why += fmt.Sprintf("; --network allow=%s makes %[1]s this host: leave it out to reach servers of the command itself", p.host)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.places[p]; !known && len(t.places) >= maxTally {
		t.others++
		return
	}
	if t.places == nil {
		t.places = map[destination]int{}
	}
	t.places[p]++
}

// whyFailed says why there is no connection, in the words of the system if there are any.
func whyFailed(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}

// whyRefused says why a request was refused. About local addresses it says what would allow them.
func whyRefused(r netproxy.Report) string {
	text := strings.ReplaceAll(r.Reason, "_", " ")
	if r.Reason != rules.ReasonNotAllowedLocal {
		return text
	}
	_, err := netip.ParseAddr(r.Host)
	local := slices.IndexFunc(r.Addrs, rules.IsLocal)
	switch {
	case err == nil || r.Host == "localhost":
		return fmt.Sprintf("%s: a local or private address; add --network allow=%s", text, r.Host)
	case local >= 0:
		return fmt.Sprintf("%s: the name leads to %s, a local or private address; add --network local", text, r.Addrs[local])
	case r.Addrs != nil:
		return text + ": the name has no address here"
	}
	return text
}

// lines returns a line for each place that was reached, refused or not found.
func (t *tally) lines() (lines []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	texts := map[string][]string{}
	for p, n := range t.places {
		text := cmp.Or(p.request, net.JoinHostPort(p.host, strconv.Itoa(int(p.port))))
		if n > 1 {
			text += fmt.Sprintf(" (%d times)", n)
		}
		if p.why != "" {
			text += ": " + p.why
		}
		texts[p.what] = append(texts[p.what], text)
	}
	for _, what := range outcomes {
		slices.Sort(texts[what])
		for _, text := range texts[what] {
			lines = append(lines, "network: "+what+" "+text)
		}
	}
	if t.others > 0 {
		lines = append(lines, fmt.Sprintf("network: %d more attempts to reach other hosts", t.others))
	}
	return lines
}
