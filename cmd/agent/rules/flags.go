package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/hold"
)

// PolicyFlags say which commands clients may start.
type PolicyFlags struct {
	ExecPolicy          string `env:"AGENT_EXEC_POLICY" group:"policy" type:"path" placeholder:"DIR" help:"Folder with rules, files whose names end in .rules: clients may start what these do not forbid. The agent does not start if one of them is wrong; SIGHUP has them read again. See --exec-policy-enforce."`
	ExecPolicyUnmatched string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_UNMATCHED" group:"policy" placeholder:"DECISION" help:"Decision about commands that no rule matches: allow, prompt or forbidden. Default: allow."`
	ExecPolicyOpaque    string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_OPAQUE" group:"policy" placeholder:"DECISION" help:"Decision about scripts of shells that cannot be taken apart. Default: that of --exec-policy-unmatched."`
	ExecPolicyForcedRM  string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_FORCED_RM" name:"exec-policy-forced-rm" group:"policy" placeholder:"DECISION" help:"Decision about rm -f that no rule matches. Default: allow."`
	ExecPolicyEnforce   string `default:"" enum:",start,tree" env:"AGENT_EXEC_POLICY_ENFORCE" group:"policy" placeholder:"WHERE" help:"start: rules are asked about what clients start. tree: also about every program that it executes, whichever shell or program does that; the agent does not start where the kernel cannot have that enforced. Default: tree where the kernel can, else start."`
	ExecPolicyUnasked   string `default:"" enum:",allow,forbidden" env:"AGENT_EXEC_POLICY_UNASKED" group:"policy" placeholder:"DECISION" help:"What prompt means for a client that cannot be asked: allow or forbidden. Default: forbidden."`
}

// CheckPolicy finds flags without what they are about.
func (f *PolicyFlags) CheckPolicy() error {
	if f.ExecPolicy == "" && *f != (PolicyFlags{}) {
		return errors.New("--exec-policy-unmatched, -opaque, -forced-rm, -enforce and -unasked need --exec-policy")
	}
	return nil
}

// ReadPolicy reads the rules; nil without a folder. It finds out where they can be asked, if that
// is not told, and refuses to have them asked where they cannot be.
func (f *PolicyFlags) ReadPolicy(log *slog.Logger) (*execpolicy.Current, error) {
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
	return execpolicy.NewCurrent(p), nil
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

// FollowPolicy reads the rules again at each signal, and has those stay that are in force if there
// is anything wrong with the new ones. The function that it returns ends that, and waits.
func (f *PolicyFlags) FollowPolicy(current *execpolicy.Current, signals <-chan os.Signal, log *slog.Logger) (stop func()) {
	if current == nil {
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
			}
			p, err := f.read()
			if err != nil {
				log.Error("the rules about commands cannot be read: those before stay", "error", err)
				continue
			}
			current.Set(p)
			log.Info("the rules about commands were read again, for what is started from now on", "rules", p.Rules.Len())
		}
	})
	return func() {
		cancel()
		following.Wait()
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
