package console

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestQuote: what a command is made of does nothing to a terminal, and cannot look like something
// else.
func TestQuote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		argv []string
		want string
	}{
		{[]string{"git", "push"}, "git push"},
		{[]string{"a b", "", "it's"}, `'a b' '' 'it'\''s'`},
		{[]string{"été"}, "'été'"},
		{[]string{"a\nagent: fine", "\x1b[2J", "\r", "\t", "it's\x7f", `\`}, `"a\nagent: fine" "\x1b[2J" "\r" "\t" "it's\x7f" '\'`},
		{[]string{"\u202egnp", "e\u0301", "\u200b", "\u2028", "a\xffb", "\ufffd", "a\u3164", "\u2800"}, `"\u202egnp" "e\u0301" "\u200b" "\u2028" "a\xffb" "\ufffd" "a\u3164" "\u2800"`},
	} {
		rig.Is(t, quote(maxShown, tt.argv...), tt.want, "%q is shown as", tt.argv)
	}
	long := quote(maxShown, []string{"echo", strings.Repeat("é", maxShown)}...)
	if !strings.HasSuffix(long, "… and 2055 bytes more") || len(long) > maxShown+50 {
		t.Errorf("a long command: …%s", long[len(long)-50:])
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("a\x1b]0;x\x07", "\u202e")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := quote(maxShown, a, b)
		rig.Is(t, strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }), false, "%q, %q: %q", a, b, got)
	})
}

// TestShown: the program is shown, whatever the command calls itself.
func TestShown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		q    protocol.ExecApprovalParams
		want string
	}{
		{
			protocol.ExecApprovalParams{Kind: "start", Argv: []string{"git", "push"}, Exe: "/usr/bin/git", Cwd: "/srv/w", Reason: "`git push` requires approval: it leaves"},
			"a command waits for approval, in /srv/w: it leaves:|  git push|  (the program is /usr/bin/git)|[o]nce, [a]lways for this command, [N]o? ",
		},
		{
			protocol.ExecApprovalParams{Kind: "start", Argv: []string{"x", "1"}, Cwd: "/", Reason: "`x 1` requires approval by policy", ProposedPrefix: []string{"x", "1"}, Truncated: true},
			"a command waits for approval, in /:|  x 1 … and more|[o]nce, [a]lways for this command, with a [r]ule for all commands that begin with these words (r 1: with the first word), [N]o? ",
		},
		{
			protocol.ExecApprovalParams{Kind: "exec", Argv: []string{"ls", "-l"}, Exe: "/tmp/x", Cwd: "/a b", PID: 7, Reason: "?", ProposedPrefix: []string{"/tmp/x"}},
			"process 7 wants to execute, in '/a b': ?:|  /tmp/x -l|  (it calls itself ls)|  (a rule would be about /tmp/x)|" +
				"[o]nce, [a]lways for this command, with a [r]ule for all commands that begin with this word, [N]o? ",
		},
		{ // of a reason that was cut the command itself is left, which may say anything
			protocol.ExecApprovalParams{Kind: "start", Argv: []string{"x"}, Cwd: "/", Reason: ("`x ' requires approval: it is harmless " + strings.Repeat("x", maxReason))[:maxReason]},
			"a command waits for approval, in /:|  x|[o]nce, [a]lways for this command, [N]o? ",
		},
	} {
		rig.Is(t, strings.Join(shown(&tt.q), "|"), tt.want, "shown")
	}
	got := questionText([]string{"a\x1b[2J", "b\n? "}, 80)
	rig.Is(t, strings.HasSuffix(got, "agent: a\ufffd[2J\r\nagent: b\ufffd? "), true, "written as %q", got)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	proposed := []string{"git", "push", "origin"}
	for line, want := range map[string]protocol.ExecApprovalAnswer{
		"":       {Decision: "decline"},
		"n":      {Decision: "decline"},
		"No ":    {Decision: "decline"},
		"o":      {Decision: "accept"},
		"YES\r":  {Decision: "accept"},
		"always": {Decision: "acceptForProcess"},
		"c":      {Decision: "cancel"},
		"\x03":   {Decision: "cancel"},
		"r":      {Decision: "acceptWithRule", Prefix: proposed},
		"rule 2": {Decision: "acceptWithRule", Prefix: proposed[:2]},
		"r 4":    {}, "r 0": {}, "r -1": {}, "r x": {}, "r 1 2": {}, "yes yes": {}, "what": {}, "n o": {},
	} {
		q := protocol.ExecApprovalParams{Kind: "start", ProposedPrefix: proposed}
		if got, ok := answerOf(&q, line); ok != (want.Decision != "") || ok && !reflect.DeepEqual(got, want) {
			t.Errorf("%q answers %+v, %v, want %+v", line, got, ok, want)
		}
		if got, ok := answerOf(&protocol.ExecApprovalParams{}, line); ok && got.Decision == protocol.ApprovalAcceptWithRule {
			t.Errorf("%q answers %+v where no rule is proposed", line, got)
		}
	}
	failed := AskCommands(func(_ context.Context, _ []string, take func(string) bool) error {
		take("yes")
		return errors.New("the terminal is gone")
	})
	rig.Is(t, failed(t.Context(), protocol.ExecApprovalParams{}).Decision, protocol.ApprovalDecline, "without a terminal")
}
