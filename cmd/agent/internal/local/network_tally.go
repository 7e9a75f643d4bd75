package local

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/protocol"
)

// maxTally is how many places are counted separately.
const maxTally = 1000

// tally counts the decisions of the proxy.
type tally struct {
	mu     sync.Mutex // guards the fields below
	places map[destination]int
	others int // decisions about further places
}

// destination is a host and a port that was reached, or refused for a reason.
type destination struct {
	host    string
	port    uint16
	refused string // "": it was reached
}

func (t *tally) add(d *protocol.PolicyDecision) {
	p := destination{host: d.Host, port: d.Port}
	if d.Decision != protocol.PolicyAllow {
		p.refused = d.Reason
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

// lines returns a line for each place that was reached or refused.
func (t *tally) lines() (lines []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var reached, refused []string
	for p, n := range t.places {
		text := fmt.Sprintf("%s:%d", p.host, p.port)
		if strings.Contains(p.host, ":") {
			text = fmt.Sprintf("[%s]:%d", p.host, p.port)
		}
		if n > 1 {
			text += fmt.Sprintf(" (%d times)", n)
		}
		if p.refused == "" {
			reached = append(reached, text)
		} else {
			refused = append(refused, text+": "+strings.ReplaceAll(p.refused, "_", " "))
		}
	}
	for _, list := range []struct {
		what  string
		texts []string
	}{{"reached", reached}, {"refused", refused}} {
		slices.Sort(list.texts)
		for _, text := range list.texts {
			lines = append(lines, "network: "+list.what+" "+text)
		}
	}
	if t.others > 0 {
		lines = append(lines, fmt.Sprintf("network: %d more attempts to reach other hosts", t.others))
	}
	return lines
}
