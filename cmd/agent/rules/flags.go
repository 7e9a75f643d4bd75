package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/hold"
	"github.com/execagent/execagent/internal/secretfile"
)

// PolicyFlags say which commands may be started.
type PolicyFlags struct {
	ExecPolicy          string `env:"AGENT_EXEC_POLICY" group:"policy" type:"path" placeholder:"DIR" help:"Folder with rules about commands, files whose names end in .rules: what they forbid is not started. Nothing starts if one of them is wrong; a serving agent reads them again at SIGHUP. See --exec-policy-enforce."`
	ExecPolicyUnmatched string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_UNMATCHED" group:"policy" placeholder:"DECISION" help:"Decision about commands that no rule matches: allow, prompt or forbidden. Default: allow."`
	ExecPolicyOpaque    string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_OPAQUE" group:"policy" placeholder:"DECISION" help:"Decision about scripts of shells that cannot be taken apart. Default: that of --exec-policy-unmatched."`
	ExecPolicyForcedRM  string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_FORCED_RM" name:"exec-policy-forced-rm" group:"policy" placeholder:"DECISION" help:"Decision about rm -f that no rule matches. Default: allow."`
	ExecPolicyEnforce   string `default:"" enum:",start,tree" env:"AGENT_EXEC_POLICY_ENFORCE" group:"policy" placeholder:"WHERE" help:"start: rules are asked about what is started. tree: also about every program that it executes, whichever shell or program does that; nothing starts where the kernel cannot have that enforced. Default: tree where the kernel can, else start."`
	ExecPolicyAmend     bool   `env:"AGENT_EXEC_POLICY_AMEND" group:"policy" help:"Add a rule to default.rules in the folder when somebody accepts a command with one, unless another rule asks about it. Other agents read it when they start, or at SIGHUP."`
	ExecPolicyUnasked   string `default:"" enum:",allow,forbidden" env:"AGENT_EXEC_POLICY_UNASKED" group:"policy" placeholder:"DECISION" help:"What prompt means where nobody can be asked: allow or forbidden. Default: forbidden."`
}

// CheckPolicy finds flags without what they are about.
func (f *PolicyFlags) CheckPolicy() error {
	if f.ExecPolicy == "" && *f != (PolicyFlags{}) {
		return errors.New("--exec-policy-unmatched, -opaque, -forced-rm, -enforce, -amend and -unasked need --exec-policy")
	}
	return nil
}

// Operator has the rules of the operator in force, and where they come from. Nil is none.
type Operator struct {
	flags   *PolicyFlags
	log     *slog.Logger
	current *execpolicy.Current

	mu sync.Mutex // held from reading the rules until they are in force
}

// ReadPolicy reads the rules; nil without a folder. It finds out where they can be asked, if that
// is not told, and refuses to have them asked where they cannot be.
func (f *PolicyFlags) ReadPolicy(log *slog.Logger) (*Operator, error) {
	if f.ExecPolicy == "" {
		return nil, nil
	}
	p, err := f.read()
	if err == nil {
		p.Enforce, err = f.settle(log)
	}
	if err != nil {
		return nil, err
	}
	o := &Operator{flags: f, log: log}
	amend := o.amend
	if !f.ExecPolicyAmend {
		amend = nil
	}
	o.current = execpolicy.NewCurrent(p, amend)
	o.tell("the rules about commands were read", p)
	return o, nil
}

// tell says how many rules were read. There may be none since a file has another name, and nobody
// would notice: then much is allowed.
func (o *Operator) tell(what string, p *execpolicy.Policy) {
	if p.Rules.Len() == 0 && !o.flags.ExecPolicyAmend { // which begins with none
		o.log.Warn("there are no rules about commands: names of their files end in .rules", "folder", o.flags.ExecPolicy)
		return
	}
	o.log.Info(what, "rules", p.Rules.Len())
}

// settle says where rules are asked, for good: what the flag does not say is what this host can.
func (f *PolicyFlags) settle(log *slog.Logger) (execpolicy.Enforce, error) {
	if f.ExecPolicyEnforce == execpolicy.AtStart.String() {
		return execpolicy.AtStart, nil
	}
	argv, code, err := hold.Probe()
	if err == nil {
		err = confine.TryJudged(argv, code, nil)
	}
	switch {
	case err == nil:
		f.ExecPolicyEnforce = execpolicy.InTree.String()
	case f.ExecPolicyEnforce == "":
		log.Warn("rules are asked about what clients start, and not about what that executes", "reason", err)
		f.ExecPolicyEnforce = execpolicy.AtStart.String()
	default:
		return execpolicy.InTree, fmt.Errorf("--exec-policy-enforce tree: %w", err)
	}
	return execpolicy.ParseEnforce(f.ExecPolicyEnforce)
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
	paths, _ := secretfile.Hide(o.flags.ExecPolicy, nil)
	return paths
}

// Follow reads the rules again at each signal. The function that it returns ends that, and waits.
func (o *Operator) Follow(signals <-chan os.Signal) (stop func()) {
	if o == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				o.reread()
			}
		}
	})
	return func() {
		cancel()
		following.Wait()
	}
}

// reread puts the rules in the folder into force. Those before stay if there is anything wrong with
// the new ones.
func (o *Operator) reread() {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := o.flags.read()
	if err != nil {
		o.log.Error("the rules about commands cannot be read: those before stay", "error", err)
		return
	}
	o.current.Set(p)
	o.tell("the rules about commands were read again, for what is started from now on", p)
}

// amend is for [execpolicy.NewCurrent].
func (o *Operator) amend(prefix []string) {
	file := filepath.Join(o.flags.ExecPolicy, execpolicy.Amendments)
	added, err := execpolicy.Amend(file, prefix)
	switch {
	case err != nil:
		o.log.Error("a rule that a client has accepted a command with cannot be added", "file", file, "error", err)
	case added:
		o.log.Info("a client has accepted a command with a rule, which was added", "file", file, "allows", rule.Quote(prefix))
		o.reread()
	}
}

func (f *PolicyFlags) read() (*execpolicy.Policy, error) {
	all, err := execpolicy.Load(f.ExecPolicy)
	if err != nil {
		return nil, fmt.Errorf("--exec-policy: %w", err)
	}
	p := &execpolicy.Policy{Rules: all, AllowUnasked: f.ExecPolicyUnasked == rule.Allow.String()}
	if p.Enforce, err = execpolicy.ParseEnforce(cmp.Or(f.ExecPolicyEnforce, execpolicy.AtStart.String())); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		to   *rule.Decision
		name string
	}{
		{&p.Unmatched, f.ExecPolicyUnmatched},
		{&p.Opaque, cmp.Or(f.ExecPolicyOpaque, f.ExecPolicyUnmatched)},
		{&p.ForcedRm, f.ExecPolicyForcedRM},
	} {
		if *d.to, err = rule.ParseDecision(cmp.Or(d.name, rule.Allow.String())); err != nil {
			return nil, err
		}
	}
	return p, nil
}
