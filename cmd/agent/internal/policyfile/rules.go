package policyfile

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/approval"
)

// RuleFlags say which commands may be started.
type RuleFlags struct {
	ExecPolicy          string `env:"AGENT_EXEC_POLICY" group:"policy" type:"path" placeholder:"DIR" help:"Folder with rules about commands, files whose names end in .rules: what they forbid is not started. Nothing starts if one of them is wrong; a serving agent reads them again at SIGHUP. See --exec-policy-enforce."`
	ExecPolicyUnmatched string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_UNMATCHED" group:"policy" placeholder:"DECISION" help:"Decision about commands that no rule matches: allow, prompt or forbidden. Default: allow."`
	ExecPolicyOpaque    string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_OPAQUE" group:"policy" placeholder:"DECISION" help:"Decision about scripts of shells that cannot be taken apart. Default: that of --exec-policy-unmatched."`
	ExecPolicyForcedRM  string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_FORCED_RM" name:"exec-policy-forced-rm" group:"policy" placeholder:"DECISION" help:"Decision about rm -f that no rule matches. Default: allow."`
	ExecPolicyEnforce   string `default:"" enum:",start,tree" env:"AGENT_EXEC_POLICY_ENFORCE" group:"policy" placeholder:"WHERE" help:"start: rules are asked about what is started. tree: also about every program that it executes, whichever shell or program does that; nothing starts where the kernel cannot have that enforced. Default: tree where the kernel can, else start."`
	ExecPolicyAmend     bool   `env:"AGENT_EXEC_POLICY_AMEND" group:"policy" help:"Add a rule to default.rules in the folder when somebody accepts a command with one, unless another rule asks about it. Other agents read it when they start, or at SIGHUP."`
	ExecPolicyUnasked   string `default:"" enum:",allow,forbidden" env:"AGENT_EXEC_POLICY_UNASKED" group:"policy" placeholder:"DECISION" help:"What prompt means where nobody can be asked: allow or forbidden. Default: forbidden."`
}

// CheckPolicy refuses flags about rules without rules.
func (f *RuleFlags) CheckPolicy() error {
	if f.ExecPolicy == "" && *f != (RuleFlags{}) {
		return errors.New("--exec-policy-unmatched, -opaque, -forced-rm, -enforce, -amend and -unasked need --exec-policy")
	}
	return nil
}

// rules are the rules that the flags name.
func (f *RuleFlags) rules() agent.Rules {
	return agent.Rules{
		Folder: f.ExecPolicy, Unmatched: f.ExecPolicyUnmatched, Opaque: f.ExecPolicyOpaque, ForcedRM: f.ExecPolicyForcedRM,
		Enforce: f.ExecPolicyEnforce, Amend: f.ExecPolicyAmend, AllowUnasked: f.ExecPolicyUnasked == "allow",
	}
}

// ReadHere reads the rules for a command of this program; nil without a folder.
func (f *RuleFlags) ReadHere(log *slog.Logger) (*approval.Operator, error) {
	if f.ExecPolicy == "" {
		return nil, nil
	}
	o, err := approval.ReadRules(approval.Rules(f.rules()), log)
	return o, flagged(err)
}

// ReadPolicy reads the rules for an agent; nil without a folder.
func (f *RuleFlags) ReadPolicy(log *slog.Logger) (*agent.ExecPolicy, error) {
	if f.ExecPolicy == "" {
		return nil, nil
	}
	p, err := agent.ReadPolicy(f.rules(), log)
	return p, flagged(err)
}

// flagged puts the name of the flag before an error of reading rules.
func flagged(err error) error {
	if tree, ok := errors.AsType[*approval.TreeError](err); ok {
		return fmt.Errorf("--exec-policy-enforce tree: %w", tree.Reason)
	}
	if err != nil {
		return fmt.Errorf("--exec-policy: %w", err)
	}
	return nil
}
