package approval

import (
	"cmp"
	"context"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/script"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// outcome is the outcome of a question.
type outcome struct {
	allowed bool
	by      string   // what decided, or the reason why the question was closed
	noted   string   // for the operator, one of [Outcomes]; "": nothing
	id      string   // of the question at the client; "" if its turn has not come
	again   bool     // the same command needs not be asked about again
	prefix  []string // nor do commands with this beginning; nil: none
	end     bool     // the client wants the process to end
	text    string   // why the command is refused, if it is about a start
}

// The sources of decisions, as reported to the client.
const (
	byRule     = "rule"
	byMemo     = "memo" // an answer before
	byApproval = "approval"
)

// decide asks the client, and changes nothing: [ProcessQuestions.conclude] does. If the operator's
// policy is replaced in the meantime, the question is closed; then an earlier answer or the new
// policy decides, or the client is asked again. The returned question is q under the last policy.
func (p *ProcessQuestions) decide(ctx context.Context, q question) (question, outcome) {
	for {
		answer, id, err := p.ask(ctx, &q)
		if able, _ := p.desk.now(); err != nil && able && id != "" {
			p.desk.Tell(protocol.MethodExecApprovalClosed, &protocol.ExecApprovalClosed{ProcessID: p.id, ApprovalID: id, Reason: err.Error()})
		}
		var o outcome
		switch {
		case err == nil:
			o = q.read(answer)
		case errors.Is(err, errReplaced):
			q, o = p.review(q)
		default:
			o = q.unanswered(err)
		}
		if o.by != "" {
			o.id = id
			return q, o
		}
	}
}

// ask asks the client when it is the question's turn; id is "" if the turn has not come. The time of
// the question begins then.
func (p *ProcessQuestions) ask(ctx context.Context, q *question) (answer protocol.ExecApprovalAnswer, id string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer p.plan.current.Replaced(q.operator, func() { cancel(errReplaced) })()
	for _, turn := range []chan struct{}{p.turn, p.desk.turn} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return answer, "", context.Cause(ctx)
		}
	}
	if ctx.Err() != nil {
		return answer, "", context.Cause(ctx)
	}
	unique, err := uuid.NewV7()
	if err != nil {
		return answer, "", err
	}
	params := q.params()
	params.ProcessID, params.ApprovalID, params.AfterSeq = p.id, unique.String(), p.runner.Last()
	params.TimeoutMs = uint64(p.plan.timeout.Milliseconds())
	ctx, stop := context.WithTimeoutCause(ctx, p.plan.timeout, errTimeout)
	defer stop()
	answer, err = p.desk.ask(ctx, &params)
	return answer, params.ApprovalID, err
}

// rejected is the reason of a refusal by the user, in the words of the reference.
const rejected = "rejected by user"

// read takes an answer.
func (q *question) read(a protocol.ExecApprovalAnswer) outcome {
	o := outcome{allowed: true, by: byApproval, noted: accepted}
	switch a.Decision {
	case protocol.ApprovalAccept:
	case protocol.ApprovalAcceptForProcess:
		o.again = true
	case protocol.ApprovalAcceptWithRule:
		// If a rule asks, nothing is proposed, because no other rule can override it.
		if n := len(a.Prefix); n > 0 && n <= len(q.Proposed) && slices.Equal(q.Proposed[:n], a.Prefix) && !execpolicy.TooWide(a.Prefix) {
			o.prefix = a.Prefix
		}
	default:
		o = outcome{by: byApproval, noted: declined, end: a.Decision == protocol.ApprovalCancel, text: q.Reason + ": " + rejected}
	}
	return o
}

// unanswered is the outcome of a question that was closed for a reason.
func (q *question) unanswered(why error) outcome {
	o := outcome{by: why.Error(), noted: withdrawn, text: q.Reason + ": nobody has approved it"}
	switch {
	case errors.Is(why, errUnable) && q.Unasked:
		o.allowed, o.noted = true, unasked
	case errors.Is(why, errUnable):
		o.noted = unanswered
	case errors.Is(why, errTimeout):
		o.noted, o.text = unanswered, q.Reason+": the question was not answered in time"
	}
	return o
}

// review decides about a question again, by the policy that the operator has now. If outcome.by is
// "", the client must be asked again. A running process keeps the rules of its start: if these ask
// about a program that it executes, new rules can only forbid the program.
func (p *ProcessQuestions) review(q question) (question, outcome) {
	q.operator = p.plan.current.Policy()
	var v execpolicy.Verdict
	switch policy := p.plan.below(q.operator); {
	case q.kind == protocol.ApprovalStart:
		v = p.plan.both(q.operator).Start(p.plan.argv, p.plan.find)
		q.about(&v)
		q.keys = p.plan.keys(&v)
		if v.Decision == rule.Allow {
			return q, outcome{allowed: true, by: byRule, noted: withdrawn}
		}
	case p.remembers(&q):
		return q, outcome{allowed: true, by: byMemo, noted: withdrawn}
	case policy != nil:
		args := q.Argv[min(1, len(q.Argv)):]
		called, file := program(slices.Concat([]string{q.Called}, args)), program(slices.Concat([]string{q.Exe}, args))
		file.Covered = true
		v = policy.Exec(called, file)
	}
	if v.Decision == rule.Forbidden {
		q.Decider = v.Decider()
		return q, outcome{by: byRule, noted: refused, text: v.Reason()}
	}
	return q, outcome{}
}

