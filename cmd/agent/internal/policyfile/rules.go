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
	ExecPolicy          string `env:"AGENT_EXEC_POLICY" group:"policy" type:"path" placeholder:"DIR" help:"Folder with rules about commands, in files whose names end in .rules. Commands that the rules forbid are not started (see --exec-policy-enforce). If a file has an error, no command is started. A serving agent reads the files again at SIGHUP."`
	ExecPolicyUnmatched string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_UNMATCHED" group:"policy" placeholder:"DECISION" help:"Decision for commands that no rule matches: allow, prompt or forbidden. Default: allow."`
	ExecPolicyOpaque    string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_OPAQUE" group:"policy" placeholder:"DECISION" help:"Decision for shell scripts that cannot be split into single commands. Default: the value of --exec-policy-unmatched."`
	ExecPolicyForcedRM  string `default:"" enum:",allow,prompt,forbidden" env:"AGENT_EXEC_POLICY_FORCED_RM" name:"exec-policy-forced-rm" group:"policy" placeholder:"DECISION" help:"Decision for rm -f that no rule matches. Default: allow."`
	ExecPolicyEnforce   string `default:"" enum:",start,tree" env:"AGENT_EXEC_POLICY_ENFORCE" group:"policy" placeholder:"WHERE" help:"start: rules decide about the commands that clients start. tree: rules also decide about every program that such a command executes, in any way; if the kernel cannot enforce that, nothing starts. Default: tree if the kernel can enforce it, else start."`
	ExecPolicyAmend     bool   `env:"AGENT_EXEC_POLICY_AMEND" group:"policy" help:"When somebody approves a command with a rule, add the rule to default.rules in the folder, unless another rule asks about that command. Other agents read the rule when they start, or at SIGHUP."`
	ExecPolicyUnasked   string `default:"" enum:",allow,forbidden" env:"AGENT_EXEC_POLICY_UNASKED" group:"policy" placeholder:"DECISION" help:"What prompt means if nobody can be asked: allow or forbidden. Default: forbidden."`
}

// CheckPolicy refuses flags about rules without rules.
func (f *RuleFlags) CheckPolicy() error {
	if f.ExecPolicy == "" && *f != (RuleFlags{}) {
		return errors.New("--exec-policy-unmatched, -opaque, -forced-rm, -enforce, -amend and -unasked need --exec-policy")
	}
	return nil
}

// rules returns the rules that the flags name.
func (f *RuleFlags) rules() agent.Rules {
	return agent.Rules{
		Folder: f.ExecPolicy, Unmatched: f.ExecPolicyUnmatched, Opaque: f.ExecPolicyOpaque, ForcedRM: f.ExecPolicyForcedRM,
		Enforce: f.ExecPolicyEnforce, Amend: f.ExecPolicyAmend, AllowUnasked: f.ExecPolicyUnasked == "allow",
	}
}

// ReadHere reads the rules for a command of this program. It returns nil if the flags name no
// folder.
func (f *RuleFlags) ReadHere(log *slog.Logger) (*approval.Operator, error) {
	if f.ExecPolicy == "" {
		return nil, nil
	}
	o, err := approval.ReadRules(approval.Rules(f.rules()), log)
	return o, flagged(err)
}

// ReadPolicy reads the rules for an agent. It returns nil if the flags name no folder.
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
