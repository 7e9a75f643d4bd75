package console

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/execagent/execagent/cmd/internal/program"
)

// Ask asks the user a question. The last of the lines has the choices, and no text of the command;
// the user types behind it. Ask calls take with each line that the user types, until take reports
// that the line is an answer. The error says why there is no answer.
type Ask func(ctx context.Context, lines []string, take func(line string) bool) error

// ErrNobody says that there is no terminal at which to ask, or that it is gone.
var ErrNobody = errors.New("there is no terminal to ask at")

// questionPause is how long a question is on the screen before it takes answers, because a user who
// types earlier has not read the question.
const questionPause = 500 * time.Millisecond

// questionWaits tells the user that there is a question, while another job has the terminal.
const questionWaits = "\r\nagent: a question waits until this job is in the foreground\r\n"

// questionWithdrawn tells the user that a question needs no answer any more.
const questionWithdrawn = "\r\nagent: the question no longer needs an answer\r\n"

// calm resets the terminal, so that the user sees the whole question and nothing else, whatever the
// command has written before. It ends an unfinished escape sequence, the mode of an older terminal
// (VT52), output to a printer and a synchronized update. It resets colours, the character set,
// margins, insert mode and line wrapping. Then it shows the cursor, and clears the screen from the
// cursor on.
const calm = "\x18\x1b\\" + "\x1b<" + "\x1b[4i" + "\x1b[?2026l" + colours + "\x1b[m\x1b(B\x0f" + "\x1b7\x1b[?69l\x1b[r\x1b8" + "\x1b[4l\x1b[?7h\x1b[?25h" + "\r\x1b[J"

// colours resets the palette and the colours of text, background and cursor. The first four
// sequences are for xterm and similar terminals, ]R is for the Linux console. Otherwise a command
// could paint our question in the colour of the background and show its own question. The user's
// answer to the command's question would then count for ours.
const colours = "\x1b]104\x1b\\" + "\x1b]110\x1b\\" + "\x1b]111\x1b\\" + "\x1b]112\x1b\\" + "\x1b]R\x1b\\"

// questionHeading returns the text for all lines of a question except the last.
func questionHeading(lines []string, columns int) string {
	text := "\r"
	if term := os.Getenv("TERM"); term != "" && term != "dumb" {
		text = calm
	}
	for _, line := range lines {
		text += questionText([]string{line}, columns) + "\r\n"
	}
	return text
}

// columnsOf returns the width of a terminal, or 80 if it is unknown.
func columnsOf(t *program.Terminal) int {
	if _, columns, ok := t.Size(); ok {
		return int(columns)
	}
	return 80
}

// maxQuestion is the width for the line with the choices. The terminal may wrap that line, because
// it has no text of the command.
const maxQuestion = 1 << 20

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64

const (
	name      = "agent: "     // begins a line
	continued = "agent:   | " // begins a row that continues a line
	minRow    = 8             // smallest width of the text in a continued row
)

// questionText returns the text for lines of a question, without control characters. The user types
// behind the last line. Each row begins with our own words, because a row of the command's words
// could look like another question.
func questionText(lines []string, columns int) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(name)
		width := max(columns-1, len(continued)+minRow)
		left := width - len(name)
		for _, r := range program.Plain(line) {
			takes := 1
			if r > unicode.MaxASCII {
				takes = 2 // at most
			}
			if left -= takes; left < 0 {
				b.WriteString("\r\n" + continued)
				left = width - len(continued) - takes
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Interrupted is the line that a user types with Ctrl-C at a terminal that passes it on as a key.
const Interrupted = "\x03"
