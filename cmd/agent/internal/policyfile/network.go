package policyfile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/internal/tomlfile"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxFile bounds a policy, in bytes.
	maxFile = 1 << 20
	// maxPatterns, maxPorts and maxMasking bound the number of each.
	maxPatterns, maxPorts, maxMasking = 65536, 1024, 64
)

// ReadNetwork reads a policy. An error names the file and the line of the key. It does not quote a
// value that may hold a password.
func ReadNetwork(path string) (*agent.NetworkPolicy, error) {
	text, err := paths.ReadRegular(path, maxFile)
	if err != nil {
		return nil, err
	}
	return parse(path, string(text))
}

// table holds the values of a document, or of a table in it, by key.
type table = map[string]tomlfile.Value

// reader reads the values of a document. The document keeps the first error.
type reader struct{ *tomlfile.Document }

// parse reads the text of a file.
func parse(path, text string) (*agent.NetworkPolicy, error) {
	document, top, err := tomlfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	r := reader{document}
	r.only(top, "", "allow", "deny", "ask", "ports", "local", "upstream", "tcp_upstream", "masking")
	p := &agent.NetworkPolicy{
		Allow:    r.patterns(top, "allow"),
		Deny:     r.patterns(top, "deny"),
		Ask:      r.patterns(top, "ask"),
		Ports:    r.ports(top),
		Local:    value[bool](r, top, "local", "true or false"),
		Upstream: r.upstream(top),

		TCPUpstream: r.tcpUpstream(top),
		Masking:     r.masking(top),
	}
	r.checkDomains(p, top)
	return p, r.Err()
}

// checkDomains checks each pattern. It refuses a pattern that is in two lists, because the lists
// contradict each other.
func (r reader) checkDomains(p *agent.NetworkPolicy, top table) {
	domains := map[string]rules.Action{}
	for _, list := range []struct {
		patterns []string
		action   rules.Action
	}{{p.Allow, rules.Allow}, {p.Deny, rules.Deny}, {p.Ask, rules.Ask}} {
		at := top[string(list.action)]
		for _, pattern := range list.patterns {
			if other, ok := domains[pattern]; ok {
				r.Fail(at, "%q is in both %s and %s", pattern, other, list.action)
			}
			domains[pattern] = list.action
			if _, err := rules.Compile(rules.Rules{Domains: map[string]rules.Action{pattern: list.action}}); err != nil {
				r.Fail(at, "%s: %w", list.action, err)
			}
		}
	}
}

// only refuses keys in a table that are not in names.
func (r reader) only(values table, in string, names ...string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, key) {
			r.Fail(values[key], "unknown key %s%s, expected one of %s", in, key, strings.Join(names, ", "))
		}
	}
}

// value reads a member; it returns the zero value if the member is absent.
func value[T any](r reader, values table, key, want string) (v T) {
	if at, ok := values[key]; ok {
		v, _ = tomlfile.As[T](r.Document, key, want, at)
	}
	return v
}

// texts reads a list of strings with at most most members.
func (r reader) texts(values table, key string, most int) []string {
	list := value[[]any](r, values, key, "a list of texts")
	if len(list) > most {
		r.Fail(values[key], "%s has %d members, but at most %d are allowed", key, len(list), most)
		return nil
	}
	var out []string
	for _, raw := range list {
		text, ok := raw.(string)
		if !ok {
			r.Fail(values[key], "%s has a member that is not a text", key)
			return nil
		}
		out = append(out, text)
	}
	return out
}

func (r reader) patterns(top table, key string) []string {
	list := r.texts(top, key, maxPatterns)
	slices.Sort(list)
	return slices.Compact(list)
}

func (r reader) ports(top table) []uint16 {
	at, ok := top["ports"]
	if !ok {
		return nil
	}
	list, ok := r.Any(at).([]any)
	if !ok || len(list) == 0 || len(list) > maxPorts {
		r.Fail(at, "ports is not a list of 1 to %d ports", maxPorts)
		return nil
	}
	var out []uint16
	for _, raw := range list {
		n, ok := raw.(int64)
		if !ok || n < 1 || n > 65535 {
			r.Fail(at, "ports has %v, which is not 1 to 65535", raw)
			return nil
		}
		out = append(out, uint16(n))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r reader) upstream(top table) string {
	text := cmp.Or(value[string](r, top, "upstream", "a text"), "environment")
	if _, _, err := egress.Upstream(text, nil); err != nil {
		r.Fail(top["upstream"], "%w", err)
	}
	return text
}

func (r reader) tcpUpstream(top table) string {
	text := value[string](r, top, "tcp_upstream", "a text")
	if _, err := egress.TCPUpstream(text, nil); err != nil {
		r.Fail(top["tcp_upstream"], "tcp_upstream is not HOST:PORT")
	}
	return text
}

func (r reader) masking(top table) map[string]protocol.CredentialProvider {
	at, ok := top["masking"]
	if !ok {
		return nil
	}
	tables := r.Table("masking", at)
	if len(tables) > maxMasking {
		r.Fail(at, "masking has %d providers, but at most %d are allowed", len(tables), maxMasking)
		return nil
	}
	var out map[string]protocol.CredentialProvider
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		in := "masking." + name
		provider := r.Table(in, tables[name])
		r.only(provider, in+".", "env", "patterns", "url_prefixes", "url_prefix_from_env", "auth", "header", "prefix")
		if out == nil {
			out = map[string]protocol.CredentialProvider{}
		}
		out[name] = protocol.CredentialProvider{
			Env:              r.texts(provider, "env", maxMasking),
			Patterns:         r.texts(provider, "patterns", maxMasking),
			URLPrefixes:      r.texts(provider, "url_prefixes", maxMasking),
			URLPrefixFromEnv: r.optText(provider, "url_prefix_from_env"),
			Auth:             r.texts(provider, "auth", maxMasking),
			Header:           r.optText(provider, "header"),
			Prefix:           r.optText(provider, "prefix"),
		}
		if err := egress.CheckProvider(out[name]); err != nil && r.Err() == nil {
			r.Fail(tables[name], "%s: %w", in, err)
		}
	}
	return out
}

func (r reader) optText(values table, key string) *string {
	if _, ok := values[key]; !ok {
		return nil
	}
	return new(value[string](r, values, key, "a text"))
}
