package netpolicy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/execagent/execagent/agent/egress"
	"github.com/execagent/execagent/internal/tomltext"
	"github.com/execagent/execagent/netproxy/rules"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxFile bounds a policy, in bytes.
	maxFile = 1 << 20
	// maxNesting is how deep its brackets and dotted keys may nest: the decoder takes time
	// that is quadratic in that.
	maxNesting = 8
	// maxPatterns, maxPorts and maxMasking are how many of each there may be.
	maxPatterns, maxPorts, maxMasking = 65536, 1024, 64
)

// What Policy.Upstream may be besides the URL of a proxy.
const (
	upstreamEnvironment = "environment"
	upstreamNone        = "none"
)

// Policy is what is written in a file.
type Policy struct {
	Allow, Deny, Ask []string // sorted, each pattern once
	Ports            []uint16 // sorted; none: every port
	Local            bool
	// Upstream is upstreamEnvironment, upstreamNone or the URL of a proxy.
	Upstream string
	Masking  map[string]protocol.CredentialProvider

	rules *rules.Policy // what it says of names, ports and addresses
}

// Read reads a file. An error names the file and the line.
func Read(path string) (*Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	p, err := parse(text)
	if at, ok := errors.AsType[*lineError](err); ok && at.line > 0 {
		return nil, fmt.Errorf("%s:%d: %w", path, at.line, at.err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// lineError is what is wrong in a line; 0 where that is not known.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }

// reader reads the members of a document. It keeps the first error.
type reader struct {
	text []byte
	err  *lineError
}

// fail notes an error about a key, or about a text in its value.
func (r *reader) fail(at, format string, args ...any) {
	if r.err == nil {
		r.err = &lineError{lineOf(r.text, at), fmt.Errorf(format, args...)}
	}
}

// lineOf returns the first line that has a text outside of its comment; 0 for none.
func lineOf(text []byte, at string) int {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		code, _, _ := bytes.Cut(line, []byte("#"))
		if bytes.Contains(code, []byte(at)) {
			return n
		}
	}
	return 0
}

// parse reads the text of a file.
func parse(text []byte) (*Policy, error) {
	switch {
	case len(text) > maxFile:
		return nil, fmt.Errorf("more than %d bytes", maxFile)
	case !utf8.Valid(text):
		return nil, errors.New("not UTF-8")
	case tomltext.Nesting(string(text)) > maxNesting:
		return nil, fmt.Errorf("nested deeper than %d", maxNesting)
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		if at, ok := errors.AsType[toml.ParseError](err); ok {
			return nil, &lineError{at.Position.Line, errors.New(at.Message)}
		}
		return nil, err
	}
	r := &reader{text: text}
	r.only(tree, "", "allow", "deny", "ask", "ports", "local", "upstream", "masking")
	p := &Policy{
		Allow:    r.patterns(tree, "allow"),
		Deny:     r.patterns(tree, "deny"),
		Ask:      r.patterns(tree, "ask"),
		Ports:    r.ports(tree["ports"]),
		Local:    value[bool](r, tree, "local", "true or false"),
		Upstream: r.upstream(tree),
		Masking:  r.masking(tree),
	}
	r.compile(p)
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// compile sets p.rules. A pattern is in one list, since it would not be clear which holds.
func (r *reader) compile(p *Policy) {
	domains := map[string]rules.Action{}
	for _, list := range []struct {
		patterns []string
		action   rules.Action
	}{{p.Allow, rules.Allow}, {p.Deny, rules.Deny}, {p.Ask, rules.Ask}} {
		for _, pattern := range list.patterns {
			if other, ok := domains[pattern]; ok {
				r.fail(quoted(pattern), "%q is in both %s and %s", pattern, other, list.action)
				return
			}
			domains[pattern] = list.action
			if _, err := rules.Compile(rules.Rules{Domains: map[string]rules.Action{pattern: list.action}}); err != nil {
				r.fail(quoted(pattern), "%s: %w", list.action, err)
				return
			}
		}
	}
	var err error
	if p.rules, err = rules.Compile(rules.Rules{Local: p.Local, Domains: domains, Ports: p.Ports}); err != nil {
		r.fail("", "%w", err)
	}
}

// quoted is how a pattern stands in most files.
func quoted(text string) string { return `"` + text + `"` }

// only refuses other keys than these in a table.
func (r *reader) only(table map[string]any, in string, names ...string) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if !slices.Contains(names, key) {
			r.fail(key, "unknown key %s%s, expected one of %s", in, key, strings.Join(names, ", "))
		}
	}
}

// value reads a member, the zero value when absent.
func value[T any](r *reader, table map[string]any, key, want string) (v T) {
	raw, ok := table[key]
	if !ok {
		return v
	}
	if v, ok = raw.(T); !ok {
		r.fail(key, "%s is not %s", key, want)
	}
	return v
}

// texts reads a list of texts.
func (r *reader) texts(table map[string]any, key string, most int) []string {
	list := value[[]any](r, table, key, "a list of texts")
	if len(list) > most {
		r.fail(key, "%s has %d members, at most %d", key, len(list), most)
		return nil
	}
	var out []string
	for _, raw := range list {
		text, ok := raw.(string)
		if !ok {
			r.fail(key, "%s has something else than texts", key)
			return nil
		}
		out = append(out, text)
	}
	return out
}

func (r *reader) patterns(tree map[string]any, key string) []string {
	list := r.texts(tree, key, maxPatterns)
	slices.Sort(list)
	return slices.Compact(list)
}

func (r *reader) ports(raw any) []uint16 {
	if raw == nil {
		return nil
	}
	list, ok := raw.([]any)
	if !ok || len(list) == 0 || len(list) > maxPorts {
		r.fail("ports", "ports is not a list of 1 to %d ports", maxPorts)
		return nil
	}
	var out []uint16
	for _, raw := range list {
		n, ok := raw.(int64)
		if !ok || n < 1 || n > 65535 {
			r.fail("ports", "ports has %v, which is not 1 to 65535", raw)
			return nil
		}
		out = append(out, uint16(n))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r *reader) upstream(tree map[string]any) string {
	text := value[string](r, tree, "upstream", "a text")
	switch text {
	case "":
		return upstreamEnvironment
	case upstreamEnvironment, upstreamNone:
		return text
	}
	// What is wrong with it is not said: it may hold a password.
	if u, err := url.Parse(text); err != nil || u.Scheme != "http" || u.Hostname() == "" || strings.TrimPrefix(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		r.fail("upstream", "upstream is neither environment nor none nor http://HOST:PORT")
	}
	return text
}

func (r *reader) masking(tree map[string]any) map[string]protocol.CredentialProvider {
	tables := value[map[string]any](r, tree, "masking", "a table")
	if len(tables) > maxMasking {
		r.fail("masking", "masking has %d providers, at most %d", len(tables), maxMasking)
		return nil
	}
	var out map[string]protocol.CredentialProvider
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		in := "masking." + name
		table := value[map[string]any](r, tables, name, "a table")
		r.only(table, in+".", "env", "patterns", "url_prefixes", "url_prefix_from_env", "auth", "header", "prefix")
		if out == nil {
			out = map[string]protocol.CredentialProvider{}
		}
		out[name] = protocol.CredentialProvider{
			Env:              r.texts(table, "env", maxMasking),
			Patterns:         r.texts(table, "patterns", maxMasking),
			URLPrefixes:      r.texts(table, "url_prefixes", maxMasking),
			URLPrefixFromEnv: r.optText(table, "url_prefix_from_env"),
			Auth:             r.texts(table, "auth", maxMasking),
			Header:           r.optText(table, "header"),
			Prefix:           r.optText(table, "prefix"),
		}
		if err := egress.CheckProvider(out[name]); err != nil {
			r.fail(in, "%s: %w", in, err)
		}
	}
	return out
}

func (r *reader) optText(table map[string]any, key string) *string {
	if _, ok := table[key]; !ok {
		return nil
	}
	return new(value[string](r, table, key, "a text"))
}
