package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"sync"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/internal/openat"
	"github.com/execagent/execagent/sandbox/internal/pathname"
	"golang.org/x/sys/unix"
)

// Resolved is a policy of canonical paths, and what has to stay as it is for
// it to hold. Its methods may run at once.
type Resolved struct {
	// Policy has only canonical paths: symlinks are followed, the rules of .git
	// pointer files added, entries that skip missing paths decided. None of its
	// rules skips. A rule whose path does not exist stays.
	Policy *sandbox.Policy
	// Missing is what needs a placeholder while a process runs, sorted. It has
	// the names of other processes' placeholders too. A protected name in a
	// writable root that is itself missing is not there: for a process there is
	// no such root (sandbox.md 6.2).
	Missing []hold.Missing

	watches  []watch    // these three are constant
	writable []objectID // what may be written
	through  []crossed  // by which symlinks something is granted

	mu     sync.RWMutex // held while pins are used
	pins   []int        // O_PATH, so that inode numbers of roots are not reused
	closed bool
}

// maxPins bounds the descriptors of a Resolved.
const maxPins = 1024

// Policy looks the paths of the policy up in the file system as this process
// sees it, name by name on descriptors. The error names the path that could
// not be resolved, or the symlink that leads there and could be changed under
// the policy: what it leads to now is not what it would lead to later
// (sandbox.md 6.3, 12). It looks at not more than 262144 names, and holds not
// more than 1024 descriptors. What it cannot bound is how long a file system
// takes to answer. The caller has to Close the result.
func Policy(p *sandbox.Policy) (*Resolved, error) { return Within(p, maxPins) }

// Within is Policy that holds not more than so many descriptors.
func Within(p *sandbox.Policy, descriptors int) (*Resolved, error) {
	r := &Resolved{Policy: p}
	if !p.Confined {
		return r, nil
	}
	s := resolution{
		rules: sandbox.Draft{}, pointers: map[string]string{}, pins: map[string]int{},
		maxPins: min(descriptors, maxPins), left: maxSteps,
	}
	defer s.closePins()
	policy, err := s.resolve(p)
	if err != nil {
		return nil, err
	}
	missing, err := s.missing(policy)
	if err != nil {
		return nil, err
	}
	r.Policy, r.Missing, r.watches = policy, missing, s.watches()
	s.grants(r)
	for _, fd := range s.pins {
		r.pins = append(r.pins, fd)
	}
	s.pins = nil
	return r, nil
}

// Granted are the canonical paths that the entries of the profile grant, sorted:
// what has to be the same when the policy is resolved again.
func (r *Resolved) Granted() []string {
	var paths []string
	for _, rule := range r.Policy.Rules {
		if rule.Origin == sandbox.Asked && rule.Access >= sandbox.Read {
			paths = append(paths, rule.Path)
		}
	}
	return paths
}

// Close lets go of what is held open. The policy stays valid.
func (r *Resolved) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fd := range r.pins {
		_ = unix.Close(fd)
	}
	r.pins, r.closed = nil, true
}

// resolution is what becomes of the paths of a policy.
type resolution struct {
	rules sandbox.Draft // by canonical path
	seen  []sighting
	// pointers has the text of .git pointer files by canonical path.
	pointers map[string]string
	pins     map[string]int // descriptors of what is granted, by canonical path
	looked   []watch        // what decided beside the paths that were looked up
	maxPins  int
	left     budget
}

// sighting is a path of the policy and what it leads to.
type sighting struct {
	*object
	asked  string         // the path that was looked up
	what   string         // for errors
	origin sandbox.Origin // of a rule
	// rule: path has a rule. Others are the bases of globs, what is private
	// and what an entry skips.
	rule    bool
	skipped bool
	pointer bool
	// sealed: nothing can be made where the path would have to be.
	sealed bool
}

