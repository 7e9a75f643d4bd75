package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"sync"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

// Resolved is a policy of canonical paths, and the objects that must not change
// while it holds. Its methods may run at once.
type Resolved struct {
	// Policy has only canonical paths: symlinks are followed, the rules of .git
	// pointer files added, entries that skip missing paths decided, so that no
	// rule has SkipMissing. A rule whose path does not exist stays.
	Policy *sandbox.Policy
	// Missing has the names that need a placeholder while a process runs, sorted,
	// including names where other processes already have a placeholder. It leaves
	// out the protected names of a writable root that does not exist: a process
	// sees no such root (sandbox.md 6.2).
	Missing []placeholder.Missing

	// These three do not change after the policy was resolved.
	watches  []watch       // what Fresh looks at
	writable []objectID    // the writable directories
	through  []grantedLink // the symlinks by which something is granted

	mu sync.RWMutex // held while pins are used
	// pins are O_PATH descriptors of granted objects. As long as an object is
	// open, the file system gives its inode number to no other.
	pins   []int
	closed bool
}

// maxPins bounds the descriptors of a Resolved.
const maxPins = 1024

// Policy looks up the paths of the policy in the file system as this process
// sees it, name by name on descriptors. The error names a path that could not be
// resolved, or that crosses a symlink in a writable place, because a process
// could later make that link lead elsewhere (sandbox.md 6.3, 12). Policy looks
// at 262144 names and holds 1024 descriptors at most; more is an error. It
// cannot bound the time that a file system takes to answer. The caller must
// Close the result.
func Policy(p *sandbox.Policy) (*Resolved, error) { return Within(p, maxPins) }

// Within is Policy with at most the given number of descriptors, or 1024 if that
// is less.
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
	r.pins = slices.AppendSeq(r.pins, maps.Values(s.pins))
	s.pins = nil
	return r, nil
}

// Granted returns the canonical paths that the entries of the profile grant, with
// sockets and devices, sorted. When another process resolves the same policy again, it must get the
// same paths.
func (r *Resolved) Granted() []string {
	var paths []string
	for _, rule := range r.Policy.Rules {
		if rule.Origin == sandbox.Asked && rule.Access >= sandbox.Read {
			paths = append(paths, rule.Path)
		}
	}
	if len(r.Policy.Sockets)+len(r.Policy.Devices) > 0 {
		paths = slices.Concat(paths, r.Policy.Sockets, r.Policy.Devices)
		slices.Sort(paths)
	}
	return paths
}

// Close closes the descriptors. The policy stays valid, and Fresh is false from
// then on. Close may be called more than once.
func (r *Resolved) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fd := range r.pins {
		_ = unix.Close(fd)
	}
	r.pins, r.closed = nil, true
}

// resolution is one call of Within: the objects seen so far, and the rules that
// follow from them.
type resolution struct {
	rules sandbox.Draft // by canonical path
	seen  []sighting
	// pointers has the text of .git pointer files by canonical path.
	pointers map[string]string
	pins     map[string]int // descriptors of granted objects, by canonical path
	looked   []watch        // the paths that bareRepositories looked at, besides those in seen
	maxPins  int
	left     budget
}

// sighting is a path of the policy and its object.
type sighting struct {
	*object
	asked  string         // the path that was looked up
	what   string         // for errors
	origin sandbox.Origin // of the rule, if there is one
	// rule: path has a rule. It has none if it is the base of a glob or private,
	// or was skipped.
	rule    bool
	skipped bool // the entry skips missing paths, and the path is missing
	named   bool // it is a socket or device that the policy names
	pointer bool // the content of the file was read, so it must not change
	// sealed: nothing can be created at the path.
	sealed bool
}

// see looks up a path and remembers its object. When use returns, see closes
// the descriptor of the object, unless use put it into pins.
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

