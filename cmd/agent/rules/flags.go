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
)

// PolicyFlags say which commands clients may start.
type PolicyFlags struct {
	ExecPolicy          string `env:"AGENT_EXEC_POLICY" group:"policy" type:"path" placeholder:"DIR" help:"Folder with rules, files whose names end in .rules: clients may start what these do not forbid. The agent does not start if one of them is wrong; SIGHUP has them read again. Rules are asked about what clients start, not about what that executes."`
	ExecPolicyUnmatched string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_UNMATCHED" group:"policy" placeholder:"DECISION" help:"Decision about commands that no rule matches: allow, prompt or forbidden. Default: allow."`
	ExecPolicyOpaque    string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_OPAQUE" group:"policy" placeholder:"DECISION" help:"Decision about scripts of shells that cannot be taken apart. Default: that of --exec-policy-unmatched."`
	ExecPolicyForcedRM  string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_FORCED_RM" name:"exec-policy-forced-rm" group:"policy" placeholder:"DECISION" help:"Decision about rm -f that no rule matches. Default: allow."`
	ExecPolicyUnasked   string `default:"" enum:",allow,forbidden" env:"AGENT_EXEC_POLICY_UNASKED" group:"policy" placeholder:"DECISION" help:"What prompt means for a client that cannot be asked: allow or forbidden. Default: forbidden."`
}

// CheckPolicy finds flags without what they are about.
func (f *PolicyFlags) CheckPolicy() error {
	if f.ExecPolicy == "" && *f != (PolicyFlags{}) {
		return errors.New("--exec-policy-unmatched, -opaque, -forced-rm and -unasked need --exec-policy")
	}
	return nil
}

// ReadPolicy reads the rules; nil without a folder.
func (f *PolicyFlags) ReadPolicy() (*execpolicy.Current, error) {
	if f.ExecPolicy == "" {
		return nil, nil
	}
	p, err := f.read()
	if err != nil {
		return nil, err
	}
	return execpolicy.NewCurrent(p), nil
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
