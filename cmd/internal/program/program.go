// Package program is the base of a command line program: [System] holds its arguments, environment and
// standard files, [Complain] prints an error, Fail and Exit return exit codes. [Terminal] is a
// terminal, and [Catch] catches signals.
package program

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/internal/secretenv"
)

// Exit codes of the agent itself. exec and sandbox end with the exit code of their command, and
// have additional codes.
const (
	ExitOK      = 0
	ExitFailure = 1 // starting up or serving
	ExitUsage   = 2
)

// System is the environment of the program.
type System struct {
	Args    []string // without the program's name
	Environ []string
	Keys    secretenv.Secrets // variables that no command inherits
	Stdin   *os.File
	Stdout  *os.File
	Stderr  *os.File
	// Job says that this program runs again as the job of agent sandbox, at a terminal of its own.
	// Questions then leads to the console that asks the user; nil: nobody can be asked. Stderr is
	// for this program alone, and its command has another one.
	Job       bool
	Questions *os.File
	// Agent are the flags on the line that name the agent, such as "--context box", for Hint.
	Agent string
	// Errors, if not nil, gets the errors that Tell would write to Stderr.
	Errors func(what any)
}

// Tell reports an error with [Complain], or with Errors if that is set.
func (s System) Tell(what any) {
	if s.Errors != nil {
		s.Errors(what)
		return
	}
	Complain(s.Stderr, what)
}

// hinted are the commands that an error may advise, which need the agent of the line.
var hinted = regexp.MustCompile(`\bagent (attach|end|kill|logs|ps|wait) `)

// Hint returns the text of an error. The commands that it advises get the flags that name the agent.
func (s System) Hint(what any) string {
	text := fmt.Sprint(what)
	if s.Agent != "" {
		text = hinted.ReplaceAllString(text, "agent $1 "+s.Agent+" ")
	}
	return text
}

// Lookup finds a variable of the environment that the program was started with. If a name occurs
// more than once, the last entry is used.
func (s System) Lookup(name string) (value string, ok bool) {
	for _, entry := range s.Environ {
		if n, v, _ := strings.Cut(entry, "="); n == name {
			value, ok = v, true
		}
	}
	if v, found := s.Keys.Lookup(name); found {
		return v, true
	}
	return value, ok
}

// Withhold returns s with more variables among its keys. As with the keys that secretenv.Take finds
// at the start, commands do not inherit these variables, and they are cleared from the memory that
// other processes can read.
func (s System) Withhold(secret func(name string) bool) (System, error) {
	var rest []string
	for _, entry := range s.Environ {
		if name, _, _ := strings.Cut(entry, "="); secret(name) {
			s.Keys = append(s.Keys, []byte(entry))
		} else {
			rest = append(rest, entry)
		}
	}
	s.Environ = rest
	_, taken, err := secretenv.Take(secret)
	taken.Clear()
	return s, err
}

// Conceal clears variables from the memory that other processes can read, and from the variables that
// this process passes on. s.Environ keeps them. It is called where secretenv.Take may be called.
func (s System) Conceal(secret func(name string) bool) error {
	_, taken, err := secretenv.Take(secret)
	taken.Clear()
	return err
}

// Complain writes an error, with the name of the program before it. It replaces control characters,
// because the error may come from an agent. A carriage return at the end stays, for a raw terminal.
// The caller must not pass secrets.
func Complain(w io.Writer, what any) {
	text, raw := strings.CutSuffix(fmt.Sprint(what), "\r")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Plain(line)
	}
	end := "\n"
	if raw {
		end = "\r\n"
	}
	// If standard error cannot be written to, there is no other way to report it.
	_, _ = io.WriteString(w, "agent: "+strings.Join(lines, "\n")+end)
}

// Plain makes a text harmless for a terminal: it replaces every character that is not printable,
// including newlines and tabs.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// Fail complains, and returns the exit code for a failure.
func (s System) Fail(err error) int {
	s.Tell(err)
	return ExitFailure
}

// Exit returns the exit code of a command that has ended with err, and complains if err is not nil.
func (s System) Exit(err error) int {
	if err != nil {
		return s.Fail(err)
	}
	return ExitOK
}

// Logger returns a logger with a level, one of slog's names in any case, and with the format "json"
// or "text".
func Logger(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	// The parser of the flags has checked that the level is one of the names.
	_ = l.UnmarshalText([]byte(level))
	options := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// ReadFile reads a whole file, without a byte-order mark. A file of more than limit bytes is an error.
func ReadFile(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s exceeds %d bytes", file, limit)
	}
	return bytes.TrimPrefix(content, []byte(paths.Mark)), err
}

// Abs is [filepath.Abs], with an error that says what to do.
func Abs(path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("the folder that this program runs in has been removed: change to another one, or name one with -C")
	}
	return absolute, err
}
