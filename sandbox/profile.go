package sandbox

import (
	"errors"
	"path"
	"strings"
)

// Kind tells who confines, if anybody does.
type Kind uint8

// The kinds of profiles.
const (
	Managed  Kind = iota // by us, as the entries say
	External             // by the caller; ours is only the network
	Disabled             // by nobody
)

// Place is what an [Entry] names.
type Place uint8

// The places of sandbox.md 3.
const (
	PlacePath         Place = iota // the absolute path in Entry.Path
	PlaceGlob                      // the files that the pattern in Entry.Path matches
	PlaceRoot                      // "/"
	PlaceMinimal                   // what programs of the platform need to run
	PlaceCwd                       // grants nothing
	PlaceProjectRoots              // the workspace roots, or Entry.Path below each
	PlaceTmpDir                    // Profile.TmpDir
	PlaceSlashTmp                  // "/tmp"
	PlaceUnknown                   // grants nothing
)

// Entry gives one place an access.
type Entry struct {
	Place Place
	// Path is the path of a PlacePath, the pattern of a PlaceGlob, the path
	// below the root of a PlaceProjectRoots; nothing for others.
	Path   string
	Access Access // Denied, Read or Write
	// SkipMissing entries add nothing while their path does not exist (sandbox.md 3).
	SkipMissing bool
}

// Profile is what a client asks for, in native absolute paths (sandbox.md 2
// and 3). The zero value is confined and may touch nothing.
type Profile struct {
	Kind         Kind
	Unrestricted bool // a managed profile that does not restrict files
	Entries      []Entry
	// GlobDepth is how many names below its fixed prefix a glob looks; 0 is
	// no limit.
	GlobDepth int
	Network   Network // a disabled profile has none to restrict
	// Cwd is where relative globs start; "" is none.
	Cwd            string
	WorkspaceRoots []string
	TmpDir         string // TMPDIR; ignored unless absolute
	// Private paths are the agent's own: denied in every view that shows
	// them, whatever the entries say.
	Private []string
}

// The bounds of a profile.
const (
	// MaxEntries bounds the entries of a profile, and its workspace roots.
	MaxEntries = 4096
	// MaxPath is the most bytes of a path or pattern (PATH_MAX).
	MaxPath = 4096
	// MaxRules bounds the rules that the entries come to: a subpath of the
	// workspace roots is a rule for each of them.
	MaxRules = 16384
	// MaxRuleBytes bounds the paths of these rules together.
	MaxRuleBytes = 1 << 20
	// MaxGlobs bounds the work of matching a path: the sum of the lengths of
	// the patterns in bytes, their braces written out.
	MaxGlobs = 256 << 10
)

// ErrNeedsCwd says that a profile has entries that depend on a working
// directory and there is none (sandbox.md 2).
var ErrNeedsCwd = errors.New("the profile has entries that depend on a working directory and there is no cwd")

// TmpDir returns the TMPDIR of an environment, if that is an absolute path,
// else "". As getenv(3) does, it takes the first.
func TmpDir(environ []string) string {
	for _, entry := range environ {
		if dir, ok := strings.CutPrefix(entry, "TMPDIR="); ok && path.IsAbs(dir) {
			return path.Clean(dir)
		} else if ok {
			return ""
		}
	}
	return ""
}
