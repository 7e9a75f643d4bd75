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

// Rules says where the rules of an operator are, and which decisions hold if no rule matches. A
// decision is allow, prompt or forbidden.
type Rules struct {
	Folder       string // of files whose names end in .rules
	Unmatched    string // decision about commands that no rule matches; "": allow
	Opaque       string // decision about shell scripts that cannot be split; "": Unmatched
	ForcedRM     string // decision about rm -f that no rule matches; "": allow
	Enforce      string // start or tree; "": tree if the kernel can, else start
	Amend        bool   // add a rule that a client accepts a command with
	AllowUnasked bool   // as in [execpolicy.Policy]
}

// Operator has the current rules of an operator, and their source. A nil Operator has none.
type Operator struct {
	rules   Rules
	log     *slog.Logger
	current *execpolicy.Current

	mu sync.Mutex // held from reading the rules until they are current
}

// NotReread is the line of the log for an error of [Operator.Reread].
const NotReread = "the new rules about commands cannot be read, so the old ones stay in force"

// TreeError says why this host cannot judge the programs that commands execute.
type TreeError struct{ Reason error }

func (e *TreeError) Error() string {
	return "rules cannot decide about programs that commands execute: " + e.Reason.Error()
}

func (e *TreeError) Unwrap() error { return e.Reason }

// ReadRules reads rules. If Enforce is "", it finds out what this host can enforce. If the host
// cannot enforce tree, the error is a [TreeError]. A nil log discards.
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

// tell logs how many rules were read. It warns if there are none, because nobody would notice a
// wrongly named file, which allows much.
func (o *Operator) tell(what string, p *execpolicy.Policy) {
	if p.Rules.Len() == 0 && !o.rules.Amend { // which begins with none
		o.log.Warn("there are no rules about commands: the names of rule files must end in .rules", "folder", o.rules.Folder)
		return
	}
	o.log.Info(what, "rules", p.Rules.Len())
}

// settle decides finally where rules are enforced: the operator's choice, or else whatever this
// host can.
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

// Current returns the current rules.
func (o *Operator) Current() *execpolicy.Current {
	if o == nil {
		return nil
	}
	return o.current
}

// Hidden returns the paths that no confined command may see, because changing the folder
// could allow everything.
func (o *Operator) Hidden() []string {
	if o == nil {
		return nil
	}
	paths, _ := secretfile.Hide(o.rules.Folder, nil)
	return paths
}

// Reread makes the rules in the folder the current ones. The old rules stay if the new ones have an
// error.
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
