package procs

import (
	"bufio"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Inherit says what of the server's environment an EnvPolicy starts from. The
// values are the words of rpc.md 4.4.
type Inherit string

// The ways to inherit; any other word is InheritNone.
const (
	InheritNone Inherit = "none"
	InheritCore Inherit = "core" // the names in coreNames
	InheritAll  Inherit = "all"
)

// EnvPolicy says how the environment of a process is made; rpc.md 4.4. In
// patterns * stands for any text and ? for one character; they match whole
// names and ignore case, as all comparisons of names here do.
type EnvPolicy struct {
	Inherit Inherit
	// IgnoreDefaultExcludes keeps inherited names that contain KEY, SECRET or
	// TOKEN.
	IgnoreDefaultExcludes bool
	// Exclude drops inherited names that match a pattern.
	Exclude []string
	// Set is added to what is inherited.
	Set map[string]string
	// IncludeOnly, unless empty, keeps only names that match a pattern, of the
	// inherited ones and of Set.
	IncludeOnly []string
}

// neverPassed is removed even when a client gives it.
const neverPassed = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"

// deniedNames hold the server's own secrets and switches; rpc.md 6, D11.
var deniedNames = []string{
	"OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN", "CODEX_CONNECTORS_TOKEN",
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
	"AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS",
	"CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN", "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
	neverPassed,
}

var coreNames = []string{
	"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER",
}

// Denied tells whether the server's variable of that name must not reach a
// client or a child (D11).
func Denied(name string) bool { return hasName(deniedNames, name) }

func hasName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// Environ makes an environment, sorted. The overlay comes last and wins; a nil
// policy makes it the whole environment. Server is "NAME=value" entries, of
// which denied names are never inherited.
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

// inherit adds what the policy takes from the server.
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

// match goes back only to the last star, since an earlier one could take no
// more than it already may; so it takes at most len(p) times len(name) steps.
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

// LoginShell finds the shell of a user in text of the form of passwd(5), ""
// if there is none.
func LoginShell(passwd io.Reader, uid int) string {
	id := strconv.Itoa(uid)
	lines := bufio.NewScanner(passwd)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) >= 7 && fields[2] == id {
			return fields[6]
		}
	}
	return ""
}
