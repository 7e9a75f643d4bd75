package sandbox

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Kind says who confines a process.
type Kind uint8

// The kinds of profiles.
const (
	Managed  Kind = iota // we do, according to the entries
	External             // the caller does; we restrict only the network
	Disabled             // nobody does
)

// Place is the kind of place that an [Entry] names.
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
	// SkipMissing makes the entry add nothing while its path does not exist (sandbox.md 3).
	SkipMissing bool
	// Replaceable is for a denied path whose file programs replace while a process runs, such as the history of a shell:
	// a replacement does not end the process (sandbox.md 20).
	Replaceable bool
}

// Profile is the sandbox that a client asks for, in native absolute paths
// (sandbox.md 2 and 3). The zero value is confined and allows nothing.
type Profile struct {
	Kind         Kind
	Unrestricted bool // a managed profile that does not restrict files
	Entries      []Entry
	// GlobDepth is how many names below its fixed prefix a glob matches; 0
	// means no limit.
	GlobDepth int
	// Network is ignored if Kind is Disabled, unless it is NetworkManaged: the network
	// is then the host's.
	Network Network
	// AllUnixSockets is as in [Policy].
	AllUnixSockets bool
	// Transparent is as in [Policy].
	Transparent bool
	// Sockets and Devices are paths as in [Policy]. A socket is shown even in a folder that the entries
	// hide. If they deny one, it is denied.
	Sockets, Devices []string
	// Cwd is the directory of relative globs; "": there is none.
	Cwd            string
	WorkspaceRoots []string
	TmpDir         string // TMPDIR; ignored unless absolute
	// Tools are directories and programs that are readable but not writable, even
	// without an entry. If an entry denies their folder, they are denied too.
	Tools []string
	// Private are the paths of the agent's own files: denied wherever they would
	// be visible, whatever the entries say.
	Private []string
	// PrivateFolders are private folders too, except for paths in them that an
	// entry names, the folder of Cwd, and everything in a writable place.
	PrivateFolders []string
	// KeepPrivate denies both even if the entries make everything writable and so restrict nothing
	// else. It has no effect on an Unrestricted profile.
	KeepPrivate bool
	// Strict makes Compile return an error for an entry that neither grants nor denies anything on any host, such
	// as a pattern with the access Read. Clients send such entries over the wire, but in a program they are mistakes.
	Strict bool
}

// ReadOnly returns a strict profile: everything can be read, nothing can be written, and there is no network.
func ReadOnly() Profile {
	return Profile{Strict: true, Entries: []Entry{{Place: PlaceRoot, Access: Read}}}
}

// WorkspaceWrite returns the profile of [ReadOnly], but dir, more directories, /tmp and TmpDir can be written.
// Cwd is dir.
func WorkspaceWrite(dir string, more ...string) Profile {
	p := ReadOnly()
	p.Cwd, p.WorkspaceRoots = dir, append([]string{dir}, more...)
	for _, place := range []Place{PlaceProjectRoots, PlaceSlashTmp, PlaceTmpDir} {
		p.Entries = append(p.Entries, Entry{Place: place, Access: Write})
	}
	return p
}

// The bounds of a profile.
const (
	// MaxEntries bounds the entries of a profile, its workspace roots and its
	// private paths, each separately.
	MaxEntries = 4096
	// MaxPath is the most bytes of a path or pattern (PATH_MAX).
	MaxPath = 4096
	// maxNamed bounds the sockets of a profile and its devices, because an init holds a descriptor for each.
	maxNamed = 256
	// maxRules bounds the rules made from the entries: an entry for a path below
	// the workspace roots becomes a rule for each root.
	maxRules = 16384
	// maxRuleBytes bounds the paths of these rules together.
	maxRuleBytes = 1 << 20
	// maxGlobs bounds the time for matching a path against all globs. It is the
	// sum of the lengths of all patterns, in bytes, after expanding their
	// braces.
	maxGlobs = 256 << 10
)

// useless returns the reason why an entry neither grants nor denies anything; "": the entry has an effect.
func (p Profile) useless(e Entry) string {
	switch {
	case e.Place == PlaceGlob && e.Access != Denied:
		return "a pattern can only deny"
	case e.Place == PlaceMinimal && e.Access != Read:
		return "what programs need can only be read"
	case e.Place == PlaceCwd:
		return "the working directory has to be named by a PlacePath or a PlaceProjectRoots"
	case e.Place == PlaceUnknown:
		return "the place is not known"
	case e.Place == PlaceProjectRoots && len(p.WorkspaceRoots) == 0:
		return "there are no workspace roots"
	case e.Place == PlaceProjectRoots && (path.IsAbs(e.Path) || hasDotDot(e.Path)):
		return fmt.Sprintf("%q is not below a workspace root", e.Path)
	}
	return ""
}

// ErrNeedsCwd says that a profile has entries that depend on a working
// directory and there is none (sandbox.md 2).
var ErrNeedsCwd = errors.New("the profile has entries that depend on a working directory and there is no cwd")

// TmpDir returns the TMPDIR of an environment, cleaned, if it is an absolute
// path; else "". Of several, it takes the first, like getenv(3).
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
