package approval

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/protocol"
)

// question is one about a command.
type question struct {
	operator  *execpolicy.Policy // that was in force when it came up; nil for none
	kind      string
	argv      []string
	commands  [][]string // of a start, see [execpolicy.Verdict]
	truncated bool
	exe, cwd  string
	pid, ppid int
	reason    string
	matched   []byte
	proposed  []string // see [execpolicy.Verdict.Proposed]
	identity  string   // of the file exe, that may be written to; "" of a start
	unasked   bool     // it may run where nobody can be asked
	decider   string   // see [execpolicy.Verdict.Decider]
}

// about makes it one about a verdict on a start.
func (q *question) about(v execpolicy.Verdict) {
	q.argv, q.commands, q.reason, q.matched, q.proposed = v.Argv, v.Commands, v.Reason(), matched(v.Findings), v.Proposed()
	q.decider = v.Decider()
}

// judge has a policy decide about the command that a rule could allow.
func (q *question) judge(policy *execpolicy.Policy) execpolicy.Verdict {
	if q.kind == protocol.ApprovalStart {
		return policy.Start(q.proposed, nil)
	}
	return policy.Exec(program(q.proposed))
}

// program is a command whose first word may be the path of its program.
func program(argv []string) execpolicy.Program {
	p := execpolicy.Program{Argv: argv}
	if len(argv) > 0 && path.IsAbs(argv[0]) {
		p.Path = argv[0]
	}
	return p
}

// outcome is what became of a question.
type outcome struct {
	allowed bool
	again   bool     // the same command needs not be asked about again
	prefix  []string // nor commands with this beginning; nil: none
	end     bool     // the client wants the process to end
	text    string   // why it is refused, if it is about a start
}

// read takes an answer.
func (q *question) read(a protocol.ExecApprovalAnswer) outcome {
	switch a.Decision {
	case protocol.ApprovalAccept:
		return outcome{allowed: true}
	case protocol.ApprovalAcceptForProcess:
		return outcome{allowed: true, again: true}
	case protocol.ApprovalAcceptWithRule:
		o := outcome{allowed: true}
		// Where a rule asks nothing is proposed: no other rule lifts it.
		if n := len(a.Prefix); n > 0 && n <= len(q.proposed) && slices.Equal(q.proposed[:n], a.Prefix) && !execpolicy.TooWide(a.Prefix) {
			o.prefix = a.Prefix
		}
		return o
	case protocol.ApprovalCancel:
		return outcome{end: true, text: q.reason + ": " + rejected}
	case protocol.ApprovalDecline:
	}
	return outcome{text: q.reason + ": " + rejected}
}

// rejected is the reason of a no, in the words of the reference.
const rejected = "rejected by user"

const (
	maxArgv   = 16 << 10 // bytes of a command that the client is shown
	maxReason = 1 << 10  // bytes of a reason
)

// params returns what the client is asked.
func (q *question) params() protocol.ExecApprovalParams {
	argv, truncated := clip(q.argv)
	params := protocol.ExecApprovalParams{
		Kind: q.kind, Argv: argv, Truncated: truncated || q.truncated, Exe: text(q.exe, maxArgv), Cwd: text(q.cwd, maxArgv), PID: q.pid, PPID: q.ppid,
		Reason: text(q.reason, maxReason), MatchedRules: q.matched,
	}
	if q.proposed != nil && !execpolicy.TooWide(q.proposed) {
		if short, cut := clip(q.proposed); !cut {
			params.ProposedPrefix = short
		}
	}
	return params
}

// decision returns what the client is told of it. A rule of the operator is named by its place in a
// file, and not by the folder of that.
func (q *question) decision(source string) protocol.ExecDecision {
	params := q.params()
	d := protocol.ExecDecision{PID: q.pid, PPID: q.ppid, Exe: params.Exe, Argv: params.Argv, Source: source}
	switch {
	case q.decider != execpolicy.Unmatched && q.decider != execpolicy.ForcedRm:
		d.Rule = text(path.Base(q.decider), maxReason)
	case source == byRule:
		d.Source = "heuristic"
	}
	return d
}

// clip returns the words of a command that can be shown.
func clip(argv []string) (shown []string, truncated bool) {
	shown = []string{}
	left := maxArgv
	for _, word := range argv {
		if left -= len(word) + len(`"",`); left < 0 {
			return shown, true
		}
		shown = append(shown, text(word, maxArgv))
	}
	return shown, false
}

// text returns s as JSON can hold it, at most n bytes of it.
func text(s string, n int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
