package main

import (
	"fmt"

	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/sandbox/changes"
)

// learn lets the command do more than the plan allows. finish prints a profile of that when the command has ended.
func (f *sandboxFlags) learn(c *local.Command, plan *policy.Plan) (finish func(), err error) {
	host := hostHere(c.Sys, c.Sys.Environ)
	host.Cwd = c.Dir
	if c.Profile, err = plan.Learning(host); err != nil {
		return nil, err
	}
	c.Apart = plan.Apart(host)
	c.Changes = changes.New(c.Apart...)
	asked := f.network
	if f.network.Managed || len(f.Network) == 0 {
		if c.Network, err = asked.Everywhere(); err != nil {
			return nil, err
		}
	}
	return func() {
		folders, more := c.Changes.All()
		learned, err := plan.Learned(host, folders, more, c.Reached(&asked))
		if err != nil {
			program.Complain(c.Sys.Stderr, fmt.Errorf("sandbox: --learn: %w", err))
			return
		}
		tellLearned(c.Sys, learned)
	}, nil
}

// tellLearned prints what the command has done.
func tellLearned(sys program.System, learned *policy.Learned) {
	text := learned.Profile()
	if text == "" {
		program.Complain(sys.Stderr, "sandbox: learned: the flags allow all that a profile can allow of what the command did")
	} else {
		program.Complain(sys.Stderr, "sandbox: learned: what the command did and the flags do not allow. Read it before you use it as a file for --profile:")
		fmt.Fprint(sys.Stderr, text)
	}
	for _, note := range learned.Notes {
		program.Complain(sys.Stderr, "sandbox: learned: "+note)
	}
}
