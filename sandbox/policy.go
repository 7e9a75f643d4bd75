package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/execagent/execagent/sandbox/internal/pathname"
)

// Access is what a policy lets somebody do with the object at a path.
type Access uint8

// The kinds of access, from none to all.
const (
	// Hidden is what no rule grants: it does not exist (ENOENT).
	Hidden Access = iota
	// Denied exists and cannot be opened (EACCES).
	Denied
	// Read may be read, listed and executed; writing is EROFS.
	Read
	// Write may also be changed.
	Write
)

// Origin says why a rule is there.
type Origin uint8

// The origins of rules.
const (
	// Asked rules are entries of the profile.
	Asked Origin = iota
	// Minimal rules are the platform's directories of a minimal view.
	Minimal
	// Protected rules keep a name in a writable root read-only.
	Protected
	// GitDir rules keep what a .git pointer file names read-only.
	GitDir
	// Private rules hide what is the agent's own.
	Private
)

// Rule gives a path, and what lies below it, an access.
type Rule struct {
	Path   string // absolute and clean
	Access Access
	Origin Origin
	// SkipMissing rules say Otherwise while their path does not exist: Hidden
	// is as if there were no rule (sandbox.md 3). A resolved policy has none.
	SkipMissing bool
	Otherwise   Access
	// Temporary: the path can only be written because it is TMPDIR or /tmp, and
	// not because an entry names it. Sockets that were there before a command are
	// not its to reach.
	Temporary bool
}

// Glob denies the files that it matches.
type Glob struct {
	Base    string // absolute and clean, never "/"
	Pattern string // relative to Base, in the syntax of doublestar
	// MaxDepth is how many names below Base are looked at; 0 is no limit.
	MaxDepth int
}

// Link is a symlink on the way to what a policy shows, in a place that it
// does not show: the link can be read and followed, nothing else.
type Link struct {
	Path   string // canonical but for its last name, the link's own
	Target string // its text
}

// Network is what a policy says of the network.
type Network uint8

// The networks.
const (
	NetworkRestricted Network = iota
	NetworkEnabled
)

// Policy is a profile with its places resolved to paths: a value that can be
// compared, printed and sent to another process. The zero value restricts
// nothing but the network. Its methods change nothing and may run at once;
// those that take a path want it absolute and clean and do not look at the
// file system.
type Policy struct {
	// Confined tells whether the file system is restricted. If not, Rules
	// and Globs are empty.
	Confined bool
	// FullRead tells that the profile lets everything be read: the root is, and
	// nothing is denied but what is Private.
	FullRead bool
	Rules    []Rule // sorted by path, one for each
	Globs    []Glob
	Network  Network
	// Links are found by package resolve, sorted by path. A view that is built has to
	// have them; Access and Leads know them.
	Links []Link
	// Private are the paths that are denied wherever the policy shows them.
	// Rules has what that comes to; the list is what package resolve judges by once
	// symlinks are followed.
	Private []string
}

// Access is what the policy lets be done at path: the rule with the longest
// prefix of it decides. Globs are not asked, see [Policy.DeniesFile].
func (p *Policy) Access(path string) Access {
	if !p.Confined {
		return Write
	}
	if path == "" || path[0] != '/' {
		return Hidden
	}
	access := Hidden
	for prefix := path; ; prefix = pathname.Parent(prefix) {
		if i, ok := p.find(prefix); ok {
			access = p.Rules[i].Access
			break
		}
		if prefix == "/" {
			break
		}
	}
	if access < Read && len(p.Links) > 0 {
		if _, ok := slices.BinarySearchFunc(p.Links, path, compareLink); ok {
			return Read
		}
	}
	return access
}

// Temporary tells whether path can only be written because it is in a temporary
// directory.
func (p *Policy) Temporary(path string) bool {
	for prefix := path; ; prefix = pathname.Parent(prefix) {
		if i, ok := p.find(prefix); ok {
			return p.Rules[i].Temporary
		}
		if prefix == "/" {
			return false
		}
	}
}

// DeniesFile tells whether a glob denies path. It is to be asked of everything
// but directories, which no glob denies (sandbox.md 6.5).
func (p *Policy) DeniesFile(path string) bool {
	for _, g := range p.Globs {
		if g.Matches(path) {
			return true
		}
	}
	return false
}

