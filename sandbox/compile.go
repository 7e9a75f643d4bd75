package sandbox

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/execagent/execagent/sandbox/internal/pathname"
)

// minimalPaths are what a minimal view shows, where they exist (sandbox.md
// 6.1).
var minimalPaths = []string{
	"/bin", "/etc", "/lib", "/lib64", "/nix/store", "/run/current-system/sw", "/sbin", "/usr",
}

// protectedNames are kept read-only at the top of every writable root
// (sandbox.md 6.3).
var protectedNames = []string{".agents", ".aws", ".codex", ".git"}

// ProtectedNames are the names that are kept read-only at the top of every
// writable root, in a slice of the caller's.
func ProtectedNames() []string { return slices.Clone(protectedNames) }

// Compile gives the policy of the profile (sandbox.md 3 to 6), without a look
// at the file system. The error is ErrNeedsCwd, or names what cannot be
// enforced or is out of bounds.
func (p Profile) Compile() (*Policy, error) {
	if p.Network > NetworkEnabled {
		return nil, fmt.Errorf("sandbox network %d is not known", p.Network)
	}
	switch {
	case p.Kind == Disabled:
		return &Policy{Network: NetworkEnabled}, nil
	case p.Kind == External, p.Kind == Managed && p.Unrestricted:
		return &Policy{Network: p.Network}, nil
	case p.Kind != Managed:
		return nil, fmt.Errorf("sandbox kind %d is not known", p.Kind)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	policy := &Policy{Confined: true, Network: p.Network}
	rules := ruleSet{}
	minimal := false
	globBytes, ruleBytes := 0, 0
	for i, e := range p.Entries {
		switch {
		case e.Place == PlaceMinimal:
			minimal = minimal || e.Access == Read
		case e.Place == PlaceGlob && e.Access != Denied:
			// Only denying means anything (sandbox.md 5).
		case e.Place == PlaceGlob:
			globs, err := newGlobs(e.Path, p.Cwd, p.GlobDepth)
			if err != nil {
				return nil, fmt.Errorf("sandbox entry %d: %w", i, err)
			}
			for _, g := range globs {
				globBytes += g.size()
			}
			if globBytes > MaxGlobs {
				return nil, fmt.Errorf("sandbox entry %d: with the glob %q there is more to match than %d bytes", i, e.Path, MaxGlobs)
			}
			policy.Globs = append(policy.Globs, globs...)
		default:
			paths, err := p.paths(e)
			if err != nil {
				return nil, fmt.Errorf("sandbox entry %d: %w", i, err)
			}
			for _, name := range paths {
				ruleBytes += len(name)
				temporary := e.Place == PlaceTmpDir || e.Place == PlaceSlashTmp
				rules.add(Rule{Path: name, Access: e.Access, SkipMissing: e.SkipMissing, Temporary: temporary})
			}
		}
		if len(rules) > MaxRules {
			return nil, fmt.Errorf("sandbox entry %d: there are more than %d paths", i, MaxRules)
		}
		if ruleBytes > MaxRuleBytes {
			return nil, fmt.Errorf("sandbox entry %d: there are more than %d bytes of paths", i, MaxRuleBytes)
		}
	}
	if rules.fullWrite() && len(policy.Globs) == 0 {
		return &Policy{Network: p.Network}, nil
	}
	rules.readPseudo()
	rules.protect()
	if minimal {
		for _, name := range minimalPaths {
			rules.add(Rule{Path: name, Access: Read, Origin: Minimal, SkipMissing: true})
		}
	}
	for _, name := range p.Private {
		policy.Private = append(policy.Private, path.Clean(name))
	}
	slices.Sort(policy.Private)
	policy.Private = slices.Compact(policy.Private)
	policy.Globs = compactGlobs(policy.Globs)
	policy.set(rules, policy.Private)
	return policy, nil
}

// check looks at what is the same for all entries.
func (p Profile) check() error {
	if len(p.Entries) > MaxEntries || len(p.WorkspaceRoots) > MaxEntries || len(p.Private) > MaxEntries {
		return fmt.Errorf("the sandbox has more than %d entries or workspace roots", MaxEntries)
	}
	if p.GlobDepth < 0 {
		return fmt.Errorf("sandbox glob depth %d is negative", p.GlobDepth)
	}
	for i, name := range p.WorkspaceRoots {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("sandbox workspace root %d: %w", i, err)
		}
	}
	for _, name := range p.Private {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("private path: %w", err)
		}
	}
	if p.Cwd != "" {
		if err := checkPath(p.Cwd); err != nil {
			return fmt.Errorf("sandbox cwd: %w", err)
		}
	}
	for i, e := range p.Entries {
		if e.Access < Denied || e.Access > Write {
			return fmt.Errorf("sandbox entry %d: access %d is not known", i, e.Access)
		}
		if e.Place > PlaceUnknown {
			return fmt.Errorf("sandbox entry %d: place %d is not known", i, e.Place)
		}
		// Whatever they grant, and that is nothing for some.
		relative := e.Place == PlaceGlob && !path.IsAbs(e.Path)
		if p.Cwd == "" && (relative || e.Place == PlaceProjectRoots || e.Place == PlaceCwd) {
			return ErrNeedsCwd
		}
	}
	return nil
}