// resolve returns the policy of canonical paths.
func (s *resolution) resolve(p *sandbox.Policy) (*sandbox.Policy, error) {
	policy := &sandbox.Policy{Confined: true, Network: p.Network, AllUnixSockets: p.AllUnixSockets, Transparent: p.Transparent, SharesPIDs: p.SharesPIDs}
	for _, rule := range p.Rules {
		if rule.Origin == sandbox.Private {
			continue // SetRules makes these rules anew, from policy.Private
		}
		if err := s.see(rule.Access.String(), rule.Path, func(o *sighting) error { return s.rule(rule, o) }); err != nil {
			return nil, err
		}
	}
	if err := s.named(policy, p); err != nil {
		return nil, err
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
	denied := func(name string) bool { return policy.Access(name) == sandbox.Denied || policy.DeniesFile(name) }
	policy.Devices = slices.DeleteFunc(policy.Devices, denied)
	policy.Sockets = slices.DeleteFunc(policy.Sockets, func(name string) bool { return denied(name) || policy.Access(name) < sandbox.Read })
	if err := s.checkLinks(policy); err != nil {
		return nil, err
	}
	policy.Links = s.links(policy, p.Links)
	return policy, nil
}

// judgeProtected corrects the rules of protected names once symlinks have been
// followed. If the writable root turned out to lead to something that another
// rule denies or makes readable, its protected names lose their rules: there is
// nothing to protect, and a rule would show what may be denied. If a readable
// path of an entry turned out to lead to a protected name, its rule becomes a
// protected one.
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

// judgeTemporary marks writable paths inside temporary directories as temporary,
// except for directories. At such a path a command could put what lies beside
// it, by a rename: a socket of somebody else, for one, which it may not reach
// under its own name.
func (s *resolution) judgeTemporary() {
	for _, name := range slices.Sorted(maps.Keys(s.rules)) { // the outer ones first
		r := s.rules[name]
		if name == "/" || r.Access != sandbox.Write || r.Temporary || !s.rules.Rule(pathname.Parent(name)).Temporary {
			continue
		}
		dir, pinned := s.pins[name]
		if kind, err := FileKind(dir); !pinned || err != nil || kind != unix.S_IFDIR {
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
	r.Replaceable = r.Replaceable && !(o.exists() && o.stat.Mode&unix.S_IFMT == unix.S_IFDIR)
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

// checkLinks refuses paths that cross a symlink which the policy lets be written.
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

// links returns the symlinks which lead to what the policy shows and which it
// does not show themselves. known are those that an earlier resolution found.
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

// missing returns the names that need a placeholder. The error names a path at
// which there can be none.
func (s *resolution) missing(policy *sandbox.Policy) ([]placeholder.Missing, error) {
	var all []placeholder.Missing
	for _, o := range s.seen {
		r, ok := s.rules[o.path]
		if !o.rule || !ok || r.Access == sandbox.Write || o.exists() || policy.Access(o.at) != sandbox.Write || pathname.IsPseudo(o.at) {
			continue
		}
		root := s.rules[o.at]
		switch {
		case r.Origin == sandbox.Protected && len(o.missing) > 1:
			continue // its root is missing too
		case o.barred:
			return nil, fmt.Errorf("cannot enforce the sandbox path %s (%s): this user may not search %s: "+
				"have its owner change the mode, or do not let commands write there", o.asked, o.what, o.at)
		case o.stat.Mode&unix.S_IFMT != unix.S_IFDIR:
			if root.Access == sandbox.Write {
				continue // the command can write the file, and not replace it by a directory
			}
			return nil, fmt.Errorf("cannot enforce the sandbox path %s (%s): %s is not a directory", o.asked, o.what, o.at)
		}
		dir := s.rules[path.Join(o.at, o.missing[0])].Origin == sandbox.Protected
		all = append(all, placeholder.Missing{Parent: o.at, Name: o.missing[0], Dir: dir, Barred: o.sealed})
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