// Matches tells whether path, which is absolute and clean, is one that the glob
// denies if there is a file.
func (g Glob) Matches(path string) bool {
	if len(path) <= len(g.Base) || path[len(g.Base)] != '/' || path[:len(g.Base)] != g.Base {
		return false
	}
	name := path[len(g.Base)+1:]
	if g.MaxDepth > 0 && strings.Count(name, "/") >= g.MaxDepth {
		return false
	}
	return doublestar.MatchUnvalidated(g.Pattern, name)
}

// Leads tells whether something that the policy shows lies strictly below
// path: a directory on the way there can be passed and listed for what is
// shown, even where Access says Hidden.
func (p *Policy) Leads(path string) bool {
	if !p.Confined {
		return true
	}
	for i := p.below(path); i < len(p.Rules) && pathname.Below(p.Rules[i].Path, path); i++ {
		if p.Rules[i].Access >= Read {
			return true
		}
	}
	i, _ := slices.BinarySearchFunc(p.Links, path, func(l Link, dir string) int { return compareBelow(l.Path, dir) })
	return i < len(p.Links) && pathname.Below(p.Links[i].Path, path)
}

// Bound tells whether a rule or the base of a glob lies at or below path. It
// may not be moved or removed then: what the rule says would not go with it
// (sandbox.md 14.2).
func (p *Policy) Bound(path string) bool {
	if _, ok := p.find(path); ok {
		return true
	}
	if i := p.below(path); i < len(p.Rules) && pathname.Below(p.Rules[i].Path, path) {
		return true
	}
	for _, g := range p.Globs {
		if g.Base == path || pathname.Below(g.Base, path) {
			return true
		}
	}
	return false
}

// WritableRoots are the paths of the rules that let write, sorted.
func (p *Policy) WritableRoots() []string {
	var roots []string
	for _, r := range p.Rules {
		if r.Access == Write {
			roots = append(roots, r.Path)
		}
	}
	return roots
}

// String has a line for the network, one for each rule, glob and link.
func (p *Policy) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "network  %s\n", p.Network)
	if !p.Confined {
		b.WriteString("files    unrestricted\n")
	}
	for _, r := range p.Rules {
		fmt.Fprintf(&b, "%-8s %s", r.Access, r.Path)
		if r.Origin != Asked {
			fmt.Fprintf(&b, " (%s)", r.Origin)
		}
		if r.SkipMissing {
			fmt.Fprintf(&b, " (%s if missing)", r.Otherwise)
		}
		b.WriteByte('\n')
	}
	for _, g := range p.Globs {
		fmt.Fprintf(&b, "%-8s files %s in %s", Denied, g.Pattern, g.Base)
		if g.MaxDepth > 0 {
			fmt.Fprintf(&b, " (depth %d)", g.MaxDepth)
		}
		b.WriteByte('\n')
	}
	for _, l := range p.Links {
		fmt.Fprintf(&b, "%-8s %s -> %s\n", "link", l.Path, l.Target)
	}
	return b.String()
}

func (a Access) String() string {
	return [...]string{"hidden", "denied", "read", "write"}[a&3]
}

func (o Origin) String() string {
	names := [...]string{"asked", "minimal", "protected", "gitdir", "private"}
	return names[min(int(o), len(names)-1)]
}

func (n Network) String() string {
	if n == NetworkEnabled {
		return "enabled"
	}
	return "restricted"
}

func (p *Policy) find(path string) (int, bool) {
	return slices.BinarySearchFunc(p.Rules, path, func(r Rule, path string) int { return strings.Compare(r.Path, path) })
}

// below is the index of the first rule that can lie strictly below dir; those
// that do are next to each other.
func (p *Policy) below(dir string) int {
	i, _ := slices.BinarySearchFunc(p.Rules, dir, func(r Rule, dir string) int { return compareBelow(r.Path, dir) })
	return i
}

func compareLink(l Link, path string) int { return strings.Compare(l.Path, path) }

// compareBelow compares path with dir and a slash, where what lies strictly
// below dir begins, without making that string.
func compareBelow(path, dir string) int {
	if dir == "/" {
		return len(path) - 2 // "/" is the first rule, all others lie below
	}
	n := min(len(path), len(dir))
	if c := strings.Compare(path[:n], dir[:n]); c != 0 {
		return c
	}
	if len(path) == n {
		return -1
	}
	return int(path[n]) - '/'
}
