package approval

import (
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/protocol"
)

// A Decision is one about a command that no policy has simply allowed, for those who operate the
// agent. It has nothing of the command but its program.
type Decision struct {
	Kind string // protocol.ApprovalStart or ApprovalExec
	// Program is the path of the program that would run, at most maxProgram bytes of it; "" where
	// there is none. A start that finds no program has words there that could be anything.
	Program string
	PID     int    // of the process that executes it; 0 of a start
	Decider string // see [execpolicy.Verdict.Decider]
	Outcome string // one of [Outcomes]
}

// What became of a command.
const (
	refused    = "refused"    // by the policies, and nobody was asked
	accepted   = "accepted"   // by the client
	declined   = "declined"   // by the client
	unanswered = "unanswered" // refused: nobody could be asked, or has answered in time
	unasked    = "unasked"    // let run where nobody could be asked
	withdrawn  = "withdrawn"  // the question needed no answer any more: an end, or other rules
)

// Outcomes returns all of them.
func Outcomes() []string {
	return []string{refused, accepted, declined, unanswered, unasked, withdrawn}
}

// maxProgram is how much of a path is noted, in bytes.
const maxProgram = 256

// note tells the operator of a decision.
func (d *Desk) note(n Decision) {
	if d.Note != nil {
		n.Program, n.Decider = text(n.Program, maxProgram), text(n.Decider, maxProgram)
		d.Note(n)
	}
}

// Refused notes that a process was refused a program, as the judge of it has told.
func (d *Desk) Refused(q judge.Question) {
	d.note(Decision{Kind: protocol.ApprovalExec, Program: q.Exe, PID: q.PID, Decider: q.Decider, Outcome: refused})
}
