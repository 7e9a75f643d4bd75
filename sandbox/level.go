package sandbox

import "github.com/execagent/execagent/internal/sandbox/pathname"

// Level says how many of a command's system calls a supervisor does or judges,
// with the layer [Supervised] (supervised.md 3). The kernel does all other
// calls, at full speed. Each level includes the calls of the one before.
type Level uint8

// The levels.
const (
	NoLevel Level = iota
	// LevelWrites has every call that changes a file, a name or metadata. It is
	// exact for policies under which everything is readable.
	LevelWrites
	// LevelReads also has every open and execve. It is exact for contents and
	// listings; a command can still learn the metadata of a denied or hidden
	// path.
	LevelReads
	// LevelMetadata also has the calls that reveal something about a path without opening it.
	LevelMetadata
)

// UnscopedLevel is the lowest level for a Landlock that does not keep signals
// inside (before ABI 6). Before ABI 5, Landlock also does not restrict ioctls
// of a device, so the supervisor must open devices.
const UnscopedLevel = LevelReads

// String returns the wire's letter for the level: W, R or S.
func (l Level) String() string { return [...]string{"", "W", "R", "S"}[l&3] }

// level returns the cheapest level that is exact for the policy. The agent's own
// files are denied in all levels. In LevelWrites, Landlock denies them by
// allowing their neighbours one by one (PathRule.Except). So no file may appear
// beside them later, and their directories must not be writable.
func (p *Policy) level() Level {
	if !p.FullRead {
		return LevelMetadata
	}
	for _, r := range p.Rules {
		if r.Origin == Private && p.writableAbove(r.Path) {
			return LevelMetadata
		}
	}
	return LevelWrites
}

// writableAbove reports whether a directory on the way to path can be written.
func (p *Policy) writableAbove(path string) bool {
	for path != "/" {
		path = pathname.Parent(path)
		if p.Access(path) == Write {
			return true
		}
	}
	return false
}
