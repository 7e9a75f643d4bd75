package sandbox

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
	// SkipMissing rules add nothing while their path does not exist (D13).
	SkipMissing bool
}

// Glob denies the files that it matches.
type Glob struct {
	Base    string // absolute and clean, never "/"
	Pattern string // relative to Base, in the syntax of doublestar
	// MaxDepth is how many names below Base are looked at; 0 is no limit.
	MaxDepth int
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
// nothing but the network.
type Policy struct {
	// Confined tells whether the file system is restricted. If not, Rules
	// and Globs are empty.
	Confined bool
	// FullRead tells that everything can be read: the root is, and nothing is
	// denied.
	FullRead bool
	Rules    []Rule // sorted by path, one for each
	Globs    []Glob
	Network  Network
}
