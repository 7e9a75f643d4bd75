package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// Access is what a policy allows with the object at a path.
type Access uint8

// The kinds of access, from none to all.
const (
	// Hidden is the access to paths without a rule: for a process, the object
	// does not exist (ENOENT).
	Hidden Access = iota
	// Denied objects visibly exist, but cannot be opened (EACCES).
	Denied
	// Read objects may be read, listed and executed; writing fails with EROFS.
	Read
	// Write objects may also be changed.
	Write
)

// Origin is the reason for a rule.
type Origin uint8

// The origins of rules.
const (
	// Asked rules are entries of the profile.
	Asked Origin = iota
	// Minimal rules are the platform's directories of a minimal view.
	Minimal
	// Protected rules keep a name in a writable root read-only.
	Protected
	// GitDir rules make the target of a .git pointer file read-only.
	GitDir
	// Private rules deny the agent's own files.
	Private
)

// Rule gives a path, and everything below it, an access.
type Rule struct {
	Path   string // absolute and clean
	Access Access
	Origin Origin
	// SkipMissing: while the path does not exist, the rule gives Otherwise
	// instead of Access. If Otherwise is Hidden, there is then no rule, and the
	// rule above decides (sandbox.md 3). Resolving a policy decides which of
	// the two holds, so a resolved policy has no such rule.
	SkipMissing bool
	Otherwise   Access
	// Temporary: the path is writable only because it is TMPDIR or /tmp, and no
	// entry names it. Anybody may have sockets there, so a command must not
	// connect to sockets that are older than the command.
	Temporary bool
	// Replaceable: somebody outside may replace the denied object while a process runs, which ends nothing. A process in a
	// view may then find the new object with the access of its folder. Resolving a policy clears it for folders, because
	// rules below a folder would be lost with it.
	Replaceable bool
}

// Glob denies the files that it matches.
type Glob struct {
	Base    string // absolute and clean, never "/"
	Pattern string // relative to Base, in the syntax of doublestar
	// MaxDepth is the most names below Base in a matching path; 0 means no
	// limit.
	MaxDepth int
}

// Link is a symlink in a directory that a policy does not show, with a target
// that the policy shows. A process can read and follow the link, and do nothing
// else in that directory.
type Link struct {
	Path   string // of the link: canonical, except that the last name is not followed
	Target string // its text
}

// Network is a policy's access to the network.
type Network uint8

// The networks.
const (
	NetworkRestricted Network = iota // none; a process can still make socket pairs
	NetworkEnabled                   // the host's
	// NetworkManaged has only two listeners of a proxy, which decides about each
	// destination (network.md 9).
	NetworkManaged
)

// Policy is a profile with its places resolved to paths: a value that can be
// compared, printed and sent to another process. The zero value restricts only
// the network. Its methods change nothing and may run concurrently. A path
// argument must be absolute and clean; no method looks at the file system.
type Policy struct {
	// Confined reports whether the file system is restricted. If not, Rules and
	// Globs are empty.
	Confined bool
	// FullRead says that everything is readable: a rule makes the root
	// readable, and only rules of the origin Private deny anything.
	FullRead bool
	Rules    []Rule // sorted by path, one for each
	Globs    []Glob
	Network  Network
	// AllUnixSockets lets a process with NetworkManaged connect to every UNIX socket with
	// a path, except the agent's own. Without it there are only socket pairs.
	AllUnixSockets bool
	// Transparent lets a process with NetworkManaged connect to any address: each connection waits
	// until the proxy has judged and dialled the destination.
	Transparent bool
	// Sockets are UNIX sockets that a process without the host's network can connect to, and that a
	// process with it can connect to wherever they lie. Devices are devices that a process can open, in
	// addition to those that reveal nothing. Both are sorted. Resolving the policy follows their links, and
	// leaves out what rules or globs deny, and devices that do not exist. A socket may come into being.
	Sockets, Devices []string
	// SharesPIDs puts the process into the PID namespace of the host, where it sees other processes and
	// may signal those of its user. It can neither trace them nor read their memory or environment.
	SharesPIDs bool
	// Links are sorted by path; only resolving the policy on a host finds any. A view must contain
	// them, and Access makes them readable.
	Links []Link
	// Private are the paths of the agent's own files, denied wherever the policy
	// would show them. Rules has the rules that follow from this list. Package
	// resolve needs the list itself, because it makes these rules again after it
	// has followed the symlinks.
	Private []string
}

