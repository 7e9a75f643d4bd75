package local

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/refusals"
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
		refused := egress.Refused(r)
		p.what, p.why = outcomes[1], refused.Reason
		if r.Path != "" {
			p.request = refused.Subject
		}
		if ask := refusals.Flags(refused.Need, refused.At); ask != "" && !t.means(r.Host) {
			p.why += "; " + ask
		}
	}
	t.count(p)
}

// unreached notes that nobody was found after a verdict.
func (t *tally) unreached(q netproxy.Question, err error) {
	t.count(destination{what: outcomes[2], host: q.Host, port: q.Port, why: whyFailed(err)})
}

// means reports whether a host could be the command's own, see [egress.Plan.Means].
func (t *tally) means(host string) bool { return t.plan != nil && t.plan.Means(host) }

func (t *tally) count(p destination) {
	if p.why != "" && p.request == "" && t.means(p.host) {
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

// refuses reports whether something was refused.
func (t *tally) refuses() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.places {
		if p.what == outcomes[1] {
			return true
		}
	}
	return false
}

// reached returns the hosts that were reached and that a plan does not allow, with the port if it is not one of the
// web's.
func (t *tally) reached(plan *egress.Plan) (hosts []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.places {
		if p.what != outcomes[0] || plan.Allows(p.host, p.port) {
			continue
		}
		host := p.host
		if p.port != 443 && p.port != 80 {
			host = net.JoinHostPort(host, strconv.Itoa(int(p.port)))
		}
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
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
