package rule

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// A Set has rules in their order, and the definitions of host_executable. The zero Set is empty and
// ready to use. Any number of goroutines may read a Set that nobody changes.
type Set struct {
	rules    []*Rule
	byName   map[string][]*Rule // by the first word of the pattern
	caseless map[string][]*Rule // the rules of byName that ignore case, by the folded first word

	hosts       map[string][]string // by name: the paths at which a program may be
	hostsFolded map[string][]string // names in hosts, by folded name

	networks []Network
}

// Add appends rules.
func (s *Set) Add(rules ...*Rule) {
	if s.byName == nil {
		s.byName, s.caseless = map[string][]*Rule{}, map[string][]*Rule{}
	}
	for _, r := range rules {
		s.rules = append(s.rules, r)
		name := r.Pattern[0][0]
		s.byName[name] = append(s.byName[name], r)
		if r.folded != nil {
			s.caseless[r.folded[0][0]] = append(s.caseless[r.folded[0][0]], r)
		}
	}
}

// Len returns the number of rules.
func (s *Set) Len() int { return len(s.rules) }

// DefineHost defines the paths at which a program may be, for rules that name the program. It
// replaces an earlier definition. If paths is empty, rules with the name match no path at all.
func (s *Set) DefineHost(name string, paths []string) {
	if s.hosts == nil {
		s.hosts, s.hostsFolded = map[string][]string{}, map[string][]string{}
	}
	if _, ok := s.hosts[name]; !ok {
		s.hostsFolded[fold(name)] = append(s.hostsFolded[fold(name)], name)
	}
	s.hosts[name] = paths
}

// AddNetwork appends a rule about a host.
func (s *Set) AddNetwork(n Network) { s.networks = append(s.networks, n) }

// Networks returns the rules about hosts, in their order. They say nothing about commands.
func (s *Set) Networks() []Network { return slices.Clone(s.networks) }

// Append adds all of other, as if it had been written after s.
func (s *Set) Append(other *Set) {
	s.Add(other.rules...)
	for name, paths := range other.hosts {
		s.DefineHost(name, paths)
	}
	s.networks = append(s.networks, other.networks...)
}

// Hosts returns a Set that has only the definitions of programs of s.
func (s *Set) Hosts() *Set {
	hosts := &Set{}
	for name, paths := range s.hosts {
		hosts.DefineHost(name, paths)
	}
	return hosts
}

// ShareHosts makes s use the definitions of programs of other. After the call, s must not define
// more.
func (s *Set) ShareHosts(other *Set) { s.hosts, s.hostsFolded = other.hosts, other.hostsFolded }

// Match returns the rules that match a command as it is spelled, in their order. Rules whose first
// word differs in case come after the others.
func (s *Set) Match(argv []string) []Match {
	if len(argv) == 0 {
		return nil
	}
	c := &command{argv: argv}
	return s.named(c, argv[0], "", nil)
}

// MatchProgram is like Match, but for a program given by its path it also uses the rules that name
// the program. If no rule matches the path, the rules match that have the last element of the path
// as the name. A definition that gives other paths for the name prevents this match. absolute makes
// a path absolute without looking at any file.
func (s *Set) MatchProgram(argv []string, absolute func(string) string) []Match {
	matches := s.Match(argv)
	if len(matches) > 0 || len(argv) == 0 {
		return matches
	}
	program := absolute(argv[0])
	if program == "" {
		return nil
	}
	return s.nameOf(argv, program, func(r *Rule) bool { return s.isAt(r, program) })
}

// Restrictive returns the rules that prompt or forbid and that name the program at this absolute
// path. Definitions of other paths do not matter: a rule that forbids git means every git.
func (s *Set) Restrictive(argv []string, program string) []Match {
	return s.nameOf(argv, program, func(r *Rule) bool { return r.Decision != Allow })
}

// Restricts reports whether a rule that prompts or forbids names the program.
func (s *Set) Restricts(name string) bool {
	strict := func(r *Rule) bool { return r.Decision != Allow }
	return slices.ContainsFunc(s.byName[name], strict) || len(s.caseless) > 0 && slices.ContainsFunc(s.caseless[fold(name)], strict)
}

// nameOf returns the rules that match a command whose first word is replaced by the last element of
// program.
func (s *Set) nameOf(argv []string, program string, want func(*Rule) bool) []Match {
	name := path.Base(program)
	if name == "/" || len(argv) == 0 {
		return nil
	}
	if len(s.byName[name]) == 0 && (len(s.caseless) == 0 || len(s.caseless[fold(name)]) == 0) {
		return nil // the usual case
	}
	c := &command{argv: slices.Concat([]string{name}, argv[1:])}
	return s.named(c, name, program, want)
}

// named returns the rules that match a command with this first word.
func (s *Set) named(c *command, name, program string, want func(*Rule) bool) (matches []Match) {
	add := func(r *Rule) {
		if (want == nil || want(r)) && r.matches(c) {
			matches = append(matches, Match{Rule: r, Prefix: c.argv[:len(r.Pattern)], Program: program})
		}
	}
	for _, r := range s.byName[name] {
		add(r)
	}
	if len(s.caseless) > 0 {
		for _, r := range s.caseless[c.fold(0)] {
			if r.Pattern[0][0] != name {
				add(r)
			}
		}
	}
	return matches
}

// isAt reports whether the definitions let a rule that names a program match the program at this
// path.
func (s *Set) isAt(r *Rule, program string) bool {
	names := []string{path.Base(program)}
	if r.folded != nil {
		names = s.hostsFolded[fold(names[0])]
	}
	defined := false
	for _, name := range names {
		paths, ok := s.hosts[name]
		if slices.Contains(paths, program) {
			return true
		}
		defined = defined || ok
	}
	return !defined
}

// Named reports whether a rule that names a program may match the program at this path.
func (s *Set) Named(program string) bool { return s.isAt(&Rule{}, program) }

// Strictest returns the strictest decision of any rule. It may be called on nil.
func (s *Set) Strictest() (d Decision) {
	if s == nil {
		return Allow
	}
	for _, r := range s.rules {
		d = max(d, r.Decision)
	}
	return d
}

// Absolute makes a path absolute by its text alone: ~/ means home, and a relative path is below
// dir. It returns "" if the result is not an absolute path.
func Absolute(program, dir, home string) string {
	if rest, ok := strings.CutPrefix(program, "~/"); ok && home != "" {
		program = home + "/" + rest
	}
	if program == "" {
		return ""
	}
	if !path.IsAbs(program) {
		program = dir + "/" + program
	}
	if program = path.Clean(program); !path.IsAbs(program) {
		return ""
	}
	return program
}

// Certain reports whether Absolute returns the path that the kernel would find: no .. follows a name.
// Where the name is that of a link, .. is the folder above what it leads to.
func Certain(program, dir string) bool {
	if !path.IsAbs(program) {
		program = dir + "/" + program
	}
	named := false
	for name := range strings.SplitSeq(program, "/") {
		switch name {
		case "", ".":
		case "..":
			if named {
				return false
			}
		default:
			named = true
		}
	}
	return path.IsAbs(program)
}

// LongestPattern returns the number of words of the longest pattern. No more words of a command are
// compared.
func (s *Set) LongestPattern() (n int) {
	for _, r := range s.rules {
		n = max(n, len(r.Pattern))
	}
	return n
}

// Rules returns the rules in their order.
func (s *Set) Rules() []*Rule { return slices.Clone(s.rules) }

// Programs returns the paths at which programs may be, by name.
func (s *Set) Programs() map[string][]string { return maps.Clone(s.hosts) }
