package policy

import (
	"slices"
	"strings"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// places are the wire's words for places.
var places = map[sandbox.Place]string{
	sandbox.PlaceRoot: "root", sandbox.PlaceMinimal: "minimal", sandbox.PlaceProjectRoots: "project_roots",
	sandbox.PlaceTmpDir: "tmpdir", sandbox.PlaceSlashTmp: "slash_tmp",
}

// accesses are the wire's words for accesses.
var accesses = map[sandbox.Access]string{sandbox.Denied: "deny", sandbox.Read: "read", sandbox.Write: "write"}

// Wire returns the plan as the sandbox of a request.
func (p *Plan) Wire() *protocol.Sandbox {
	rules := &protocol.FileSystemRules{Type: protocol.FileSystemRestricted}
	for _, e := range p.Profile.Entries {
		entry := protocol.SandboxEntry{Access: accesses[e.Access]}
		switch e.Place {
		case sandbox.PlacePath:
			entry.Path = protocol.SandboxPath{Type: "path", Path: new(protocol.NewPathURI(e.Path))}
		case sandbox.PlaceGlob:
			entry.Path = protocol.SandboxPath{Type: "glob_pattern", Pattern: &e.Path}
		default:
			entry.Path = protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: places[e.Place]}}
		}
		if e.SkipMissing {
			entry.MissingPathBehavior = new("skip")
		}
		rules.Entries = append(rules.Entries, entry)
	}
	asked := &protocol.Sandbox{
		Permissions:         protocol.Permissions{Type: protocol.PermissionsManaged, FileSystem: rules, Network: protocol.NetworkRestricted},
		Cwd:                 new(protocol.NewPathURI(p.Profile.Cwd)),
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}
	for _, root := range p.Profile.WorkspaceRoots {
		asked.WorkspaceRoots = append(asked.WorkspaceRoots, protocol.NewPathURI(root))
	}
	if p.Profile.Network == sandbox.NetworkEnabled {
		asked.Permissions.Network = protocol.NetworkEnabled
	}
	return asked
}

// coreNames are the variables that every agent passes on, and TERM.
var coreNames = []string{"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER", "TERM"}

// EnvPolicy returns the policy about variables for an agent in this process, which has environ, less those
// that Environ has not kept. The names of a policy are compared in any letter case. So a variable that is
// kept is set again if another one of its name is not.
func (f *Flags) EnvPolicy(environ, kept []string) *protocol.EnvPolicy {
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

// EnvPolicyThere returns the policy about the variables of another agent: the core variables, and those that a
// flag or a profile keeps.
func (f *Flags) EnvPolicyThere() *protocol.EnvPolicy {
	p := &protocol.EnvPolicy{Inherit: protocol.InheritCore, Exclude: []string{}, Set: map[string]string{}, IncludeOnly: []string{}}
	keep := slices.Clone(f.KeepEnv)
	for _, profile := range f.profiles {
		keep = append(keep, profile.Env...)
	}
	if len(keep) > 0 {
		p.Inherit, p.IgnoreDefaultExcludes = protocol.InheritAll, true
		p.IncludeOnly = append(keep, coreNames...)
	}
	return p
}
