package confine

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/packed"
	"github.com/execagent/execagent/helper/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/enforce"
)

// A command whose programs are judged by rules has a filter that leaves every execve to a listener,
// and an init that decides there: the one that it has anyway, or, without a sandbox, one that only
// watches. The rules are a part of the description; what they leave to a client goes to the agent
// by one more descriptor.

// judgeFD leads to who answers questions, and only if there are rules.
func (c *config) judgeFD() int {
	if c.isManaged() {
		return gateFD + 1
	}
	return gateFD
}

// judge returns who decides about the programs of the command; nil without rules, and in the outer
// init of two.
func (c *config) judge() (*judge.Judge, error) {
	if c.Rules == nil || c.isOuter() {
		return nil, nil
	}
	return judge.New(c.Rules, c.argv(), c.judgeFD())
}

// addJudged puts the filters on the calling thread, of which one leaves also execve to a listener.
// Only one of the filters of a thread can have a listener.
func (t *target) addJudged() (err error) {
	l, filter := t.config.Backend, enforce.FilterExecs
	switch {
	case l.Has(sandbox.Supervised):
		filter = enforce.FilterSupervised(l, t.policy.Network)
	case !t.policy.Confined:
		if !t.policy.RestrictsNothing() {
			filter = enforce.FilterNetwork
		}
	case t.policy.Network == sandbox.NetworkEnabled:
		filter = enforce.FilterEnabled
	case t.policy.AllUnixSockets:
		filter = enforce.FilterManagedUnix
	case t.policy.Network == sandbox.NetworkManaged:
		filter = enforce.FilterManaged
	case l.Has(sandbox.MountNS):
		filter = enforce.FilterRestricted
	default:
		if !t.policy.FullRead {
			if err := enforce.FilterHiddenPaths.LoadThread(); err != nil {
				return err
			}
		}
		filter = enforce.FilterLandlock
	}
	t.listener, err = filter.LoadExecs()
	return err
}

// Judged has the programs that a command executes decided about by rules. It has to be closed.
type Judged struct {
	rules  []byte
	ours   *judge.Questions
	theirs *os.File
}

// NewJudged is for one command.
func NewJudged(policy *execpolicy.Policy) (*Judged, error) {
	ours, theirs, err := judge.Pair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return &Judged{rules: packed.Append(nil, policy), ours: ours, theirs: os.NewFile(uintptr(theirs), "judge")}, nil
}

// Questions are those of the command; nil for nil, whose programs nobody judges.
func (j *Judged) Questions() *judge.Questions {
	if j == nil {
		return nil
	}
	return j.ours
}

// Close gives back what the stage has not taken.
func (j *Judged) Close() {
	if j != nil {
		_ = j.theirs.Close()
		j.ours.Close()
	}
}

// WatchOnly returns what confines nothing and judges the programs of a command.
func WatchOnly(j *Judged) *Held {
	h := &Held{Layers: []string{}, command: Command{Policy: &sandbox.Policy{Network: sandbox.NetworkEnabled}, ShellCodes: true, Argv0: os.Args[0]}}
	h.Judge(j)
	return h
}

// Judge has the programs of the command judged. It is called before the command is started; the
// stage takes the judge's end.
func (h *Held) Judge(j *Judged) {
	if h.refusal == nil {
		h.judged, h.command.Rules = j, j.rules
	}
}

// Watched returns the sandbox in which a command of h has its programs judged: h itself, or, where h
// is nil or confines nothing, what [WatchOnly] returns. If j is nil the programs are not judged.
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

// tryTime is how long the try of [TryJudged] may take. Nearly always that takes some milliseconds.
const tryTime = 15 * time.Second

// TryJudged finds out, by doing it, whether this host lets the programs of a command be judged. It
// runs argv, which has to end with that exit code. Reaper is as in [procs.Spec].
func TryJudged(argv []string, code int, reaper *procs.Reaper) error {
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
		return fmt.Errorf("a program under such a watch does not end: %w", err)
	}
	if _, got, _, _ := p.State(); got != code {
		return fmt.Errorf("a program under such a watch ended with %d, and not with %d: the kernel or an outer sandbox does not let it be watched "+
			"(seccomp listeners of Linux 5.19, ptrace)", got, code)
	}
	return nil
}
