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
	// Agent answers as an agent would; nil: as the reference does.
	Agent *AgentCheck
}

// Run prints the answer. If a file cannot be used, Run prints nothing and returns an error that
// names the file.
func (c *RuleCheck) Run(stdout io.Writer) error {
	all, err := c.rules()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil && (c.Resolve || c.Agent != nil) {
		return err
	}
	var answer any
	if c.Agent == nil {
		answer = c.ask(all, dir)
	} else if answer, err = c.Agent.ask(all, c.Command, dir); err != nil {
		return err
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
	_, err = stdout.Write(out.Bytes())
	return err
}

// rules reads the files.
func (c *RuleCheck) rules() (*rule.Set, error) {
	all, bounds := &rule.Set{}, execpolicy.OperatorBounds()
	for _, file := range c.Files {
		if info, err := os.Stat(file); c.Agent != nil && err == nil && info.IsDir() {
			rules, err := execpolicy.Load(file)
			if err != nil {
				return nil, err
			}
			all.Append(rules)
			continue
		}
		text, err := read(file, bounds.FileBytes)
		if err != nil {
			return nil, &fileError{"read", file, err}
		}
		parsed, err := rulefile.Parse(all, file, text, bounds)
		if errors.Is(err, rulefile.ErrNotText) {
			return nil, &fileError{"read", file, err}
		}
		if err != nil {
			return nil, &fileError{"parse", file, err}
		}
		all.Append(parsed)
	}
	return all, nil
}

// verdict is what rules say.
type verdict struct {
	Matches  []execpolicy.Finding `json:"matchedRules"`
	Decision string               `json:"decision,omitempty"`
	Reason   string               `json:"reason,omitempty"`
}

// ask answers as the reference does.
func (c *RuleCheck) ask(all *rule.Set, dir string) verdict {
	matches := all.Match(c.Command)
	if c.Resolve {
		home := os.Getenv("HOME")
		matches = all.MatchProgram(c.Command, func(program string) string { return rule.Absolute(program, dir, home) })
	}
	answer := verdict{Matches: []execpolicy.Finding{}}
	for _, m := range matches {
		answer.Matches = append(answer.Matches, execpolicy.Finding{Match: m, Decision: m.Decision})
	}
	if d, ok := rule.Strictest(matches); ok {
		answer.Decision = d.String()
	}
	return answer
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
