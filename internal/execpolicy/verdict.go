package execpolicy

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// A Verdict is what a policy decides about a command, and why.
type Verdict struct {
	Decision rule.Decision
	Argv     []string // that was judged
	// Commands are those that were judged one by one: those of a script, else Argv.
	Commands [][]string
	// Plain says that they are all that a script does.
	Plain bool
	// Findings are what the decision is made of, the first maxFindings in their order.
	Findings []Finding

	deciding Finding // if something was found
	found    bool
	ruled    bool // a rule prompts or forbids
	proposed []string
}

// maxFindings bounds the findings that a verdict keeps: a script can have many commands, and each
// can match many rules.
const maxFindings = 1_000

// A Finding is a rule that matches, or what holds where no rule does.
type Finding struct {
	Decision rule.Decision
	Match    rule.Match // without a Rule where no rule matches
	Command  []string   // that no rule matches
	ForcedRm bool       // and which would remove files by force
}

// add takes the findings of a layer about a command.
func (v *Verdict) add(findings []Finding) {
	for _, f := range findings {
		if !v.found || f.Decision > v.Decision || f.Decision == v.Decision && compareReasons(&f, &v.deciding) >= 0 {
			v.Decision, v.deciding, v.found = f.Decision, f, true
		}
		switch {
		case f.Match.Rule != nil:
			v.ruled = v.ruled || f.Decision != rule.Allow
		case f.Decision == rule.Prompt && v.proposed == nil:
			v.proposed = f.Command
		}
	}
	v.Findings = append(v.Findings, findings[:min(len(findings), maxFindings-len(v.Findings))]...)
}

// maxShown is how much of a command a reason shows, in bytes.
const maxShown = 512

// shown renders a command for a reason.
func shown(argv []string) string {
	text := rule.Quote(argv)
	if len(text) <= maxShown {
		return "`" + text + "`"
	}
	end := maxShown
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return "`" + text[:end] + "…`"
}

// Reason says why the command is not simply allowed, in the words of the reference: of several
// rules that decide the same, in those of the longest, and of these of the last. It is "" where it
// is.
func (v Verdict) Reason() string {
	if !v.found {
		return ""
	}
	f, command, because := v.deciding, shown(v.Argv), ""
	if f.Match.Rule != nil {
		because = f.Match.Justification
	}
	switch {
	case v.Decision == rule.Prompt && because != "":
		return command + " requires approval: " + because
	case v.Decision == rule.Prompt:
		return command + " requires approval by policy"
	case v.Decision == rule.Allow:
		return ""
	case because != "":
		return command + " rejected: " + because
	case f.Match.Rule != nil:
		return command + " rejected: policy forbids commands starting with " + shown(f.Match.Prefix)
	case f.ForcedRm:
		return command + " rejected: rm -f style commands are not permitted. Use a safer approach"
	default:
		return command + " rejected: no rule allows it"
	}
}

// What decides where no rule does, as the flags are called.
const (
	Unmatched = "unmatched"
	ForcedRm  = "forcedRm"
)

// Decider names what has decided, and nothing of the command: the [rule.Rule.Origin] of the rule of
// which [Verdict.Reason] tells, or [Unmatched] or [ForcedRm].
func (v Verdict) Decider() string {
	switch f := &v.deciding; {
	case f.Match.Rule != nil:
		return f.Match.Origin
	case f.ForcedRm:
		return ForcedRm
	}
	return Unmatched
}

// Proposed is the beginning of a command that a rule could allow, so that it is not asked about
// again: the first command that no rule matches and that is to be asked about. It is nil if a rule
// prompts or forbids.
func (v Verdict) Proposed() []string {
	if v.ruled {
		return nil
	}
	return v.proposed
}

// MarshalJSON renders a finding as the reference does.
func (f Finding) MarshalJSON() ([]byte, error) {
	type prefix struct {
		MatchedPrefix   []string `json:"matchedPrefix"`
		Decision        string   `json:"decision"`
		ResolvedProgram string   `json:"resolvedProgram,omitempty"`
		Justification   string   `json:"justification,omitempty"`
	}
	type heuristics struct {
		Command  []string `json:"command"`
		Decision string   `json:"decision"`
	}
	var v any
	if f.Match.Rule == nil {
		v = struct {
			H heuristics `json:"heuristicsRuleMatch"`
		}{heuristics{f.Command, f.Decision.String()}}
	} else {
		v = struct {
			P prefix `json:"prefixRuleMatch"`
		}{prefix{f.Match.Prefix, f.Decision.String(), f.Match.Program, f.Match.Justification}}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}
