package judge

import (
	"cmp"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/supervise/execcheck"
)

// Of returns the program of an image, which is executed in the folder dir.
func Of(i *execcheck.Image, dir string) Exec {
	written := i.Path
	if i.Called != "" {
		written = ""
	}
	return Exec{
		PID: i.Process, Parent: i.Parent, Dir: dir, Called: cmp.Or(i.Called, i.Program), Written: written, Real: append([]string{i.Program}, i.Interpreters...), Heads: i.Heads, Argv: i.Argv, Loaded: i.Real,
		Final: i.Final, Loader: i.Loader, Identity: i.Identity, Thread: i.Thread,
	}
}

// Called returns the absolute path at which a program would be found that is executed in the folder dir,
// if path is the path of its program; "" if that is unknown. It follows links as the kernel does.
func Called(path, dir string) string {
	if rule.Certain(path, dir) {
		return rule.Absolute(path, dir, "")
	}
	return execcheck.Called(path, dir)
}

// Look returns the program that argv would execute in the folder dir, if path is the path of its
// program. Nothing runs.
func Look(path string, argv []string, dir string) (*Exec, error) {
	image, err := execcheck.Look(path, argv, dir)
	if err != nil {
		return nil, err
	}
	p := Of(&image, dir)
	return &p, nil
}

// Step is one of the commands that a program counts as, with the decision about it.
type Step struct {
	execpolicy.Command
	execpolicy.Verdict
}

// Explain returns what a Judge decides about a program, with the steps that it looks at. First says
// that the program is the command itself, about whose words [execpolicy.Policy.Start] decides.
func (p *Exec) Explain(policy *execpolicy.Policy, first bool) (v execpolicy.Verdict, steps []Step) {
	all := candidates(p)
	v = policy.Exec(all...)
	if first {
		v = policy.First(all...)
	}
	for i, each := range policy.Chain(first, all...) {
		steps = append(steps, Step{all[i], each})
	}
	return v, steps
}