// Access returns the policy's access to path: the rule whose path is the
// longest prefix decides. It ignores globs, see [Policy.DeniesFile].
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

// Temporary reports whether path is writable only because it is in a temporary
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

// Replaceable reports whether a process goes on after somebody outside has replaced the object at path: a socket that
// the policy names, whose service may start again, or a file of a replaceable rule, unless a glob denies that, too.
func (p *Policy) Replaceable(path string) bool {
	if i, ok := p.find(path); ok && p.Rules[i].Replaceable {
		return !p.DeniesFile(path)
	}
	return slices.Contains(p.Sockets, path)
}

// DeniesFile reports whether a glob denies path. The caller knows that path is
// no directory, because no glob denies a directory (sandbox.md 6.5).
func (p *Policy) DeniesFile(path string) bool {
	for _, g := range p.Globs {
		if g.Matches(path) {
			return true
		}
	}
	return false
}

// Matches reports whether the glob denies a file at path, which is absolute and
// clean.
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

// Leads reports whether something visible lies strictly below path: a directory
// on the way there can be passed, and listed with its visible entries, even if
// its Access is Hidden.
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

// Bound reports whether a rule or the base of a glob lies at or below path. If
// so, the object there may not be moved or removed, because rules are about
// paths and would not move with the object (sandbox.md 14.2).
func (p *Policy) Bound(path string) bool {
	if p.touches(path) {
		return true
	}
	for _, g := range p.Globs {
		if g.Base == path || pathname.Below(g.Base, path) {
			return true
		}
	}
	return false
}

// touches reports whether a rule is about path or something below it.
func (p *Policy) touches(path string) bool {
	if _, ok := p.find(path); ok {
		return true
	}
	i := p.below(path)
	return i < len(p.Rules) && pathname.Below(p.Rules[i].Path, path)
}

// Grants reports whether a rule for path, or for something below it, makes it
// readable. A rule above path does not count.
func (p *Policy) Grants(path string) bool {
	i, ok := p.find(path)
	return ok && p.Rules[i].Access >= Read || p.Leads(path)
}

// WritesEverything reports whether everything is writable except the agent's own
// files.
func (p *Policy) WritesEverything() bool {
	for _, r := range p.Rules {
		if r.Origin != Private && r.Access != Write {
			return false
		}
	}
	return len(p.Globs) == 0 && p.Access("/") == Write
}

// judgesConnects reports whether somebody decides about each connect(2) of a process.
func (p *Policy) judgesConnects() bool {
	return p.Network == NetworkEnabled || p.Transparent || len(p.Sockets) > 0
}

// WritableRoots returns the paths of the rules with the access Write, sorted.
func (p *Policy) WritableRoots() []string {
	var roots []string
	for _, r := range p.Rules {
		if r.Access == Write {
			roots = append(roots, r.Path)
		}
	}
	return roots
}

// String returns a line for the network and one for each rule, glob and link. It
// is for people, and its form may change.
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
		if r.Replaceable {
			b.WriteString(" (replaceable)")
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
	for _, name := range p.Sockets {
		fmt.Fprintf(&b, "%-8s %s\n", "socket", name)
	}
	for _, name := range p.Devices {
		fmt.Fprintf(&b, "%-8s %s\n", "device", name)
	}
	return b.String()
}

// String returns the name of the access, as [Policy.String] prints it.
func (a Access) String() string {
	return [...]string{"hidden", "denied", "read", "write"}[a&3]
}

// String returns the name of the origin, as [Policy.String] prints it.
func (o Origin) String() string {
	names := [...]string{"asked", "minimal", "protected", "gitdir", "private"}
	return names[min(int(o), len(names)-1)]
}

// String returns "restricted", "enabled" or "managed".
func (n Network) String() string {
	return [...]string{"restricted", "enabled", "managed", "unknown"}[n&3]
}

func (p *Policy) find(path string) (int, bool) {
	return slices.BinarySearchFunc(p.Rules, path, func(r Rule, path string) int { return strings.Compare(r.Path, path) })
}

// below returns the index of the first rule strictly below dir, if any. All such
// rules are neighbours.
func (p *Policy) below(dir string) int {
	i, _ := slices.BinarySearchFunc(p.Rules, dir, func(r Rule, dir string) int { return compareBelow(r.Path, dir) })
	return i
}

func compareLink(l Link, path string) int { return strings.Compare(l.Path, path) }

// compareBelow compares path with dir+"/", without making that string; a path
// that begins with it counts as equal. So a binary search with compareBelow finds
// the first path strictly below dir.
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
