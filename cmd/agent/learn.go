package main

import (
	"fmt"

	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/sandbox/changes"
)

// learn lets the command do more than the plan allows. tell prints a profile of that when the command has ended.
func (f *sandboxFlags) learn(c *local.Command, plan *policy.Plan) (tell func(), err error) {
	host := policy.Here(c.Sys.Lookup, c.Sys.Environ)
	host.Cwd = c.Dir
	learning, err := plan.Learning(host)
	if err != nil {
		return nil, err
	}
	c.Profile, c.Changes = learning.Profile, changes.New(learning.Apart()...)
	asked := f.network
	if f.network.Managed || len(f.Network) == 0 {
		if c.Network, err = asked.Everywhere(); err != nil {
			return nil, err
		}
	}
	return func() {
		hosts, err := c.Reached(&asked)
		if err != nil {
			program.Complain(c.Sys.Stderr, fmt.Errorf("sandbox: --learn: %w", err))
		}
		folders, more := c.Changes.All()
		tellLearned(c.Sys, learning.Learned(folders, more, hosts))
	}, nil
}

// tellLearned prints what the command has done.
func tellLearned(sys program.System, learned *policy.Learned) {
	text := learned.Profile()
	switch {
	case text != "":
		program.Complain(sys.Stderr, "sandbox: learned: what the command did and the flags do not allow. Read it before you use it as a file for --profile:")
		fmt.Fprint(sys.Stderr, text)
	case len(learned.Notes) == 0:
		program.Complain(sys.Stderr, "sandbox: learned: the command did nothing that the flags do not allow")
	}
	for _, note := range learned.Notes {
		program.Complain(sys.Stderr, "sandbox: learned: "+note)
	}
}
