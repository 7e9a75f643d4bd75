package sessions

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// maxCommand bounds a command line in the table, in characters.
const maxCommand = 60

// Heading is the heading of the columns of [Rows].
const Heading = "NAME\tPROCESS\tSTATUS\tSTARTED\tCOMMAND"

// Rows returns a row for each process of the sessions, and one for each session without a process.
// The rows have no control characters.
func Rows(all []*Found, now time.Time) (rows [][]string) {
	for _, s := range all {
		attached := ""
		if s.Attached {
			attached = " (attached)"
		}
		if len(s.Processes) == 0 {
			rows = append(rows, []string{s.Name, "-", "empty" + attached, "-", "-"})
		}
		for _, p := range s.Processes {
			rows = append(rows, []string{s.Name, plain(p.ProcessID, maxCommand), Status(&p) + attached,
				Age(now.Sub(time.UnixMilli(p.StartedAtMs))), plain(commandLine(p.Argv), maxCommand)})
		}
	}
	return rows
}

// Status says whether a process runs, or how it has ended.
func Status(p *protocol.ListedProcess) string {
	switch {
	case !p.Exited || p.ExitCode == nil:
		return "running"
	case !p.Closed:
		return fmt.Sprintf("exited %d, children running", *p.ExitCode)
	}
	return fmt.Sprintf("exited %d", *p.ExitCode)
}

// Age returns a duration in one unit, such as "3 hours ago". A negative duration gives "now",
// because the clock of an agent may be ahead.
func Age(d time.Duration) string {
	units := []struct {
		name string
		d    time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}}
	for _, u := range units {
		switch n := d / u.d; {
		case n == 1:
			return "1 " + u.name + " ago"
		case n > 1:
			return fmt.Sprintf("%d %ss ago", n, u.name)
		}
	}
	return "now"
}

// commandLine quotes a command line as a shell would read it.
func commandLine(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		if word == "" || strings.ContainsFunc(word, special) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		words[i] = word
	}
	return strings.Join(words, " ")
}

// special reports whether a character has a meaning for a shell.
func special(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("@%_-+=:,./…", r)
}

// plain removes control characters from a text, and shortens it.
func plain(text string, most int) string {
	if short := []rune(text); len(short) > most {
		text = string(short[:most]) + "…"
	}
	return program.Plain(text)
}

type sessionJSON struct {
	Name      string        `json:"name"`
	SessionID string        `json:"sessionId"`
	Attached  bool          `json:"attached"`
	Client    string        `json:"client"`
	Created   time.Time     `json:"created"`
	Retain    string        `json:"retain"`
	Expires   *time.Time    `json:"expires,omitempty"`
	Processes []processJSON `json:"processes"`
}

type processJSON struct {
	Process  string     `json:"process"`
	Argv     []string   `json:"argv"`
	PID      int        `json:"pid"`
	TTY      bool       `json:"tty"`
	Running  bool       `json:"running"`
	Children bool       `json:"children,omitempty"` // it has exited, and its children run
	ExitCode *int       `json:"exitCode,omitempty"`
	Started  time.Time  `json:"started"`
	Exited   *time.Time `json:"exited,omitempty"`
}

// JSON returns the sessions as a list to be encoded.
func JSON(all []*Found) any {
	list := make([]sessionJSON, len(all))
	for i, s := range all {
		list[i] = sessionJSON{
			Name: s.Name, SessionID: s.SessionID, Attached: s.Attached, Client: s.ClientName, Created: at(s.CreatedAtMs),
			Retain: (time.Duration(s.RetainMs) * time.Millisecond).String(), Processes: make([]processJSON, len(s.Processes)),
		}
		if s.ExpiresAtMs != nil {
			list[i].Expires = new(at(*s.ExpiresAtMs))
		}
		for j, p := range s.Processes {
			shown := processJSON{
				Process: p.ProcessID, Argv: p.Argv, PID: p.PID, TTY: p.TTY, Running: !p.Exited, Children: hasLeft(&p), ExitCode: p.ExitCode, Started: at(p.StartedAtMs),
			}
			if p.ExitedAtMs != nil {
				shown.Exited = new(at(*p.ExitedAtMs))
			}
			list[i].Processes[j] = shown
		}
	}
	return list
}

func at(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
