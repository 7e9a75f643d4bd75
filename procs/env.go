package procs

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"syscall"
)

// Inherit says which variables an EnvPolicy takes from the environment of the
// server, in the words of rpc.md 4.4.
type Inherit string

// The ways to inherit; any other word means InheritNone.
const (
	InheritNone Inherit = "none"
	InheritCore Inherit = "core" // the names in coreNames
	InheritAll  Inherit = "all"
)

// EnvPolicy says how the environment of a process is made (rpc.md 4.4). In
// patterns, * stands for any text and ? for one character. They match whole
// names and ignore case, as all comparisons of names here do.
type EnvPolicy struct {
	Inherit Inherit
	// IgnoreDefaultExcludes keeps inherited names that contain KEY, SECRET or
	// TOKEN.
	IgnoreDefaultExcludes bool
	// Exclude drops inherited names that match a pattern.
	Exclude []string
	// Set is added to the inherited variables.
	Set map[string]string
	// IncludeOnly, unless empty, keeps only names that match a pattern, both
	// inherited names and names of Set.
	IncludeOnly []string
	// OtherUser: the process runs as another user than the server, whose session
	// is not its own. It inherits only names that belong to no user, or, if there
	// is an IncludeOnly, only what that names.
	OtherUser bool
}

// Bounds of a client's policy, far above what clients use.
const (
	maxGlobs   = 4096        // entries of one list, and of Set
	maxGlob    = 1024        // bytes of a pattern, or of a name of Set
	maxMatches = 100_000_000 // steps: bytes of patterns times bytes of names
)

// neverPassed reaches no process, even when a client sets it.
const neverPassed = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"

// deniedNames hold secrets and switches of the server itself (rpc.md 6).
var deniedNames = []string{
	"OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN", "CODEX_CONNECTORS_TOKEN",
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
	"AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS",
	"CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN", "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", "AGENT_REGISTRY_TOKEN",
	"OPENAI_FEDERATION_RULE_ID", "OPENAI_IDENTITY_TOKEN_FILE", "OPENAI_IDENTITY_TOKEN_SOURCE",
	"OPENAI_SPIFFE_AUDIENCE", "OPENAI_SPIFFE_ID", "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
	neverPassed,
}

var coreNames = []string{
	"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER",
}

// sharedNames are patterns of the names that belong to no user: where programs
// are, the language, the time zone and the terminal. sudo(8) and su(1) with
// --login keep the same, so XDG_RUNTIME_DIR, SSH_AUTH_SOCK, BASH_ENV and their
// like stay with the user whose they are.
var sharedNames = compile([]string{
	"PATH", "LANG", "LANGUAGE", "LC_*", "LINGUAS", "TZ", "TERM", "COLORTERM", "NO_COLOR",
})

// Denied reports whether the server's variable with that name must not reach a
// client or a child (rpc.md 4.4).
func Denied(name string) bool { return hasName(deniedNames, name) }

func hasName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// Check refuses arguments with which Environ would take more than about a tenth
// of a second: a list or Set of more than 4,096 entries, a pattern or name in
// it of more than 1,024 bytes, or more than 1e8 steps of matching. It also
// refuses an overlay that is too large for execve(2) (E2BIG). The error names
// the field as the wire does (rpc.md 4.4), and sizes, but no value.
func (p *EnvPolicy) Check(server []string, overlay map[string]string) error {
	total := 0
	for name, value := range overlay {
		total += len(name) + len(value) + 2 + 8 // "=", NUL, and the pointer to it
	}
	if total > maxStrings {
		return fmt.Errorf("env: %d variables of %d bytes: %w", len(overlay), total, syscall.E2BIG)
	}
	if p == nil {
		return nil
	}
	exclude, err := checkNames("exclude", len(p.Exclude), slices.Values(p.Exclude))
	if err != nil {
		return err
	}
	only, err := checkNames("includeOnly", len(p.IncludeOnly), slices.Values(p.IncludeOnly))
	if err != nil {
		return err
	}
	set, err := checkNames("set", len(p.Set), maps.Keys(p.Set))
	if err != nil {
		return err
	}
	inherited := 0
	if p.Inherit == InheritAll || p.Inherit == InheritCore {
		for _, kv := range server {
			name, _, _ := strings.Cut(kv, "=")
			inherited += len(name)
		}
	}
	if exclude*inherited > maxMatches {
		return fmt.Errorf("exclude: %d bytes of patterns for %d bytes of names", exclude, inherited)
	}
	if only*(inherited+set) > maxMatches {
		return fmt.Errorf("includeOnly: %d bytes of patterns for %d bytes of names", only, inherited+set)
	}
	return nil
}

