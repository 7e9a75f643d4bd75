package console

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
)

// AskCommands returns a function that answers questions about commands by asking the user. Without
// an answer it declines.
func AskCommands(ask Ask) func(context.Context, protocol.ExecApprovalParams) protocol.ExecApprovalAnswer {
	return func(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer {
		answer := protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}
		err := ask(ctx, shown(&q), func(line string) (ok bool) {
			answer, ok = answerOf(&q, line)
			return ok
		})
		if err != nil {
			return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}
		}
		return answer
	}
}

// shown returns the lines of a question, with the answers that it may have.
func shown(q *protocol.ExecApprovalParams) []string {
	choices := "[o]nce, [a]lways for this command, "
	if n := len(q.ProposedPrefix); n == 1 {
		choices += "with a [r]ule for all commands that begin with this word, "
	} else if n > 1 {
		choices += "with a [r]ule for all commands that begin with these words (r 1: with the first word), "
	}
	lines := Question(q)
	if argv := programOf(q); len(q.ProposedPrefix) > 0 && !slices.Equal(q.ProposedPrefix, argv) {
		lines = append(lines, "  (a rule would be about "+quote(maxBeside, q.ProposedPrefix...)+")")
	}
	return append(lines, choices+"[N]o? ")
}

// programOf returns the command of a question. A command can put any text into argv[0], so it is the program.
func programOf(q *protocol.ExecApprovalParams) []string {
	argv := slices.Clone(q.Argv)
	if q.Kind == protocol.ApprovalExec && len(argv) > 0 && q.Exe != "" {
		argv[0] = q.Exe
	}
	return argv
}

// Question returns the lines of a question about a command.
func Question(q *protocol.ExecApprovalParams) []string {
	who := "a command waits for approval"
	if q.Kind == protocol.ApprovalExec {
		who = fmt.Sprintf("process %d wants to execute", q.PPID)
		if q.PID != 0 {
			who = fmt.Sprintf("process %d wants to execute", q.PID)
		}
	}
	lines := []string{who + ", in " + quote(maxBeside, q.Cwd) + because(q.Reason) + ":"}
	argv, called := programOf(q), ""
	switch {
	case len(argv) == 0 || q.Exe == "" || q.Argv[0] == q.Exe:
	case q.Kind != protocol.ApprovalExec:
		called = "the program is " + quote(maxBeside, q.Exe)
	case path.Base(q.Exe) != path.Base(q.Argv[0]):
		called = "it calls itself " + quote(maxBeside, q.Argv[0])
	}
	command := "  " + quote(maxShown, argv...)
	if q.Truncated {
		command += " … and more"
	}
	lines = append(lines, command)
	if called != "" {
		lines = append(lines, "  ("+called+")")
	}
	return lines
}

// because returns the part of a reason that does not repeat the command. A reason that was cut may
// have only words of the command, and these can be any text, so because returns "" for it.
func because(reason string) string {
	if len(reason) > maxReason-utf8.UTFMax {
		return ""
	}
	const asks = " requires approval"
	i := strings.LastIndex(reason, asks)
	if i < 0 {
		return ": " + reason
	}
	return strings.Replace(reason[i+len(asks):], " by policy", "", 1)
}

// answerOf reads an answer; ok is false if the line is not an answer.
func answerOf(q *protocol.ExecApprovalParams, line string) (a protocol.ExecApprovalAnswer, ok bool) {
	words := strings.Fields(strings.ToLower(line))
	if len(words) == 0 {
		return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}, true
	}
	switch word := words[0]; {
	case word == "r" || word == "rule":
		n := len(q.ProposedPrefix)
		if len(words) == 2 {
			n, _ = strconv.Atoi(words[1])
		}
		if n < 1 || n > len(q.ProposedPrefix) || len(words) > 2 {
			return a, false
		}
		return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalAcceptWithRule, Prefix: q.ProposedPrefix[:n]}, true
	case len(words) > 1:
		return a, false
	case word == "o" || word == "once" || word == "y" || word == "yes":
		a.Decision = protocol.ApprovalAccept
	case word == "a" || word == "always":
		a.Decision = protocol.ApprovalAcceptForProcess
	case word == "c" || word == Interrupted && q.Kind == protocol.ApprovalStart:
		a.Decision = protocol.ApprovalCancel
	case word == "n" || word == "no" || word == Interrupted:
		a.Decision = protocol.ApprovalDecline
	default:
		return a, false
	}
	return a, true
}

const (
	// maxShown is how much of a command is shown, in bytes, because nobody reads more.
	maxShown = 2 << 10
	// maxBeside bounds each text beside the command, in bytes, because a longer text would push the
	// command off the screen.
	maxBeside = 256
	// maxReason is the length in bytes at which an agent cuts a reason, at the start of a
	// character.
	maxReason = 1 << 10
)

// quote returns a command in the form that a shell reads. A word with invisible characters is
// quoted as in Go ("\x1b"). If the command is longer than most bytes, quote cuts it and adds the
// number of omitted bytes.
func quote(most int, argv ...string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		if visible(word) {
			words[i] = rule.Quote([]string{word})
		} else {
			words[i] = strconv.QuoteToASCII(word)
		}
	}
	text := strings.Join(words, " ")
	if len(text) <= most {
		return text
	}
	shown := program.Whole(text[:most])
	return fmt.Sprintf("%s… and %d bytes more", shown, len(text)-len(shown))
}

func visible(word string) bool {
	return !strings.ContainsFunc(word, func(r rune) bool {
		return !unicode.IsPrint(r) || unicode.IsMark(r) || r == utf8.RuneError || isBlank(r)
	})
}

// isBlank reports whether a character is invisible, or looks like a space.
func isBlank(r rune) bool {
	const brailleBlank = '\u2800'
	return unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == brailleBlank
}
