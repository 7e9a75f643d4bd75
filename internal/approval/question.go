package approval

import (
	"path"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/protocol"
)

// question is a question about a command, and its origin.
type question struct {
	judge.Question
	kind     string             // protocol.ApprovalStart or ApprovalExec
	operator *execpolicy.Policy // current when the question arose; nil for none
	keys     []string           // of a start, see [Plan.keys]
}

// about makes q a question about a verdict on a start.
func (q *question) about(v *execpolicy.Verdict) {
	q.Argv, q.Reason, q.Matched, q.Proposed, q.Decider = v.Argv, v.Reason(), judge.Matched(v.Findings), v.Proposed(), v.Decider()
}

// judge lets a policy decide about the command that a rule could allow.
func (q *question) judge(policy *execpolicy.Policy) execpolicy.Verdict {
	if q.kind == protocol.ApprovalStart {
		return policy.Start(q.Proposed, nil)
	}
	return policy.Exec(program(q.Proposed))
}

// program is a command whose first word may be the path of its program.
func program(argv []string) execpolicy.Command {
	p := execpolicy.Command{Argv: argv}
	if len(argv) > 0 && path.IsAbs(argv[0]) {
		p.Path = argv[0]
	}
	return p
}

const (
	maxArgv   = 16 << 10 // bytes of a command that the client is shown
	maxReason = 1 << 10  // bytes of a reason
)

// params returns the question for the client.
func (q *question) params() protocol.ExecApprovalParams {
	argv, truncated := clip(q.Argv)
	params := protocol.ExecApprovalParams{
		Kind: q.kind, Argv: argv, Truncated: truncated || q.Truncated, Exe: text(q.Exe, maxArgv), Cwd: text(q.Dir, maxArgv), PID: q.PID, PPID: q.Parent,
		Reason: text(q.Reason, maxReason), MatchedRules: []byte(q.Matched),
	}
	if q.Proposed != nil && !execpolicy.TooWide(q.Proposed) {
		if short, cut := clip(q.Proposed); !cut {
			params.ProposedPrefix = short
		}
	}
	return params
}

// decision returns the decision for the client. It names a rule of the operator by its place in a
// file, without the folder.
func (q *question) decision(source string) protocol.ExecDecision {
	params := q.params()
	d := protocol.ExecDecision{PID: q.PID, PPID: q.Parent, Exe: params.Exe, Argv: params.Argv, Source: source}
	switch {
	case q.Decider != execpolicy.Unmatched && q.Decider != execpolicy.ForcedRm:
		d.Rule = text(path.Base(q.Decider), maxReason)
	case source == byRule:
		d.Source = "heuristic"
	}
	return d
}

// clip returns the words of a command that can be shown. A word with bytes that are not UTF-8 counts
// as truncated: no rule is proposed for what is shown in its place.
func clip(argv []string) (shown []string, truncated bool) {
	shown = []string{}
	left := maxArgv
	for _, word := range argv {
		if left -= len(word) + len(`"",`); left < 0 {
			return shown, true
		}
		shown = append(shown, text(word, maxArgv))
		truncated = truncated || !utf8.ValidString(word)
	}
	return shown, truncated
}

// text returns at most n bytes of s, in a form that JSON can hold.
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
