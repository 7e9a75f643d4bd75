package cli

import (
	"fmt"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
)

// Shown is an option with its value, and the place of the value.
type Shown struct {
	Command string `json:"command"`
	Option  string `json:"option"`
	// Value has several texts only for a list. It is nil if nothing sets the value.
	Value []string `json:"value"`
	// Source is requirement, flag, variable, file or default.
	Source   string `json:"source"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Variable string `json:"variable,omitempty"`
}

const (
	sourceDefault     = "default"
	sourceFile        = "file"
	sourceVariable    = "variable"
	sourceFlag        = "flag"
	sourceRequirement = "requirement"
	// notShown stands for a secret.
	notShown = "(not shown)"
)

// Explain returns the options of a command that can be set in several places, each with the place
// of its value. given has the flags on a command line.
func Explain(command string, options []Option, values Values, given map[string]string) (all []Shown) {
	for i := range options {
		o := &options[i]
		if !o.Settable() {
			continue
		}
		s := Shown{Command: command, Option: o.Name, Source: sourceDefault}
		v, filed := values[o.Name]
		name, text, _ := Variable(o.Env, o.Path)
		flag, onLine := given[o.Name]
		switch {
		case filed && (v.Required || !onLine && name == ""):
			if s.Source = sourceFile; v.Required {
				s.Source = sourceRequirement
			}
			s.Value, s.File, s.Line = v.Texts, v.Path, v.Line
		case onLine:
			s.Source, s.Value = sourceFlag, []string{flag}
		case name != "":
			s.Source, s.Value, s.Variable = sourceVariable, []string{text}, name
		case o.Default != "":
			s.Value = []string{o.Default}
		}
		for i, text := range s.Value {
			if i == 0 {
				s.Value = append([]string{}, s.Value...)
			}
			s.Value[i] = harmless(text, o.Secret)
		}
		all = append(all, s)
	}
	return all
}

// harmless returns a value without secrets: it removes the user and password, the query and the
// fragment of a URL, or of several URLs. A comma separates URLs only if a URL begins after it,
// because passwords and queries may contain commas too.
func harmless(text string, secret bool) string {
	switch {
	case secret && text != "":
		return notShown
	case !strings.Contains(text, "://"):
		return text
	}
	var urls []string
	for part := range strings.SplitSeq(text, ",") {
		if last := len(urls) - 1; last >= 0 && !strings.Contains(part, "://") {
			urls[last] += "," + part
		} else {
			urls = append(urls, part)
		}
	}
	for i, url := range urls {
		scheme, rest, _ := strings.Cut(url, "://")
		hidden := ""
		if at := strings.IndexAny(rest, "?#"); at >= 0 {
			if strings.Contains(rest[at:], "@") { // the @ may be the end of a password
				rest = notShown
			} else {
				rest, hidden = rest[:at], rest[at:at+1]+notShown
			}
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = notShown + rest[at:]
		}
		urls[i] = scheme + "://" + rest + hidden
	}
	return strings.Join(urls, ",")
}

// Set reports whether the value is set. A default does not count as set.
func (s *Shown) Set() bool { return s.Source != sourceDefault }

// From returns the place where the value is set.
func (s *Shown) From() string {
	switch s.Source {
	case sourceFile:
		return fmt.Sprintf("%s:%d", s.File, s.Line)
	case sourceRequirement:
		return fmt.Sprintf("%s:%d (required)", s.File, s.Line)
	case sourceVariable:
		return s.Variable
	case sourceFlag:
		return "--" + s.Option
	}
	return s.Source
}

// ShownHeading is the heading of a table of options.
const ShownHeading = "COMMAND\tOPTION\tVALUE\tFROM"

// Row returns the row of the option in such a table.
func (s *Shown) Row() []string {
	value := "-"
	if len(s.Value) > 0 {
		value = strings.Join(s.Value, " ")
	}
	return []string{s.Command, s.Option, program.Plain(value), program.Plain(s.From())}
}
