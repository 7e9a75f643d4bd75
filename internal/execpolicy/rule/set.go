package rule

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// A Set has rules in their order, and the definitions that belong to them. The zero Set is empty
// and ready. Any number of goroutines may ask a Set that nobody changes.
type Set struct {
	rules    []*Rule
	byName   map[string][]*Rule // by the first word of the pattern
	caseless map[string][]*Rule // those of them for which case does not matter, by that word folded

	hosts       map[string][]string // the paths at which a program may be, by its name
	hostsFolded map[string][]string // names in hosts, by the name folded

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

// Len is the number of rules.
func (s *Set) Len() int { return len(s.rules) }

// DefineHost says at which paths a program may be, for rules that name it, and forgets what was
// said about it earlier. Without a path, rules with the name match no path at all.
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

// Append adds all of other, as if it had been written behind s.
func (s *Set) Append(other *Set) {
	s.Add(other.rules...)
	for name, paths := range other.hosts {
		s.DefineHost(name, paths)
	}
	s.networks = append(s.networks, other.networks...)
}

// Hosts returns a Set with the definitions of programs of s, and with nothing else.
func (s *Set) Hosts() *Set {
	hosts := &Set{}
	for name, paths := range s.hosts {
		hosts.DefineHost(name, paths)
	}
	return hosts
}

// ShareHosts makes the definitions of programs of other those of s, which must not get more.
func (s *Set) ShareHosts(other *Set) { s.hosts, s.hostsFolded = other.hosts, other.hostsFolded }

// Match returns the rules that match a command as it is spelled, in their order. If the first word
// of a rule differs in case, the rule comes behind the others.
func (s *Set) Match(argv []string) []Match {
	if len(argv) == 0 {
		return nil
	}
	c := &command{argv: argv}
	return s.named(c, argv[0], "", nil)
}

// MatchProgram is Match, and for a program given by its path it also looks at the rules that name
// the program: if no rule matches the path, those match that have its last name, unless a
// definition says that this program is elsewhere. absolute makes a path absolute without looking at
// any file.
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

// Restrictive returns the rules that prompt or forbid, and that name the program at this absolute
// path. A definition that says that the program is elsewhere does not matter: whoever forbids git
// means every git.
func (s *Set) Restrictive(argv []string, program string) []Match {
	return s.nameOf(argv, program, func(r *Rule) bool { return r.Decision != Allow })
}

// Restricts reports whether some rule that prompts or forbids is about the program with this name.
func (s *Set) Restricts(name string) bool {
	strict := func(r *Rule) bool { return r.Decision != Allow }
	return slices.ContainsFunc(s.byName[name], strict) || len(s.caseless) > 0 && slices.ContainsFunc(s.caseless[fold(name)], strict)
}

// nameOf returns the rules that match a command in which the last name of program is the first
// word.
func (s *Set) nameOf(argv []string, program string, want func(*Rule) bool) []Match {
	name := path.Base(program)
	if name == "/" || len(argv) == 0 {
		return nil
	}
	if len(s.byName[name]) == 0 && (len(s.caseless) == 0 || len(s.caseless[fold(name)]) == 0) {
		return nil // nearly always
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

// isAt reports whether a rule that names a program may match the program at this path.
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

// Absolute makes a path absolute by its text alone: ~/ stands for home, and a relative path is
// below dir. It returns "" where that leads to no program's path.
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

// LongestPattern is the number of words of the longest pattern: of a command no more is compared.
func (s *Set) LongestPattern() (n int) {
	for _, r := range s.rules {
		n = max(n, len(r.Pattern))
	}
	return n
}

// Rules returns the rules in their order.
func (s *Set) Rules() []*Rule { return slices.Clone(s.rules) }

// Programs returns where programs may be, by their names.
func (s *Set) Programs() map[string][]string { return maps.Clone(s.hosts) }