// see looks a path up and remembers what was seen; the descriptor is only valid
// until use returns.
func (s *resolution) see(what, name string, use func(*sighting) error) error {
	o, err := lookup(name, &s.left)
	if err != nil {
		return fmt.Errorf("resolving the sandbox path %s: %w", name, err)
	}
	seen := sighting{object: o, asked: name, what: what}
	err = use(&seen)
	if fd, ok := s.pins[o.path]; !ok || fd != o.fd {
		o.close()
	}
	s.seen = append(s.seen, seen)
	return err
}

// resolve gives the policy of canonical paths.
func (s *resolution) resolve(p *sandbox.Policy) (*sandbox.Policy, error) {
	policy := &sandbox.Policy{Confined: true, Network: p.Network}
	for _, rule := range p.Rules {
		if rule.Origin == sandbox.Private {
			continue // SetRules makes it of the list
		}
		if err := s.see(rule.Access.String(), rule.Path, func(o *sighting) error { return s.rule(rule, o) }); err != nil {
			return nil, err
		}
	}
	s.judgeProtected()
	if err := s.gitDirs(); err != nil {
		return nil, err
	}
	if err := s.bareRepositories(); err != nil {
		return nil, err
	}
	for _, glob := range p.Globs {
		if err := s.see("glob", glob.Base, func(o *sighting) error {
			if glob.Base = o.path; glob.Base == "/" {
				return fmt.Errorf("the glob %s has no fixed prefix but a symlink to the root", glob.Pattern)
			}
			policy.Globs = append(policy.Globs, glob)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	policy.Globs = sandbox.CompactGlobs(policy.Globs)
	var private []string
	for _, name := range p.Private {
		if err := s.see("private", name, func(o *sighting) error {
			policy.Private = append(policy.Private, o.path)
			if o.exists() || o.barred {
				private = append(private, o.path)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	slices.Sort(policy.Private)
	policy.Private = slices.Compact(policy.Private)
	others, err := aliasesHere(private)
	if err != nil {
		return nil, err
	}
	s.judgeTemporary()
	policy.SetRules(s.rules, append(private, others...))
	for i := range policy.Rules {
		policy.Rules[i].SkipMissing = false
	}
	if err := s.checkLinks(policy); err != nil {
		return nil, err
	}
	policy.Links = s.links(policy, p.Links)
	return policy, nil
}

// judgeProtected looks again at what is protected, now that it is known what
// paths lead to. A root that turned out to be denied or only readable has
// nothing to protect, and must not get something to see.
func (s *resolution) judgeProtected() {
	for name, r := range s.rules {
		switch {
		case r.Origin == sandbox.Protected && (s.rules.Access(pathname.Parent(name)) != sandbox.Write || pathname.IsPseudo(name)):
			delete(s.rules, name)
		case r.Origin == sandbox.Asked && r.Access == sandbox.Read && s.rules.IsProtected(name):
			r.Origin = sandbox.Protected
			s.rules[name] = r
		}
	}
}

// judgeTemporary looks again at what can be written inside temporary directories.
// A name there at which there is no directory is as temporary as they are: a
// command could put into its place what lies beside it.
func (s *resolution) judgeTemporary() {
	for _, name := range slices.Sorted(maps.Keys(s.rules)) { // the outer ones first
		r := s.rules[name]
		if name == "/" || r.Access != sandbox.Write || r.Temporary || !s.rules.Rule(pathname.Parent(name)).Temporary {
			continue
		}
		dir, pinned := s.pins[name]
		if kind, err := openat.Kind(dir); !pinned || err != nil || kind != unix.S_IFDIR {
			r.Temporary = true
			s.rules[name] = r
		}
	}
}

// rule adds a rule for what its path leads to.
func (s *resolution) rule(r sandbox.Rule, o *sighting) error {
	o.rule, o.origin = true, r.Origin
	if r.SkipMissing {
		if !o.exists() && !o.barred {
			r.Access = r.Otherwise
		}
		r.SkipMissing, r.Otherwise = false, sandbox.Hidden
		if r.Access == sandbox.Hidden {
			o.rule, o.skipped = false, true
			return nil
		}
	}
	r.Path = o.path
	r = r.ReadPseudo()
	s.rules.Add(r)
	if !o.exists() {
		o.sealed = o.cannotWrite()
		return nil
	}
	if _, ok := s.pins[o.path]; r.Access >= sandbox.Read && !ok && o.path != "/" && r.Origin != sandbox.Protected {
		if len(s.pins) >= s.maxPins {
			return fmt.Errorf("the sandbox has more than %d paths that exist", s.maxPins)
		}
		s.pins[o.path] = o.fd
	}
	if r.Access != sandbox.Write && path.Base(o.path) == ".git" && o.stat.Mode&unix.S_IFMT == unix.S_IFREG {
		o.pointer = true
		text, err := readPointer(o.fd)
		if err != nil {
			return fmt.Errorf("reading %s: %w", o.path, err)
		}
		s.pointers[o.path] = text
	}
	return nil
}

// checkLinks refuses paths that cross a symlink which can be written under the
// policy.
func (s *resolution) checkLinks(policy *sandbox.Policy) error {
	for _, o := range s.seen {
		if o.skipped {
			continue // nothing depends on it
		}
		for _, link := range o.links {
			if policy.Access(link.Path) == sandbox.Write {
				return fmt.Errorf("cannot enforce the sandbox path %s (%s): it crosses the writable symlink %s", o.asked, o.what, link.Path)
			}
		}
	}
	return nil
}

// links are the symlinks on the way to what is shown that are not shown
// themselves, and those that were known before.
func (s *resolution) links(policy *sandbox.Policy, known []sandbox.Link) []sandbox.Link {
	links := slices.Clone(known)
	for _, o := range s.seen {
		if !o.rule || policy.Access(o.path) < sandbox.Read {
			continue
		}
		for _, link := range o.links {
			links = append(links, link.Link)
		}
	}
	links = slices.DeleteFunc(links, func(l sandbox.Link) bool { return policy.Access(l.Path) >= sandbox.Read })
	sort.Slice(links, func(i, j int) bool { return links[i].Path < links[j].Path })
	return slices.CompactFunc(links, func(a, b sandbox.Link) bool { return a.Path == b.Path })
}

// missing are the names that need a placeholder. The error is about a path
// where there can be none.
func (s *resolution) missing(policy *sandbox.Policy) ([]hold.Missing, error) {
	var all []hold.Missing
	for _, o := range s.seen {
		r, ok := s.rules[o.path]
		if !o.rule || !ok || r.Access == sandbox.Write || o.exists() || policy.Access(o.at) != sandbox.Write || pathname.IsPseudo(o.at) {
			continue
		}
		root := s.rules[o.at]
		switch {
		case r.Origin == sandbox.Protected && len(o.missing) > 1:
			continue
		case o.barred:
			return nil, fmt.Errorf("cannot enforce the sandbox path %s (%s): %s cannot be searched", o.asked, o.what, o.at)
		case o.stat.Mode&unix.S_IFMT != unix.S_IFDIR && !hold.IsPlaceholder(&o.stat):
			if root.Access == sandbox.Write {
				continue // the command can write the file, and not replace it by a directory
			}
			return nil, fmt.Errorf("cannot enforce the sandbox path %s (%s): %s is not a directory", o.asked, o.what, o.at)
		}
		dir := s.rules[path.Join(o.at, o.missing[0])].Origin == sandbox.Protected
		all = append(all, hold.Missing{Parent: o.at, Name: o.missing[0], Dir: dir, Barred: o.sealed})
	}
	sort.Slice(all, func(i, j int) bool {
		return cmp.Or(cmp.Compare(all[i].Parent, all[j].Parent), cmp.Compare(all[i].Name, all[j].Name)) < 0
	})
	return slices.Compact(all), nil
}

// closePins closes the descriptors that were not handed on.
func (s *resolution) closePins() {
	for _, fd := range s.pins {
		_ = unix.Close(fd)
	}
}
