package sandbox

import (
	"path"
	"slices"
	"sort"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// Draft has the rules of an unfinished policy, by path. Add adds rules. Package
// resolve, which finds out more than a profile says, also removes and replaces
// rules in the map itself.
type Draft map[string]Rule

// Add adds a rule. Two rules for one path become one: denied beats writable,
// writable beats protected, protected beats readable. The access while the path
// is missing is chosen separately: denied wins, else the greater one. The rule is
// replaceable if both are.
func (d Draft) Add(r Rule) {
	old, ok := d[r.Path]
	if !ok {
		d[r.Path] = r
		return
	}
	missing, temporary, replaceable := stronger(old.whenMissing(), r.whenMissing()), old.Temporary && r.Temporary, old.Replaceable && r.Replaceable
	if r.rank() > old.rank() {
		old = r
	}
	old.Temporary, old.Replaceable = temporary, replaceable
	old.SkipMissing, old.Otherwise = false, Hidden
	if missing != old.Access {
		old.SkipMissing, old.Otherwise = true, missing
	}
	d[r.Path] = old
}

// whenMissing returns the access that the rule gives while its path does not
// exist.
func (r Rule) whenMissing() Access {
	if r.SkipMissing {
		return r.Otherwise
	}
	return r.Access
}

// rank orders the rules for one path: Add keeps the one of the highest rank.
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

// stronger returns the access that wins for one path (sandbox.md 5).
func stronger(a, b Access) Access {
	if a == Denied || b == Denied {
		return Denied
	}
	return max(a, b)
}

// Access returns the access of the rule whose path is the longest prefix of name,
// Hidden if there is none.
func (d Draft) Access(name string) Access { return d.Rule(name).Access }

// Rule returns the rule whose path is the longest prefix of name, the zero value
// if there is none.
func (d Draft) Rule(name string) Rule {
	for {
		if r, ok := d[name]; ok || name == "/" {
			return r
		}
		name = pathname.Parent(name)
	}
}

// fullWrite reports whether everything can be written and no rule narrows that.
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

// protect adds rules for the protected names of every writable root. An entry may
// open a protected name itself, such as /repo/.git: that root gets no rules,
// because it is a repository and not a workspace.
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

// readPseudo lowers all rules as [Rule.ReadPseudo] does.
func (d Draft) readPseudo() {
	for name, r := range d {
		d[name] = r.ReadPseudo()
	}
}

// ReadPseudo returns the rule, lowered to Read if its path is in /proc or /sys:
// no policy lets anything be written there (sandbox.md 13, 14.3).
func (r Rule) ReadPseudo() Rule {
	if pathname.Within(r.Path, "/proc") || pathname.Within(r.Path, "/sys") {
		r.Access, r.Otherwise = min(r.Access, Read), min(r.Otherwise, Read)
	}
	return r
}

// IsProtected reports whether the last name of the path is a protected name and
// its directory a writable root.
func (d Draft) IsProtected(name string) bool {
	return slices.Contains(protectedNames, path.Base(name)) && d[pathname.Parent(name)].Access == Write
}

// SetRules gives p, which must already have its globs, the rules of the draft,
// and sets FullRead; it also changes the draft. It leaves out rules of a
// minimal view for paths that are readable anyway, because inside a writable
// directory such a rule would remove the right to write. It denies the paths in
// private where they could be read, and drops the rules at and below them.
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
