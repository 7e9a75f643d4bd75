package confine

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/hold"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// Rules can judge every program that a command executes. The command's filter then leaves every
// execve to a listener, and an init decides there: the init that the command has anyway or,
// without a sandbox, an init that only watches. The rules are part of the config. If they leave a
// decision to a client, the init sends the question to the agent on one more descriptor.

// judgeFD is the descriptor for questions. It exists only if there are rules.
func (c *config) judgeFD() int {
	switch {
	case c.Policy.Transparent:
		return heldFD + 1
	case c.isManaged():
		return gateFD + 1
	}
	return gateFD
}

// judge returns the judge of the command's programs. It returns nil without rules, and in the outer
// init, because the inner one judges.
func (t *target) judge() (*judge.Judge, error) {
	c := t.config
	if c.Rules == nil || t.role == roleOuter {
		return nil, nil
	}
	j, err := judge.New(c.Rules, c.argv(), c.judgeFD())
	if err == nil && c.TellsRefusals {
		_ = j.TellOn() // a command without a standard error is told nothing
	}
	return j, err
}

// Judged is the agent's part in judging the programs of a command. It has to be closed.
type Judged struct {
	// Tells is [Command.TellsRefusals] of the command.
	Tells bool

	rules  []byte
	ours   *judge.Questions
	theirs *os.File
}

// NewJudged returns a Judged for one command, whose programs the rules of the policy judge.
func NewJudged(policy *execpolicy.Policy) (*Judged, error) {
	ours, theirs, err := judge.Pair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return &Judged{rules: execpolicy.AppendPacked(nil, policy), ours: ours, theirs: os.NewFile(uintptr(theirs), "judge")}, nil
}

// Questions returns the questions of the command; nil for a nil Judged, whose programs are not
// judged.
func (j *Judged) Questions() *judge.Questions {
	if j == nil {
		return nil
	}
	return j.ours
}

// Close closes the questions, and the init's end unless a stage has taken it. It does nothing for nil.
func (j *Judged) Close() {
	if j != nil {
		_ = j.theirs.Close()
		j.ours.Close()
	}
}

// WatchOnly returns a sandbox that confines nothing and only judges the programs of a command.
func WatchOnly(j *Judged) *Held {
	h := &Held{Layers: []string{}, command: Command{Policy: &sandbox.Policy{Network: sandbox.NetworkEnabled}, ShellCodes: true, Argv0: os.Args[0]}}
	h.Judge(j)
	return h
}

// Judge makes the sandbox judge the programs of the command. It is called before the command is
// started, and the stage then takes the init's end of j.
func (h *Held) Judge(j *Judged) {
	if h.refusal == nil {
		h.judged, h.command.Rules, h.command.TellsRefusals = j, j.rules, j.Tells
	}
}

// Watched returns the sandbox in which j judges the programs of a command of h: h itself or, if h
// is nil or confines nothing, the result of [WatchOnly]. If j is nil, the programs are not judged.
func (h *Held) Watched(j *Judged) *Held {
	switch {
	case j == nil:
	case h == nil || h.Unconfined():
		return WatchOnly(j)
	default:
		h.Judge(j)
	}
	return h
}

// tryTime bounds the attempt of [TryJudged], which nearly always takes some milliseconds.
const tryTime = 15 * time.Second

// TryJudged checks that the programs of a command can be judged on this host, by doing it
// with the command of [hold.Probe]. Reaper is as in [procs.Spec].
func TryJudged(reaper *procs.Reaper) error {
	argv, code, err := hold.Probe()
	if err != nil {
		return err
	}
	j, err := NewJudged(&execpolicy.Policy{})
	if err != nil {
		return err
	}
	defer j.Close()
	p, err := procs.Start(procs.Spec{Argv: argv, Dir: "/", Stage: WatchOnly(j).Stage, RetainBytes: maxLine, Reaper: reaper})
	if err != nil {
		return err
	}
	defer p.Close()
	p.Begin()
	ctx, cancel := context.WithTimeout(context.Background(), tryTime)
	defer cancel()
	if err := p.WaitExit(ctx); err != nil {
		return fmt.Errorf("a watched program does not end: %w", err)
	}
	if _, got, _, _ := p.State(); got != code {
		return fmt.Errorf("a watched program ended with %d instead of %d: the kernel or an outer sandbox does not let it be watched "+
			"(seccomp listeners of Linux 5.19, ptrace)", got, code)
	}
	return nil
}
