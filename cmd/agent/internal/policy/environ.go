package policy

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// Environ returns the variables of an environment that the command gets, and the names of the variables that
// are hidden because they look like secrets. given are the variables that -e sets: these are not hidden.
func (f *Flags) Environ(environ []string, given map[string]string) (kept, hidden []string) {
	core := map[string]bool{"TERM": true}
	if f.CleanEnv {
		for _, entry := range (&procs.EnvPolicy{Inherit: procs.InheritCore}).Environ(environ, nil) {
			name, _, _ := strings.Cut(entry, "=")
			core[name] = true
		}
	}
	secret := map[string]bool{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case f.keeps(name):
			kept = append(kept, entry)
		case f.CleanEnv && !core[name]:
		case !f.ShowSecrets && isSecret(name, value):
			if _, ok := given[name]; !ok {
				secret[name] = true
			}
		default:
			kept = append(kept, entry)
		}
	}
	return kept, slices.Sorted(maps.Keys(secret))
}

// keeps reports whether a flag or a profile passes on a variable.
func (f *Flags) keeps(name string) bool {
	match := func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	}
	return slices.ContainsFunc(f.KeepEnv, match) ||
		slices.ContainsFunc(f.profiles, func(p toolProfile) bool { return slices.ContainsFunc(p.Env, match) })
}

// coreNames are the variables that every agent passes on (the core of package procs), and TERM.
var coreNames = []string{"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER", "TERM"}

// EnvPolicyHere returns the policy about variables for an agent that is embedded in this process. environ are
// the variables of this process, and the command gets those in kept, which Environ has returned. The names of a
// policy are compared in any letter case. So a variable that is kept is set again if another one of its name is
// not.
func EnvPolicyHere(environ, kept []string) *protocol.EnvPolicy {
	p := &protocol.EnvPolicy{Inherit: protocol.InheritAll, IgnoreDefaultExcludes: true, Exclude: []string{}, Set: map[string]string{}, IncludeOnly: []string{}}
	has := map[string]bool{}
	for _, entry := range kept {
		has[entry] = true
	}
	for _, entry := range environ {
		if name, _, _ := strings.Cut(entry, "="); !has[entry] && name != "" {
			p.Exclude = append(p.Exclude, name)
		}
	}
	for _, entry := range kept {
		name, value, _ := strings.Cut(entry, "=")
		same := func(other string) bool { return strings.EqualFold(name, other) }
		if slices.ContainsFunc(p.Exclude, same) && !procs.Denied(name) {
			p.Set[name] = value
		}
	}
	return p
}

// EnvPolicyThere returns the policy about variables for another agent. The command gets the core variables of
// that agent, and those that a flag or a profile keeps.
func (f *Flags) EnvPolicyThere() *protocol.EnvPolicy {
	p := &protocol.EnvPolicy{Inherit: protocol.InheritCore, Exclude: []string{}, Set: map[string]string{}, IncludeOnly: []string{}}
	keep := slices.Clone(f.KeepEnv)
	for _, p := range f.profiles {
		keep = append(keep, p.Env...)
	}
	if len(keep) > 0 {
		p.Inherit, p.IgnoreDefaultExcludes = protocol.InheritAll, true
		p.IncludeOnly = append(keep, coreNames...)
	}
	return p
}
