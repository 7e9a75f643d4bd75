package execpolicy

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// A Verdict is the decision of a policy about a command, with its reasons.
type Verdict struct {
	Decision rule.Decision
	Argv     []string // the judged command
	// Commands are the commands that were judged one by one: the commands of a script, or else Argv.
	Commands [][]string
	// Plain says that the script consists of Commands and nothing else.
	Plain bool
	// Findings are the reasons for the decision: the first maxFindings, in their order.
	Findings []Finding

	deciding Finding // valid if found is true
	found    bool
	ruled    bool // a rule prompts or forbids
	proposed []string
}

// maxFindings bounds the findings that a verdict keeps, because a script can have many commands,
// and each can match many rules.
const maxFindings = 1_000

// A Finding is a rule that matches a command, or the default for a command that no rule matches.
type Finding struct {
	Decision rule.Decision
	Match    rule.Match // Rule is nil if no rule matches
	Command  []string   // set if no rule matches
	ForcedRm bool       // no rule matches, and the command removes files by force

	opaque     bool // no rule matches, and the script cannot be taken apart
	unreadable bool // and nothing of it can be read
	nameless   bool // as in [Command]
	elsewhere  bool // host_executable names other paths for the program
}

// add adds the findings of a layer about a command.
func (v *Verdict) add(findings []Finding) {
	for _, f := range findings {
		if !v.found || f.Decision > v.Decision || f.Decision == v.Decision && compareReasons(&f, &v.deciding) >= 0 {
			v.Decision, v.deciding, v.found = f.Decision, f, true
		}
		switch {
		case f.Match.Rule != nil, f.unreadable:
			v.ruled = v.ruled || f.Decision != rule.Allow
		case f.Decision == rule.Prompt && v.proposed == nil:
			v.proposed = f.Command
		}
	}
	v.Findings = append(v.Findings, findings[:min(len(findings), maxFindings-len(v.Findings))]...)
}

// maxShown bounds the part of a command that a reason shows, in bytes.
const maxShown = 512

// shown formats a command for a reason.
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

// Reason says why the command is not simply allowed, in the words of the reference. If several
// rules have the same decision, the longest gives the reason, and the last of the longest. Reason
// is "" if the command is allowed.
func (v Verdict) Reason() string {
	because := v.Because()
	switch {
	case !v.found || v.Decision == rule.Allow:
		return ""
	case v.Decision == rule.Forbidden:
		return shown(v.Argv) + " rejected: " + because
	case because == "":
		return shown(v.Argv) + " requires approval by policy"
	}
	return shown(v.Argv) + " requires approval: " + because
}

// Because is Reason without the command; "" if a policy requires an approval and says not why.
func (v Verdict) Because() string {
	switch f := &v.deciding; {
	case f.Match.Rule != nil && f.Match.Justification != "":
		return f.Match.Justification
	case v.Decision != rule.Forbidden:
		return ""
	case f.Match.Rule != nil:
		return "policy forbids commands starting with " + shown(f.Match.Prefix)
	case f.ForcedRm:
		return "rm -f style commands are not permitted. Use a safer approach"
	case f.unreadable:
		return "the script is too long, or nested too deeply, to be read"
	default:
		return f.missing(v.Argv)
	}
}

// maxMissing bounds the rule that a reason shows, in bytes.
const maxMissing = 256

// missing says that no rule allows the command of a finding, and which rule would. argv are the words
// that the reason begins with.
func (f *Finding) missing(argv []string) string {
	switch {
	case f.opaque:
		return "no rule allows a script that cannot be taken apart: start its commands one by one"
	case f.nameless:
		return "no rule can allow a file without a path"
	}
	text := "no rule allows it"
	if !slices.Equal(f.Command, argv) {
		text = "no rule allows " + shown(f.Command)
	}
	if len(f.Command) == 0 {
		return text
	}
	words := slices.Clone(f.Command)
	if !f.elsewhere {
		words[0] = path.Base(words[0])
	}
	n := 1
	for n < len(words) && TooWide(words[:n]) {
		n++
	}
	if line, err := amendment(words[:n]); err == nil && len(line) <= maxMissing {
		text += "; this one would: " + line
	}
	return text
}

// Results of Decider if no rule decides. They are the names of the flags.
const (
	Unmatched = "unmatched"
	ForcedRm  = "forcedRm"
)

// Decider names the origin of the decision, and nothing of the command: the [rule.Rule.Origin] of
// the rule that [Verdict.Reason] describes, or [Unmatched] or [ForcedRm].
func (v Verdict) Decider() string {
	switch f := &v.deciding; {
	case f.Match.Rule != nil:
		return f.Match.Origin
	case f.ForcedRm:
		return ForcedRm
	}
	return Unmatched
}

// Proposed returns the words of a command for which a rule could be added, so that the command is
// not asked about again. This is the first command with the decision prompt that no rule matches.
// It is nil if a rule prompts or forbids.
func (v Verdict) Proposed() []string {
	if v.ruled {
		return nil
	}
	return v.proposed
}

// MarshalJSON encodes a finding in the format of the reference.
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
