package rulefile

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"go.starlark.net/starlark"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// evaluation is the state of the evaluation of one file: the rules and examples that its calls have
// made so far.
type evaluation struct {
	file     string
	earlier  *rule.Set
	rules    *rule.Set
	maxRules int
	meter    *meter
	others   int // number of calls of host_executable and network_rule
	examples []examples
}

// errBlank is the error for a justification that is empty or blank.
var errBlank = errors.New("invalid rule: justification cannot be empty")

func isBlank(s string) bool { return strings.TrimFunc(s, unicode.IsSpace) == "" }

// prefixRule implements prefix_rule.
func (e *evaluation) prefixRule(thread *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		pattern, match, notMatch *starlark.List
		decision, justification  starlark.Value
		caseless                 bool
	)
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "pattern", &pattern, "decision?", &decision, "match?", &match, "not_match?", &notMatch,
		"justification?", &justification, "canonical_matching?", &caseless); err != nil {
		return nil, err
	}
	weight, err := e.meter.arguments(args, kwargs, 1)
	if err != nil {
		return nil, err
	}
	r := rule.Rule{Decision: rule.Allow}
	if r.Decision, err = decisionOf(decision, rule.Allow); err != nil {
		return nil, err
	}
	places, err := patternOf(pattern)
	if err != nil {
		return nil, fmt.Errorf("invalid pattern element: %w", err)
	}
	if r.Justification, err = justificationOf(justification); err != nil {
		return nil, err
	}
	position := thread.CallFrame(1).Pos
	own := examples{line: int(position.Line), column: int(position.Col)}
	if own.match, err = examplesOf(match); err == nil {
		own.notMatch, err = examplesOf(notMatch)
	}
	if err != nil {
		return nil, fmt.Errorf("invalid example: %w", err)
	}
	if err := e.payRules(places, weight, len(own.match)+len(own.notMatch)); err != nil {
		return nil, err
	}
	r.Origin = fmt.Sprintf("%s:%d:%d", e.file, position.Line, position.Col)
	for _, first := range places[0] {
		one := r
		one.Pattern = slices.Concat([][]string{{first}}, places[1:])
		if caseless {
			one.Caseless()
		}
		e.rules.Add(&one)
		own.rules.Add(&one)
	}
	if len(own.match)+len(own.notMatch) > 0 {
		e.examples = append(e.examples, own)
	}
	return starlark.None, nil
}

// payRules pays for the rules that one call makes. Each first word makes one rule with all other
// data of the call, and each example is compared with each rule.
func (e *evaluation) payRules(places [][]string, weight, tried int) error {
	n, words := len(places[0]), 0
	if n > e.maxRules-e.rules.Len() {
		return errMany
	}
	for _, place := range places {
		words += len(place)
	}
	if err := e.meter.payTimes(n-1, weight); err != nil {
		return err
	}
	return e.meter.payTimes(tried*n, words)
}

// decisionOf returns the decision that a call names, or otherwise if it names none.
func decisionOf(v starlark.Value, otherwise rule.Decision) (rule.Decision, error) {
	if v == nil {
		return otherwise, nil
	}
	name, ok := v.(starlark.String)
	if !ok {
		return 0, fmt.Errorf("decision has to be a string, not %s", typeOf(v))
	}
	return rule.ParseDecision(string(name))
}

// justificationOf returns the justification of a call, or "".
func justificationOf(v starlark.Value) (string, error) {
	if v == nil {
		return "", nil
	}
	text, ok := v.(starlark.String)
	switch {
	case !ok:
		return "", fmt.Errorf("justification has to be a string, not %s", typeOf(v))
	case isBlank(string(text)):
		return "", errBlank
	}
	return string(text), nil
}

// patternOf returns the words of a pattern for each position.
func patternOf(list *starlark.List) (places [][]string, err error) {
	for v := range list.Elements() {
		switch v := v.(type) {
		case starlark.String:
			places = append(places, []string{string(v)})
		case *starlark.List:
			var words []string
			for w := range v.Elements() {
				word, ok := w.(starlark.String)
				if !ok {
					return nil, fmt.Errorf("pattern alternative must be a string (got %s)", typeOf(w))
				}
				words = append(words, string(word))
			}
			if len(words) == 0 {
				return nil, errors.New("pattern alternatives cannot be empty")
			}
			places = append(places, words)
		default:
			return nil, fmt.Errorf("pattern element must be a string or list of strings (got %s)", typeOf(v))
		}
	}
	if len(places) == 0 {
		return nil, errors.New("pattern cannot be empty")
	}
	return places, nil
}

// typeOf returns the name of a value's type in the words of the reference.
func typeOf(v starlark.Value) string {
	if t := v.Type(); t != "builtin_function_or_method" {
		return t
	}
	return "function"
}

// hostExecutable implements host_executable.
func (e *evaluation) hostExecutable(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		name string
		list *starlark.List
	)
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "name", &name, "paths", &list); err != nil {
		return nil, err
	}
	switch {
	case name == "":
		return nil, errors.New("invalid rule: host_executable name cannot be empty")
	case name == "." || name == ".." || strings.Contains(name, "/"):
		return nil, fmt.Errorf("invalid rule: host_executable name must be a bare executable name (got %s)", name)
	}
	if _, err := e.meter.arguments(args, kwargs, 1); err != nil {
		return nil, err
	}
	paths, known := []string{}, map[string]bool{}
	for v := range list.Elements() {
		text, ok := v.(starlark.String)
		if !ok {
			return nil, fmt.Errorf("invalid rule: host_executable paths must be strings (got %s)", typeOf(v))
		}
		p := string(text)
		if !path.IsAbs(p) {
			return nil, fmt.Errorf("invalid rule: host_executable paths must be absolute (got %s)", p)
		}
		clean := path.Clean(p)
		if path.Base(clean) != name {
			return nil, fmt.Errorf("invalid rule: host_executable path `%s` must have basename `%s`", p, name)
		}
		if !known[clean] {
			paths, known[clean] = append(paths, clean), true
		}
	}
	if err := e.another(); err != nil {
		return nil, err
	}
	e.rules.DefineHost(name, paths)
	return starlark.None, nil
}

var errMany = errors.New("too many rules")

// another counts a call that makes no rule about commands. It fails if there are too many.
func (e *evaluation) another() error {
	if e.others++; e.others > e.maxRules {
		return errMany
	}
	return nil
}

// networkRule implements network_rule.
func (e *evaluation) networkRule(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		host, protocol, decision string
		justification            starlark.Value
	)
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "host", &host, "protocol", &protocol, "decision", &decision, "justification?", &justification); err != nil {
		return nil, err
	}
	var n rule.Network
	var err error
	if n.Host, err = rule.ParseHost(host); err == nil {
		n.Protocol, err = rule.ParseProtocol(protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("invalid rule: %w", err)
	}
	if decision == "deny" {
		decision = rule.Forbidden.String()
	}
	if n.Decision, err = rule.ParseDecision(decision); err != nil {
		return nil, err
	}
	if n.Justification, err = justificationOf(justification); err != nil {
		return nil, err
	}
	if err := e.another(); err != nil {
		return nil, err
	}
	e.rules.AddNetwork(n)
	return starlark.None, nil
}
