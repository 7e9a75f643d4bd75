package sandbox

import (
	"path"
	"slices"
	"sort"

	"github.com/execagent/execagent/sandbox/internal/pathname"
)

// Draft has the rules of a policy that is being made, by path. A package that
// finds more rules out than a profile says, as resolve does, changes the map
// itself where a rule has to go or become another one.
type Draft map[string]Rule

// Add adds a rule. Two rules for one path become one: denied beats writable,
// writable beats protected, protected beats readable. What holds while the path is
// missing is decided apart, by the access alone.
func (d Draft) Add(r Rule) {
	old, ok := d[r.Path]
	if !ok {
		d[r.Path] = r
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
	d[r.Path] = old
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

// Access is that of the rule with the longest prefix of name.
func (d Draft) Access(name string) Access { return d.Rule(name).Access }

// Rule is the one with the longest prefix of name; the zero value if there is none.
func (d Draft) Rule(name string) Rule {
	for {
		if r, ok := d[name]; ok || name == "/" {
			return r
		}
		name = pathname.Parent(name)
	}
}

// fullWrite tells whether everything can be written and nothing narrows that.
func (d Draft) fullWrite() bool {
	if d["/"].Access != Write {
		return false
	}
	for _, r := range d {
		if r.Access != Write || r.whenMissing() != Write && r.whenMissing() != Hidden {
			return false
		}
	}
	return true
}

// protect adds the protected names of every writable root. A root that is such a
// name itself, opened by an entry, gets none: it is a repository, not a workspace.
func (d Draft) protect() {
	var roots []string
	for _, r := range d {
		if r.Access == Write && !d.IsProtected(r.Path) && !pathname.IsPseudo(r.Path) {
			roots = append(roots, r.Path)
		}
	}
	for _, root := range roots {
		for _, name := range protectedNames {
			d.Add(Rule{Path: path.Join(root, name), Access: Read, Origin: Protected})
		}
	}
}

// readPseudo makes what is granted of the kernel's file systems read-only,
// which is all that they are under any policy (sandbox.md 13, 14.3).
func (d Draft) readPseudo() {
	for name, r := range d {
		d[name] = r.ReadPseudo()
	}
}

// ReadPseudo is the rule as any policy can have it: in the kernel's file systems
// it lets read at most.
func (r Rule) ReadPseudo() Rule {
	if pathname.Within(r.Path, "/proc") || pathname.Within(r.Path, "/sys") {
		r.Access, r.Otherwise = min(r.Access, Read), min(r.Otherwise, Read)
	}
	return r
}

// IsProtected tells whether name is a protected one at the top of a writable root.
func (d Draft) IsProtected(name string) bool {
	return slices.Contains(protectedNames, path.Base(name)) && d[pathname.Parent(name)].Access == Write
}

// SetRules gives a policy that is being made its rules, when its globs are known
// already, and changes the draft on the way. Rules of a minimal view that show
// nothing more are left out: they would narrow what can be written. The paths in
// private are denied where they, or something below them, could be seen.
func (p *Policy) SetRules(rules Draft, private []string) {
	for name, r := range rules {
		if r.Origin != Minimal || name == "/" {
			continue
		}
		if rules.Access(pathname.Parent(name)) >= Read {
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
		if rules.Access(own) >= Read {
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
