package approval

import (
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/protocol"
)

// A Decision is a decision about a command that no policy simply allowed, for the operator of the
// agent. Of the command it has only the program.
type Decision struct {
	Kind string // protocol.ApprovalStart or ApprovalExec
	// Program is the path of the program that would run, at most maxProgram bytes of it; "" if
	// there is none, because the words of a start without a program could be anything.
	Program string
	PID     int    // of the process that executes it; 0 of a start
	Decider string // see [execpolicy.Verdict.Decider]
	Outcome string // one of [Outcomes]
}

// The outcomes for a command.
const (
	refused    = "refused"    // by the policies, without a question
	accepted   = "accepted"   // by the client
	declined   = "declined"   // by the client
	unanswered = "unanswered" // refused: nobody could be asked, or answered in time
	unasked    = "unasked"    // allowed because nobody could be asked
	withdrawn  = "withdrawn"  // the question needed no answer any more: an end, or other rules
)

// Outcomes returns all outcomes.
func Outcomes() []string {
	return []string{refused, accepted, declined, unanswered, unasked, withdrawn}
}

// Refuses reports whether a command with an outcome was refused.
func Refuses(outcome string) bool {
	return outcome == refused || outcome == declined || outcome == unanswered
}

// maxProgram is how many bytes of a path are noted.
const maxProgram = 256

// note tells the operator of a decision.
func (d *Desk) note(n Decision) {
	if d.Note != nil {
		n.Program, n.Decider = text(n.Program, maxProgram), text(n.Decider, maxProgram)
		d.Note(n)
	}
}

// Refused notes that the judge of a process refused a program.
func (d *Desk) Refused(q judge.Question) {
	d.note(Decision{Kind: protocol.ApprovalExec, Program: q.Exe, PID: q.PID, Decider: q.Decider, Outcome: refused})
}
