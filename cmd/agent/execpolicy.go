package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/internal/program"
)

// execpolicyFlags are the commands about rules.
type execpolicyFlags struct {
	Check execpolicyCheckFlags `cmd:"" help:"Show what files of rules say about a command."`
}

func (*execpolicyFlags) Help() string {
	return `Rules decide whether a command may run: allow, prompt or forbidden. Rules are written in Starlark.

Example:

    agent execpolicy check --rules default.rules -- git push origin`
}

// execpolicyCheckFlags name the rules, and the command to check.
type execpolicyCheckFlags struct {
	Rules   []string `short:"r" sep:"none" bytes:"" required:"" placeholder:"FILE" help:"File of rules. Can be repeated; the rules of all files apply."`
	Pretty  bool     `help:"Print the answer on several lines."`
	Resolve bool     `name:"resolve-host-executables" help:"Let rules about a program's name also match the program's path."`

	Tree      bool   `help:"Answer as an agent that judges every program (--exec-policy-enforce tree): scripts are split, programs are found, and each is shown with the files that the kernel needs for it."`
	Enforce   string `name:"exec-policy-enforce" default:"" enum:",start,tree" placeholder:"WHERE" help:"start: answer as an agent that judges the commands that clients start. tree: same as --tree."`
	Unmatched string `name:"exec-policy-unmatched" default:"" enum:",allow,prompt,forbidden" placeholder:"DECISION" help:"Decision for commands that no rule matches. Default: allow."`
	Opaque    string `name:"exec-policy-opaque" default:"" enum:",allow,prompt,forbidden" placeholder:"DECISION" help:"Decision for scripts that cannot be split. Default: as for commands that no rule matches."`
	ForcedRM  string `name:"exec-policy-forced-rm" default:"" enum:",allow,prompt,forbidden" placeholder:"DECISION" help:"Decision for rm -f that no rule matches. Default: allow."`

	Command []string `arg:"" bytes:"" passthrough:"" name:"cmd" help:"Command with its arguments."`
}

func (*execpolicyCheckFlags) Help() string {
	return `Prints the rules that match the command, in their order, and the strictest of their decisions, as JSON. Nothing is run. The examples in the files are checked too.

Without more flags the answer is that of codex execpolicy check: the command is not taken apart, and the script of a shell counts as one word. With --tree it is that of an agent. Then --rules can also name a folder.

Examples:

    agent execpolicy check --rules default.rules -- git push origin
    agent execpolicy check --rules a.rules --rules b.rules --pretty -- rm -rf build
    agent execpolicy check --rules default.rules --resolve-host-executables -- /usr/bin/git push
    agent execpolicy check --tree --rules ~/rules --exec-policy-unmatched forbidden --pretty -- bash -c "awk 1 f && npm test"

Exit codes: 0 whatever the decision, 1 when a file cannot be read or has an error, 2 for a wrong command line.`
}

// Check finds an empty command, or a wrong flag. The parser calls it.
func (f *execpolicyCheckFlags) Check() error {
	if len(f.Rules) == 0 && len(f.Command) > 0 { // --rules may be mistyped; otherwise the parser reports that it is missing
		return validCommand("execpolicy check", f.Command)
	}
	if first(f.Command) == "--" {
		f.Command = f.Command[1:]
	}
	switch {
	case len(f.Command) == 0:
		return errEmpty
	case f.Tree && f.Enforce == "start":
		return errors.New("--tree and --exec-policy-enforce start contradict each other")
	case !f.Tree && f.Enforce == "" && f.Unmatched+f.Opaque+f.ForcedRM != "":
		return errors.New("--exec-policy-unmatched, -opaque and -forced-rm need --tree or --exec-policy-enforce")
	}
	return nil
}

func (f *execpolicyCheckFlags) run(sys program.System) int {
	own := sys.Args[:len(sys.Args)-len(f.Command)]
	for _, flag := range []string{"--pretty", "--resolve-host-executables"} {
		if i := slices.Index(own, flag); i >= 0 && slices.Contains(own[i+1:], flag) {
			program.Complain(sys.Stderr, errors.New(flag+" is given twice"))
			return program.ExitUsage
		}
	}
	check := policyfile.RuleCheck{Files: f.Rules, Command: f.Command, Resolve: f.Resolve, Pretty: f.Pretty}
	if f.Tree || f.Enforce != "" {
		check.Agent = &policyfile.AgentCheck{Unmatched: f.Unmatched, Opaque: f.Opaque, ForcedRM: f.ForcedRM, Tree: f.Tree || f.Enforce == "tree"}
	}
	if err := check.Run(sys.Stdout); err != nil {
		for line := range strings.SplitSeq("Error: "+err.Error(), "\n") { // as in the reference
			fmt.Fprintln(sys.Stderr, program.Plain(line))
		}
		return program.ExitFailure
	}
	return program.ExitOK
}