// checkNames checks n names or patterns and returns their length.
func checkNames(field string, n int, names iter.Seq[string]) (total int, err error) {
	if n > maxGlobs {
		return 0, fmt.Errorf("%s: %d entries, more than %d", field, n, maxGlobs)
	}
	for name := range names {
		if len(name) > maxGlob {
			return 0, fmt.Errorf("%s: an entry of %d bytes, more than %d", field, len(name), maxGlob)
		}
		total += len(name)
	}
	return total, nil
}

// Environ makes an environment, sorted. The overlay comes last and wins; with a
// nil policy it is the whole environment. server has "NAME=value" entries;
// denied names are never inherited. Arguments from a client must pass Check
// first.
func (p *EnvPolicy) Environ(server []string, overlay map[string]string) []string {
	env := map[string]string{}
	if p != nil {
		p.inherit(env, server)
		maps.Copy(env, p.Set)
		if only := compile(p.IncludeOnly); len(only) > 0 {
			for name := range env {
				if !matchAny(only, name) {
					delete(env, name)
				}
			}
		}
	}
	maps.Copy(env, overlay)
	list := make([]string, 0, len(env))
	for name, value := range env {
		if !strings.EqualFold(name, neverPassed) {
			list = append(list, name+"="+value)
		}
	}
	slices.Sort(list)
	return list
}

// inherit adds the variables that the policy takes from the server.
func (p *EnvPolicy) inherit(env map[string]string, server []string) {
	if p.Inherit != InheritAll && p.Inherit != InheritCore {
		return
	}
	exclude := compile(p.Exclude)
	for _, kv := range server {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "" || Denied(name):
		case p.Inherit == InheritCore && !hasName(coreNames, name):
		case !p.IgnoreDefaultExcludes && secretive(name):
		case matchAny(exclude, name):
		case p.OtherUser && len(p.IncludeOnly) == 0 && !matchAny(sharedNames, name):
		default:
			env[name] = value
		}
	}
}

func secretive(name string) bool {
	name = strings.ToUpper(name)
	return strings.Contains(name, "KEY") || strings.Contains(name, "SECRET") || strings.Contains(name, "TOKEN")
}

// pattern is a glob in lower case, by characters.
type pattern []rune

func compile(globs []string) []pattern {
	patterns := make([]pattern, len(globs))
	for i, glob := range globs {
		patterns[i] = pattern(strings.ToLower(glob))
	}
	return patterns
}

func matchAny(patterns []pattern, name string) bool {
	if len(patterns) == 0 {
		return false
	}
	runes := []rune(strings.ToLower(name))
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.match(runes) })
}

// match reports whether p matches the whole name. If it gets stuck, it lets the
// last star take one more character. It never goes back to an earlier star,
// because the last star can take whatever an earlier star could take in addition.
// So match takes at most len(p) times len(name) steps.
func (p pattern) match(name []rune) bool {
	i, n := 0, 0
	star, mark := -1, 0
	for n < len(name) {
		switch {
		case i < len(p) && p[i] == '*':
			star, mark = i, n
			i++
		case i < len(p) && (p[i] == '?' || p[i] == name[n]):
			i++
			n++
		case star >= 0:
			mark++
			i, n = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