// paths are what the entry names.
func (p Profile) paths(e Entry) ([]string, error) {
	switch e.Place {
	case PlacePath:
		if err := checkPath(e.Path); err != nil {
			return nil, err
		}
		return []string{path.Clean(e.Path)}, nil
	case PlaceRoot:
		return []string{"/"}, nil
	case PlaceSlashTmp:
		return []string{"/tmp"}, nil
	case PlaceTmpDir:
		if !path.IsAbs(p.TmpDir) {
			return nil, nil
		}
		if err := checkPath(p.TmpDir); err != nil {
			return nil, fmt.Errorf("temporary directory: %w", err)
		}
		return []string{path.Clean(p.TmpDir)}, nil
	case PlaceProjectRoots:
		if path.IsAbs(e.Path) || hasDotDot(e.Path) {
			return nil, nil
		}
		var paths []string
		for _, root := range p.WorkspaceRoots {
			name := path.Join(root, e.Path)
			if err := checkPath(name); err != nil {
				return nil, err
			}
			paths = append(paths, name)
		}
		return paths, nil
	}
	return nil, nil
}

// checkPath refuses what is no absolute path, or one that the kernel and we
// could read differently: "a/.." is not where it was if a is a symlink.
func checkPath(name string) error {
	switch {
	case len(name) > MaxPath:
		return fmt.Errorf("path %q... is longer than %d bytes", name[:64], MaxPath)
	case !path.IsAbs(name):
		return fmt.Errorf("path %q is not absolute", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("path %q has a NUL", name)
	case hasDotDot(name):
		return fmt.Errorf("path %q has a %q", name, "..")
	}
	return nil
}

func hasDotDot(name string) bool {
	return slices.Contains(strings.Split(name, "/"), "..")
}

// ruleSet has the rules by path.
type ruleSet map[string]Rule

// add adds a rule. Two for a path become one: what is denied beats what can be
// written, that what is protected, that what can be read.
func (s ruleSet) add(r Rule) {
	old, ok := s[r.Path]
	if !ok {
		s[r.Path] = r
		return
	}
	missing, temporary := stronger(old.whenMissing(), r.whenMissing()), old.Temporary && r.Temporary
	if r.rank() > old.rank() {
		old = r
	}
	old.Temporary = temporary
	old.SkipMissing, old.Otherwise = false, Hidden
	if missing != old.Access {
		old.SkipMissing, old.Otherwise = true, missing
	}
	s[r.Path] = old
}

// whenMissing is what the rule says while its path does not exist.
func (r Rule) whenMissing() Access {
	if r.SkipMissing {
		return r.Otherwise
	}
	return r.Access
}

// rank orders the rules for one path.
func (r Rule) rank() int {
	switch {
	case r.Access == Denied && r.Origin == Private:
		return 6
	case r.Access == Denied:
		return 5
	case r.Access == Write:
		return 4
	case r.Origin == Protected || r.Origin == GitDir:
		return 3
	case r.Origin == Asked:
		return 2
	}
	return 1
}

// stronger is the access that wins for one path (sandbox.md 5).
func stronger(a, b Access) Access {
	if a == Denied || b == Denied {
		return Denied
	}
	return max(a, b)
}

// access is that of the rule with the longest prefix of name.
func (s ruleSet) access(name string) Access { return s.rule(name).Access }

// rule is the one with the longest prefix of name; the zero value if there is none.
func (s ruleSet) rule(name string) Rule {
	for {
		if r, ok := s[name]; ok || name == "/" {
			return r
		}
		name = pathname.Parent(name)
	}
}

// fullWrite tells whether everything can be written and nothing narrows that.
func (s ruleSet) fullWrite() bool {
	if s["/"].Access != Write {
		return false
	}
	for _, r := range s {
		if r.Access != Write || r.whenMissing() != Write && r.whenMissing() != Hidden {
			return false
		}
	}
	return true
}

// protect adds the protected names of every writable root. One that was itself
// opened explicitly has none: it is a repository, not a workspace.
func (s ruleSet) protect() {
	var roots []string
	for _, r := range s {
		if r.Access == Write && !s.isProtectedName(r.Path) && !pathname.IsPseudo(r.Path) {
			roots = append(roots, r.Path)
		}
	}
	for _, root := range roots {
		for _, name := range protectedNames {
			s.add(Rule{Path: path.Join(root, name), Access: Read, Origin: Protected})
		}
	}
}

// readPseudo makes what is granted of the kernel's file systems read-only,
// which is all that they are under any policy (sandbox.md 13, 14.3).
func (s ruleSet) readPseudo() {
	for name, r := range s {
		s[name] = r.readPseudo()
	}
}

func (r Rule) readPseudo() Rule {
	if pathname.Within(r.Path, "/proc") || pathname.Within(r.Path, "/sys") {
		r.Access, r.Otherwise = min(r.Access, Read), min(r.Otherwise, Read)
	}
	return r
}

// isProtectedName tells whether name is one at the top of a writable root.
func (s ruleSet) isProtectedName(name string) bool {
	return slices.Contains(protectedNames, path.Base(name)) && s[pathname.Parent(name)].Access == Write
}

// set gives the policy its rules. Those of a minimal view that show nothing
// more are left out: they would narrow what can be written. The paths in
// private are denied where they, or something below them, could be seen.
func (p *Policy) set(rules ruleSet, private []string) {
	for name, r := range rules {
		if r.Origin != Minimal || name == "/" {
			continue
		}
		if rules.access(pathname.Parent(name)) >= Read {
			delete(rules, name)
		}
	}
	for _, own := range private {
		for name, r := range rules {
			if r.Origin != Private && (name == own || pathname.Below(name, own)) {
				delete(rules, name)
			}
		}
	}
	for _, own := range private {
		if rules.access(own) >= Read {
			rules[own] = Rule{Path: own, Access: Denied, Origin: Private, SkipMissing: true}
		}
	}
	p.Rules = make([]Rule, 0, len(rules))
	p.FullRead = rules["/"].Access >= Read && len(p.Globs) == 0
	for _, r := range rules {
		p.Rules = append(p.Rules, r)
		if r.Origin != Private && (r.Access == Denied || r.Otherwise == Denied) {
			p.FullRead = false
		}
	}
	sort.Slice(p.Rules, func(i, j int) bool { return p.Rules[i].Path < p.Rules[j].Path })
}
