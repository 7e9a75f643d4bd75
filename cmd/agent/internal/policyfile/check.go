package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/rulefile"
)

// RuleCheck finds the rules in files that match a command, and their decision.
type RuleCheck struct {
	Files   []string
	Command []string
	// Resolve lets rules that name a program match its path.
	Resolve bool
	Pretty  bool
}

// Run prints the answer. If a file cannot be used, Run prints nothing and returns an error that
// names the file.
func (c *RuleCheck) Run(stdout io.Writer) error {
	all, bounds := &rule.Set{}, execpolicy.OperatorBounds()
	for _, file := range c.Files {
		text, err := read(file, bounds.FileBytes)
		if err != nil {
			return &fileError{"read", file, err}
		}
		parsed, err := rulefile.Parse(all, file, text, bounds)
		if errors.Is(err, rulefile.ErrNotText) {
			return &fileError{"read", file, err}
		}
		if err != nil {
			return &fileError{"parse", file, err}
		}
		all.Append(parsed)
	}
	matches := all.Match(c.Command)
	if c.Resolve {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		home := os.Getenv("HOME")
		matches = all.MatchProgram(c.Command, func(program string) string { return rule.Absolute(program, dir, home) })
	}
	answer := struct {
		Matches  []execpolicy.Finding `json:"matchedRules"`
		Decision string               `json:"decision,omitempty"`
	}{Matches: []execpolicy.Finding{}}
	for _, m := range matches {
		answer.Matches = append(answer.Matches, execpolicy.Finding{Match: m, Decision: m.Decision})
	}
	if d, ok := rule.Strictest(matches); ok {
		answer.Decision = d.String()
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if c.Pretty {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(answer); err != nil {
		return err
	}
	_, err := stdout.Write(out.Bytes())
	return err
}

func read(file string, most int) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	return text, err
}

// fileError says which file could not be used, in the form of the reference.
type fileError struct {
	verb, file string
	err        error
}

func (e *fileError) Unwrap() error { return e.err }

func (e *fileError) Error() string {
	cause := e.err.Error()
	if at, ok := errors.AsType[*rulefile.Error](e.err); ok {
		cause = fmt.Sprintf("error: %s\n     --> %s:%d:%d", at.Text, at.File, at.Line, at.Column)
	}
	return fmt.Sprintf("failed to %s policy at %s\n\nCaused by:\n    %s", e.verb, e.file, cause)
}
