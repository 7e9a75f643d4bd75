package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// execRuleFlags are [policyfile.RuleFlags] for agent exec. They have no variables, because those with these names
// are for the agent that serves: they say nothing about the commands that a client starts elsewhere.
type execRuleFlags struct {
	ExecPolicy          string `type:"path" placeholder:"DIR" help:"Folder with rules about commands, in files whose names end in .rules. The agent applies them in addition to its own rules, and if it can, also to programs that the command executes. If a rule requires approval, you are asked at the terminal."`
	ExecPolicyUnmatched string `default:"" enum:",allow,prompt,forbidden" placeholder:"DECISION" help:"Decision for commands that no rule of --exec-policy matches: allow, prompt or forbidden. Default: allow."`
	ExecPolicyOpaque    string `default:"" enum:",allow,prompt,forbidden" placeholder:"DECISION" help:"Decision for shell scripts that cannot be split into single commands. Default: the value of --exec-policy-unmatched."`
	ExecPolicyForcedRM  string `default:"" enum:",allow,prompt,forbidden" name:"exec-policy-forced-rm" placeholder:"DECISION" help:"Decision for rm -f that no rule matches. Default: allow."`
	ExecPolicyEnforce   string `default:"" enum:",start,tree" placeholder:"WHERE" help:"start: rules decide about the command. tree: rules also decide about every program that it executes, in any way; if the agent cannot enforce that, nothing starts. Default: tree if the agent can enforce it, else start."`
	ExecPolicyAmend     bool   `help:"When you approve a command with a rule, add the rule to default.rules in the folder, unless another rule asks about that command. Only for an embedded agent."`
	ExecPolicyUnasked   string `default:"" enum:",allow,forbidden" placeholder:"DECISION" help:"What prompt means if nobody can be asked: allow or forbidden. Only for an embedded agent. Default: forbidden."`
}

// check finds flags that contradict each other. elsewhere says that the command runs on another agent. A flag that
// no request can carry is refused there.
func (f *execRuleFlags) check(elsewhere bool) error {
	err := (*policyfile.RuleFlags)(f).CheckPolicy()
	switch {
	case err != nil || !elsewhere:
		return err
	case f.ExecPolicyAmend:
		return errors.New("--exec-policy-amend is only for an embedded agent (--local), because another agent does not say whether it has taken a rule")
	case f.ExecPolicyUnasked != "":
		return errors.New("--exec-policy-unasked is only for an embedded agent (--local), because another agent never runs what it could ask nobody about by your rules")
	}
	return nil
}

// maxRuleFiles bounds the number of files of --exec-policy, and maxRuleFile the bytes of each. The agent has
// further bounds.
const maxRuleFiles, maxRuleFile = 256, 1 << 20

// files returns the files in the folder of --exec-policy. There is one at least, because a folder without rules
// would allow everything; with --exec-policy-amend there may be none.
func (f *execRuleFlags) files() (files []string, err error) {
	entries, err := os.ReadDir(f.ExecPolicy)
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".rules") {
			files = append(files, filepath.Join(f.ExecPolicy, entry.Name()))
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("--exec-policy: %w", err)
	case len(files) == 0 && !f.ExecPolicyAmend:
		return nil, fmt.Errorf("--exec-policy: %s has no file whose name ends in .rules", f.ExecPolicy)
	case len(files) > maxRuleFiles:
		return nil, fmt.Errorf("--exec-policy: %s has more than %d files", f.ExecPolicy, maxRuleFiles)
	}
	return files, nil
}

// ofRequest returns the rules of --exec-policy for a request; nil without the flag, and if an embedded agent
// has them, because the command does not run elsewhere. The agent parses them.
func (f *execRuleFlags) ofRequest(elsewhere bool) (*protocol.ExecApproval, error) {
	if f.ExecPolicy == "" || !elsewhere {
		return nil, nil
	}
	files, err := f.files()
	if err != nil {
		return nil, err
	}
	asked := &protocol.ExecApproval{Unmatched: f.ExecPolicyUnmatched, Opaque: f.ExecPolicyOpaque, ForcedRM: f.ExecPolicyForcedRM, Enforce: f.ExecPolicyEnforce}
	for _, file := range files {
		text, err := program.ReadFile(file, maxRuleFile)
		if err != nil {
			return nil, fmt.Errorf("--exec-policy: %w", err)
		}
		asked.Rules = append(asked.Rules, protocol.RuleFile{Name: filepath.Base(file), Text: string(text)})
	}
	return asked, nil
}
