package sandbox

import (
	"errors"
	"path"
	"strings"
)

// Kind tells who confines a process, if anybody does.
type Kind uint8

// The kinds of profiles.
const (
	Managed  Kind = iota // we do, as the entries say
	External             // the caller does; we restrict only the network
	Disabled             // nobody does
)

// Place is what an [Entry] names.
type Place uint8

// The places of sandbox.md 3.
const (
	PlacePath         Place = iota // the absolute path in Entry.Path
	PlaceGlob                      // the files that the pattern in Entry.Path matches
	PlaceRoot                      // "/"
	PlaceMinimal                   // what programs of the platform need to run
	PlaceCwd                       // grants nothing, but needs Profile.Cwd
	PlaceProjectRoots              // the workspace roots, or Entry.Path below each
	PlaceTmpDir                    // Profile.TmpDir
	PlaceSlashTmp                  // "/tmp"
	PlaceUnknown                   // grants nothing
)

// Entry gives one place an access.
type Entry struct {
	Place Place
	// Path is the path of a PlacePath, the pattern of a PlaceGlob, the path
	// below each root of a PlaceProjectRoots; the other places do not use it.
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
	// Network is ignored if Kind is Disabled, unless it is NetworkManaged: the network
	// is the host's.
	Network Network
	// AllUnixSockets are as in [Policy].
	AllUnixSockets bool
	// Cwd is where relative globs start; "": there is none.
	Cwd            string
	WorkspaceRoots []string
	TmpDir         string // TMPDIR; ignored unless absolute
	// Tools are directories and programs that can be read, also where no entry says so,
	// and not be written. Where an entry denies what they are in, they are denied too.
	Tools []string
	// Private are the paths of the agent's own files: denied wherever they would
	// be seen, whatever the entries say.
	Private []string
	// PrivateFolders are such folders too, but what an entry names there, the
	// folder of Cwd and what is in a writable place stay as they are.
	PrivateFolders []string
	// KeepPrivate denies both also where the entries let everything be written, in which case they
	// restrict nothing otherwise. It changes nothing for a profile that says it restricts no files.
	KeepPrivate bool
}

// The bounds of a profile.
const (
	// MaxEntries bounds the entries of a profile, its workspace roots and its
	// private paths, each for itself.
	MaxEntries = 4096
	// MaxPath is the most bytes of a path or pattern (PATH_MAX).
	MaxPath = 4096
	// MaxRules bounds the rules that the entries are turned into: an entry for a
	// path below the workspace roots becomes a rule for each root.
	MaxRules = 16384
	// MaxRuleBytes bounds the paths of these rules together.
	MaxRuleBytes = 1 << 20
	// MaxGlobs bounds the time that matching a path against all globs takes. It
	// is the sum of the lengths of all patterns, in bytes, after their braces
	// were written out.
	MaxGlobs = 256 << 10
)

// ErrNeedsCwd says that a profile has entries that depend on a working
// directory and there is none (sandbox.md 2).
var ErrNeedsCwd = errors.New("the profile has entries that depend on a working directory and there is no cwd")

// TmpDir returns the TMPDIR of an environment, cleaned, if that is an absolute
// path; else "". Of several it takes the first, as getenv(3) does.
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
