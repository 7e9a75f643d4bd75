package approval

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
)

// conclude remembers what was accepted for more than once, tells the operator, and tells the client:
// in this order, and nowhere else.
func (p *Process) conclude(q *question, o outcome) {
	p.remember(q, &o)
	if o.noted != "" {
		p.desk.note(Decision{Kind: q.kind, Program: q.Exe, PID: q.PID, Decider: q.Decider, Outcome: o.noted})
	}
	p.tell(q, &o)
}

// maxRemembered is how many commands, and how many beginnings of commands, are remembered.
const maxRemembered = 1024

// key is what a command is remembered by: its program, a path or a name, and its arguments. How a
// command calls itself does not count: a process may say anything there.
func key(program string, argv []string) string {
	return program + "\x00" + strings.Join(argv[min(1, len(argv)):], "\x00")
}

// remembers reports whether a command needs not be asked about again.
func (p *Process) remembers(q *question) bool {
	if q.Truncated {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.again[key(q.Exe+"\x00"+q.Identity, q.Argv)] || p.again[key(path.Base(q.Exe), q.Argv)] || slices.ContainsFunc(p.prefixes, func(prefix []string) bool {
		return len(prefix) <= len(q.Proposed) && slices.Equal(prefix, q.Proposed[:len(prefix)])
	})
}

// remember keeps what was accepted for more than once, in memory and, if the operator wants that, in
// a rule.
func (p *Process) remember(q *question, o *outcome) {
	var keys []string
	if o.again && !q.Truncated {
		keys = append(keys, key(q.Exe+"\x00"+q.Identity, q.Argv))
	}
	if o.allowed && q.kind == protocol.ApprovalStart {
		for _, argv := range slices.Concat(q.commands, [][]string{q.Argv}) { // whoever accepts a script accepts its commands
			if len(argv) > 0 {
				keys = append(keys, key(path.Base(argv[0]), argv))
			}
		}
	}
	if len(keys) > 0 || o.prefix != nil {
		p.keep(keys, o.prefix)
	}
	if o.prefix != nil {
		p.plan.current.Amend(q.Proposed, o.prefix, q.judge)
	}
}

func (p *Process) keep(keys, prefix []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if prefix != nil && len(p.prefixes) < maxRemembered {
		p.prefixes = append(p.prefixes, prefix)
	}
	for _, k := range keys {
		if p.again == nil {
			p.again = map[string]bool{}
		}
		if len(p.again) < maxRemembered {
			p.again[k] = true
		}
	}
}

// reports reports whether the client wants to hear of an outcome.
func (p *Plan) reports(o *outcome) bool {
	switch {
	case !o.allowed:
		return true
	case o.noted == "": // an earlier answer has decided, and nobody was to be asked
		return p.report == protocol.ReportAll
	}
	return p.report != protocol.ReportRefused
}

// tell tells the client of a decision, if it wants to hear of it.
func (p *Process) tell(q *question, o *outcome) {
	if able, _ := p.desk.now(); !able || !p.plan.reports(o) {
		return
	}
	d := q.decision(o.by)
	d.ProcessID, d.ApprovalID, d.Decision = p.id, o.id, rule.Forbidden.String()
	if o.allowed {
		d.Decision = rule.Allow.String()
	}
	p.mu.Lock()
	ok := p.tally.add(time.Now(), &d)
	p.mu.Unlock()
	if ok {
		p.desk.Tell(protocol.MethodExecDecision, &d)
	}
}

// maxTold is how many decisions about a process are told in a second.
const maxTold = 100

// tally counts what is told. Its process guards it.
type tally struct {
	second        int64
	told, dropped int
}

// add tells whether a decision is to be told, and notes in it how many before were not.
func (t *tally) add(now time.Time, d *protocol.ExecDecision) bool {
	if s := now.Unix(); s != t.second {
		t.second, t.told = s, 0
	}
	if t.told++; t.told > maxTold {
		t.dropped++
		return false
	}
	d.Dropped, t.dropped = t.dropped, 0
	return true
}
