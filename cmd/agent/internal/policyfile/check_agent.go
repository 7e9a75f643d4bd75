package policyfile

import (
	"cmp"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/script"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
)

// AgentCheck says how an agent decides. The words of the decisions are as in [approval.Rules].
type AgentCheck struct {
	Unmatched, Opaque, ForcedRM string
	// Tree also judges the programs that the command executes, as far as its words tell.
	Tree bool
}

// agentAnswer is the answer of an agent: about the start of the command, and about programs. Decision
// and Reason are those of the strictest.
type agentAnswer struct {
	verdict
	Programs []programAnswer `json:"programs,omitempty"`
}

// programAnswer is the answer about a program that is executed.
type programAnswer struct {
	Argv     []string     `json:"argv"`
	Decision string       `json:"decision,omitempty"`
	Reason   string       `json:"reason,omitempty"`
	Chain    []stepAnswer `json:"chain,omitempty"`
	// Error says that there is no such program here: the word may be a builtin of the shell.
	Error string `json:"error,omitempty"`
}

// stepAnswer is a command that the program counts as.
type stepAnswer struct {
	As   execpolicy.Part `json:"as"`
	Argv []string        `json:"argv"`
	verdict
}

// checker checks one command.
type checker struct {
	policy *execpolicy.Policy
	dir    string
	answer agentAnswer
	worst  rule.Decision
}

// ask answers about a command that a client starts in the folder dir.
func (c *AgentCheck) ask(all *rule.Set, argv []string, dir string) (agentAnswer, error) {
	check := checker{policy: &execpolicy.Policy{Rules: all}, dir: dir}
	for _, d := range []struct {
		to   *rule.Decision
		name string
	}{{&check.policy.Unmatched, c.Unmatched}, {&check.policy.Opaque, cmp.Or(c.Opaque, c.Unmatched)}, {&check.policy.ForcedRm, c.ForcedRM}} {
		var err error
		if *d.to, err = rule.ParseDecision(cmp.Or(d.name, rule.Allow.String())); err != nil {
			return agentAnswer{}, err
		}
	}
	v := check.policy.Start(argv, func(program string) string { return find(program, dir) })
	check.answer.verdict = verdictOf(&v)
	check.worst = v.Decision
	if !c.Tree {
		return check.answer, nil
	}
	check.program(argv, dir, true)
	if v.Plain {
		folders := script.Folders(argv[2], dir)
		for i, command := range v.Commands {
			check.program(command, cmp.Or(folders[i], dir), false)
		}
	}
	return check.answer, nil
}

// find returns the absolute path of a program that is executed in the folder dir; "" if there is
// none.
func find(program, dir string) string {
	found, err := procs.LookPath(program, dir, os.Environ())
	if err != nil {
		return ""
	}
	return judge.Called(found, dir)
}

// program adds the answer about a program that is executed in the folder dir. First says that it is
// the command itself.
func (c *checker) program(argv []string, dir string, first bool) {
	answer := programAnswer{Argv: argv}
	name, err := procs.LookPath(argv[0], dir, os.Environ())
	if err != nil {
		name = argv[0]
	}
	if first {
		name = cmp.Or(find(name, dir), name) // an agent starts the program that it has found
	}
	exec, err := judge.Look(name, argv, dir)
	if err != nil {
		answer.Error = err.Error()
		c.answer.Programs = append(c.answer.Programs, answer)
		return
	}
	v, steps := exec.Explain(c.policy, first)
	answer.Decision, answer.Reason = v.Decision.String(), v.Reason()
	for _, s := range steps {
		answer.Chain = append(answer.Chain, stepAnswer{cmp.Or(s.As, "program"), s.Command.Argv, verdictOf(&s.Verdict)})
	}
	c.answer.Programs = append(c.answer.Programs, answer)
	if v.Decision > c.worst {
		c.worst, c.answer.Decision, c.answer.Reason = v.Decision, answer.Decision, answer.Reason
	}
	if words := behindEnv(exec); words != nil {
		c.program(words, dir, false)
	}
}

// behindEnv returns the command that env executes, if env is the interpreter of a script and runs a
// program by its name alone; else nil.
func behindEnv(exec *judge.Exec) []string {
	if len(exec.Real) < 2 || path.Base(exec.Final[0]) != "env" {
		return nil
	}
	words := exec.Final[1:]
	if text, ok := strings.CutPrefix(words[0], "-S"); ok {
		words = slices.Concat(strings.Fields(text), words[1:])
	}
	if len(words) == 0 || strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=") {
		return nil
	}
	return words
}

func verdictOf(v *execpolicy.Verdict) verdict {
	return verdict{append([]execpolicy.Finding{}, v.Findings...), v.Decision.String(), v.Reason()}
}