// conclude remembers commands that were accepted for more than once, tells the operator, and tells
// the client, in this order. Nothing else does this.
func (p *ProcessQuestions) conclude(q *question, o outcome) {
	p.remember(q, &o)
	if o.noted != "" {
		p.desk.note(Decision{Kind: q.kind, Program: q.Exe, PID: q.PID, Decider: q.Decider, Outcome: o.noted})
	}
	if !o.allowed && q.kind == protocol.ApprovalExec && o.noted != withdrawn {
		p.runner.Refused(q.Exe, q.why(&o))
	}
	p.tell(q, &o)
}

// why says why a program was refused, and which rule says so.
func (q *question) why(o *outcome) string {
	why := cmp.Or(o.text, q.Reason)
	if rule := q.decision(o.by).Rule; rule != "" {
		why += " (" + rule + ")"
	}
	return why
}

// maxRemembered is how many commands, and how many beginnings of commands, are remembered.
const maxRemembered = 1024

// always is the number of a command that was accepted for the process.
const always = -1

// key identifies a remembered command by all that a question shows, and by the state of its files.
func key(exe, called, identity, dir string, argv []string) string {
	return strings.Join(slices.Concat([]string{exe, names(called, argv), identity, dir}, argv[min(1, len(argv)):]), "\x00")
}

// names are the names by which a program is called. Many programs do something else under another
// name.
func names(called string, argv []string) string {
	own := ""
	if len(argv) > 0 {
		own = path.Base(argv[0])
	}
	return path.Base(called) + "\x00" + own
}

// look returns the program that the process would execute for a command in the folder dir.
func (p *Plan) look(argv []string, dir string) (*judge.Exec, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	found, err := procs.LookPath(argv[0], dir, p.env)
	if err != nil {
		return nil, err
	}
	if argv[0] == p.argv[0] && p.exe != "" {
		found = p.exe // see [Plan.Pin]
	}
	return judge.Look(found, argv, dir)
}

// key returns the key that a command would have if the process executed it in the folder dir; "" if
// there is no such program or folder.
func (p *Plan) key(argv []string, dir string) string {
	e, err := p.look(argv, dir)
	if err != nil {
		return ""
	}
	return key(e.Real[0], e.Called, e.Identity, e.Dir, argv)
}

// keys returns the key of the command of a start, and then the keys of the commands of its script, if
// it is plain: a question about the script shows these.
func (p *Plan) keys(v *execpolicy.Verdict) []string {
	keys := []string{p.key(p.argv, p.dir)}
	if !v.Plain {
		return keys
	}
	folders := script.Folders(p.argv[2], p.dir)
	for i, argv := range v.Commands {
		if i < len(folders) && folders[i] != "" {
			keys = append(keys, p.key(argv, folders[i]))
		}
	}
	return keys
}

// beginning is a beginning of commands that was accepted: the path of the program without links, words,
// and the names by which the program was called.
type beginning struct {
	words []string
	names string
}

// remembers reports whether a command need not be asked about again. A command that was accepted once
// is forgotten with that.
func (p *ProcessQuestions) remembers(q *question) bool {
	if q.Truncated {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := key(q.Exe, q.Called, q.Identity, q.Dir, q.Argv)
	switch p.again[k] {
	case 0:
		return slices.ContainsFunc(p.prefixes, func(b beginning) bool {
			return len(b.words) <= len(q.Proposed) && slices.Equal(b.words, q.Proposed[:len(b.words)]) && b.names == names(q.Called, q.Argv)
		})
	case 1:
		delete(p.again, k)
	case always:
	default:
		p.again[k]--
	}
	return true
}

// remember keeps commands that were accepted, in memory and, if the operator wants it, in a rule.
// Accepting a script accepts each of its commands, as often as it stands there.
func (p *ProcessQuestions) remember(q *question, o *outcome) {
	keys := q.keys
	switch {
	case !o.allowed || o.by != byApproval:
		keys = nil
	case q.kind == protocol.ApprovalStart && !o.again && len(keys) > 0:
		keys = keys[1:]
	case q.kind == protocol.ApprovalExec && o.again && !q.Truncated:
		keys = []string{key(q.Exe, q.Called, q.Identity, q.Dir, q.Argv)}
	}
	prefix := beginning{o.prefix, names(q.Called, q.Argv)}
	if o.prefix != nil && q.kind == protocol.ApprovalStart { // a program below is known by its path
		e, err := p.plan.look(o.prefix, p.plan.dir)
		if prefix.words = nil; err == nil {
			prefix = beginning{slices.Concat(e.Real[:1], o.prefix[1:]), names(e.Called, o.prefix)}
		}
	}
	p.mu.Lock()
	for _, k := range keys {
		if p.again == nil {
			p.again = map[string]int{}
		}
		switch n := p.again[k]; {
		case k == "" || n == 0 && len(p.again) >= maxRemembered:
		case o.again:
			p.again[k] = always
		case n != always:
			p.again[k]++
		}
	}
	if prefix.words != nil && len(p.prefixes) < maxRemembered {
		p.prefixes = append(p.prefixes, prefix)
	}
	p.mu.Unlock()
	if o.prefix != nil {
		p.plan.current.Amend(q.Proposed, o.prefix, q.judge)
	}
}

// tell reports a decision to the client, if the client wants it.
func (p *ProcessQuestions) tell(q *question, o *outcome) {
	able, _ := p.desk.now()
	earlier := o.noted == "" // an earlier answer decided, and no question was needed
	if !able || o.allowed && (p.plan.report == protocol.ReportRefused || earlier && p.plan.report != protocol.ReportAll) {
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

// maxTold is how many decisions about a process are reported per second.
const maxTold = 100

// tally counts reported decisions. The mutex of its process guards it.
type tally struct {
	second        int64
	told, dropped int
}

// add reports whether a decision must be reported, and notes in it how many earlier ones were not.
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
