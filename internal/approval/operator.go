package approval

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/secretfile"
)

// Rules says where the rules of an operator are, and what holds where no rule does. A decision is
// allow, prompt or forbidden.
type Rules struct {
	Folder       string // of files whose names end in .rules
	Unmatched    string // decision about commands that no rule matches; "": allow
	Opaque       string // decision about scripts of shells that cannot be taken apart; "": Unmatched
	ForcedRM     string // decision about rm -f that no rule matches; "": allow
	Enforce      string // start or tree; "": tree where the kernel can, else start
	Amend        bool   // add a rule that a client accepts a command with
	AllowUnasked bool   // as in [execpolicy.Policy]
}

// Operator has the rules of an operator in force, and where they come from. The methods of nil
// have none.
type Operator struct {
	rules   Rules
	log     *slog.Logger
	current *execpolicy.Current

	mu sync.Mutex // held from reading the rules until they are in force
}

// NotReread is the line of the log for an error of [Operator.Reread].
const NotReread = "the new rules about commands cannot be read, so the old ones stay in force"

// TreeError says why this host cannot have rules asked about what commands execute.
type TreeError struct{ Reason error }

func (e *TreeError) Error() string {
	return "rules cannot decide about programs that commands execute: " + e.Reason.Error()
}

func (e *TreeError) Unwrap() error { return e.Reason }

// ReadRules reads rules. It finds out where they can be asked, if that is not told, and refuses to
// have them asked where they cannot be, with a [TreeError]. A nil log discards.
func ReadRules(r Rules, log *slog.Logger) (*Operator, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	o := &Operator{rules: r, log: log}
	p, err := o.read()
	if err == nil {
		p.Enforce, err = o.settle()
	}
	if err != nil {
		return nil, err
	}
	amend := o.amend
	if !r.Amend {
		amend = nil
	}
	o.current = execpolicy.NewCurrent(p, amend)
	o.tell("the rules about commands were read", p)
	return o, nil
}

// tell says how many rules were read. There may be none since a file has another name, and nobody
// would notice: then much is allowed.
func (o *Operator) tell(what string, p *execpolicy.Policy) {
	if p.Rules.Len() == 0 && !o.rules.Amend { // which begins with none
		o.log.Warn("there are no rules about commands: the names of rule files must end in .rules", "folder", o.rules.Folder)
		return
	}
	o.log.Info(what, "rules", p.Rules.Len())
}

// settle says where rules are asked, for good: what the operator does not say is what this host
// can.
func (o *Operator) settle() (execpolicy.Enforce, error) {
	if o.rules.Enforce == execpolicy.AtStart.String() {
		return execpolicy.AtStart, nil
	}
	err := confine.TryJudged(nil)
	switch {
	case err == nil:
		o.rules.Enforce = execpolicy.InTree.String()
	case o.rules.Enforce == "":
		o.log.Warn("rules decide about commands that clients start, but not about programs that these execute", "reason", err)
		o.rules.Enforce = execpolicy.AtStart.String()
	default:
		return execpolicy.InTree, &TreeError{err}
	}
	return execpolicy.ParseEnforce(o.rules.Enforce)
}

// Current returns the rules in force.
func (o *Operator) Current() *execpolicy.Current {
	if o == nil {
		return nil
	}
	return o.current
}

// Hidden are the paths that no confined command may see: who changes the folder could let
// everything run.
func (o *Operator) Hidden() []string {
	if o == nil {
		return nil
	}
	paths, _ := secretfile.Hide(o.rules.Folder, nil)
	return paths
}

// Reread puts the rules in the folder into force. Those before stay if there is anything wrong with
// the new ones.
func (o *Operator) Reread() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := o.read()
	if err != nil {
		return err
	}
	o.current.Set(p)
	o.tell("the rules about commands were read again; they apply to commands that start from now on", p)
	return nil
}

// amend is for [execpolicy.NewCurrent].
func (o *Operator) amend(prefix []string) {
	file := filepath.Join(o.rules.Folder, execpolicy.Amendments)
	added, err := execpolicy.Amend(file, prefix)
	if err != nil {
		o.log.Error("the rule with which a client has accepted a command cannot be added", "file", file, "error", err)
	}
	if err != nil || !added {
		return
	}
	o.log.Info("a client has accepted a command with a rule, which was added", "file", file, "allows", rule.Quote(prefix))
	if err := o.Reread(); err != nil {
		o.log.Error(NotReread, "error", err)
	}
}

func (o *Operator) read() (*execpolicy.Policy, error) {
	r := &o.rules
	all, err := execpolicy.Load(r.Folder)
	if err != nil {
		return nil, err
	}
	p := &execpolicy.Policy{Rules: all, AllowUnasked: r.AllowUnasked}
	if p.Enforce, err = execpolicy.ParseEnforce(cmp.Or(r.Enforce, execpolicy.AtStart.String())); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		to   *rule.Decision
		name string
	}{{&p.Unmatched, r.Unmatched}, {&p.Opaque, cmp.Or(r.Opaque, r.Unmatched)}, {&p.ForcedRm, r.ForcedRM}} {
		if *d.to, err = rule.ParseDecision(cmp.Or(d.name, rule.Allow.String())); err != nil {
			return nil, err
		}
	}
	return p, nil
}
