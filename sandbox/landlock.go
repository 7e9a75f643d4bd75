package sandbox

import (
	"slices"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// Ruleset says which rights Landlock handles and which of them it allows. An access that it handles
// and no rule allows fails with EACCES, a rename or link between directories with EXDEV. It is a
// pure value; a process applies it when it confines itself.
type Ruleset struct {
	FS     uint64 // the LANDLOCK_ACCESS_FS rights that are handled; may be 0
	Scoped uint64 // the LANDLOCK_SCOPE restrictions
	Rules  []PathRule
}

// PathRule allows rights on a path and everything below it.
type PathRule struct {
	Path   string // absolute, without symbolic links
	Rights uint64 // only rights that the ABI knows; files ignore rights of directories
	// Except are paths strictly below Path on which the rule gives no rights,
	// except that directories may be listed. Landlock has no such exceptions,
	// so enforcement allows their neighbours one by one when the ruleset is
	// applied. Entries that appear there later get no rights.
	Except []string
}

// Rights and scopes of linux/landlock.h, as numbers, because x/sys has their names
// for Linux only, and rulesets are made everywhere. TestLandlockNumbers compares
// them.
const (
	fsExecute     = 0x1
	fsWriteFile   = 0x2
	fsReadFile    = 0x4
	fsReadDir     = 0x8
	fsRemoveDir   = 0x10
	fsRemoveFile  = 0x20
	fsMakeChar    = 0x40
	fsMakeDir     = 0x80
	fsMakeReg     = 0x100
	fsMakeBlock   = 0x800
	fsMakeSym     = 0x1000
	fsRefer       = 0x2000
	fsTruncate    = 0x4000
	fsIoctlDev    = 0x8000
	fsResolveUnix = 0x10000

	scopeAbstractUnixSocket = 0x1
	scopeSignal             = 0x2
)

// The groups of rights in rules.
const (
	readRights    = fsReadFile | fsReadDir
	executeRights = readRights | fsExecute
	// contentRights are to change the contents of existing files.
	contentRights = fsWriteFile | fsTruncate
	// nameRights are to make, move and remove files, directories and symlinks.
	// The file operations of the wire make no other kinds.
	nameRights   = fsMakeReg | fsMakeDir | fsMakeSym | fsRemoveFile | fsRemoveDir | fsRefer
	deviceRights = fsReadFile | contentRights | fsIoctlDev
	allRights    = 1<<17 - 1
)

// landlockABIs has all rights and scopes that an ABI knows, for the ABIs that
// added new ones: an ABI in between knows as much as the one before
// (Documentation/userspace-api/landlock.rst).
var landlockABIs = []struct {
	abi        int
	fs, scoped uint64
}{
	{abi: 1, fs: 1<<13 - 1}, // Linux 5.13
	{abi: 2, fs: 1<<14 - 1}, // REFER, 5.19
	{abi: 3, fs: 1<<15 - 1}, // TRUNCATE, 6.2
	{abi: 5, fs: 1<<16 - 1}, // IOCTL_DEV, 6.10
	{abi: 6, fs: 1<<16 - 1, scoped: scopeAbstractUnixSocket | scopeSignal}, // 6.12
	{abi: 9, fs: allRights, scoped: scopeAbstractUnixSocket | scopeSignal}, // RESOLVE_UNIX
}

// newRuleset returns a ruleset that handles all rights that the ABI knows. It
// removes unknown rights from the rules, and rules without remaining rights.
func newRuleset(abi int, rules []PathRule) Ruleset {
	var r Ruleset
	for _, known := range landlockABIs {
		if known.abi <= abi {
			r.FS, r.Scoped = known.fs, known.scoped
		}
	}
	for _, rule := range rules {
		if rule.Rights &= r.FS; rule.Rights != 0 {
			r.Rules = append(r.Rules, rule)
		}
	}
	return r
}

// HelperRuleset returns a ruleset for the fs helper. The helper's resolver
// decides exactly what a request may touch; the ruleset is a second, coarser
// wall (sandbox.md 13). Under it, the helper reads readable paths, writes below
// the writable roots and executes nothing. It can list every directory, because
// a directory on the way to a readable path can be listed, and Landlock cannot
// allow that without allowing it for all directories below. A denied path below
// a readable one stays readable here.
func (p *Policy) HelperRuleset(abi int) Ruleset {
	rules := []PathRule{{Path: "/", Rights: fsReadDir}}
	for _, rule := range p.Rules {
		switch rule.Access {
		case Read:
			rules = append(rules, PathRule{Path: rule.Path, Rights: readRights})
		case Write:
			rules = append(rules, PathRule{Path: rule.Path, Rights: readRights | contentRights | nameRights})
		case Hidden, Denied:
		}
	}
	return newRuleset(abi, rules)
}

// ProcessRuleset returns a ruleset for processes (sandbox.md 14.4). With mounted,
// the process also has a mount view, which denies and protects single paths: the
// ruleset makes everything readable that the view shows, and makes the writable
// roots and the view's own /dev and /proc writable.
//
// Without mounted, there is only Landlock, and the policy protects nothing
// inside a writable root: only paths that the rules show can be read and
// executed. In /dev the process gets the devices that reveal nothing, but not
// the terminals in /dev/pts, which belong to the host.
func (p *Policy) ProcessRuleset(abi int, mounted bool) Ruleset {
	var rules []PathRule
	if mounted {
		rules = append(rules,
			PathRule{Path: "/", Rights: executeRights | p.unixRights()},
			PathRule{Path: "/dev", Rights: allRights &^ fsResolveUnix},
			PathRule{Path: "/proc", Rights: contentRights})
	} else {
		for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx"} {
			rules = append(rules, PathRule{Path: "/dev/" + name, Rights: deviceRights})
		}
		for _, name := range p.Devices {
			rules = append(rules, PathRule{Path: name, Rights: deviceRights})
		}
	}
	for _, rule := range p.Rules {
		switch {
		case rule.Access == Write:
			rules = append(rules, PathRule{Path: rule.Path, Rights: allRights, Except: p.exceptions(rule.Path, mounted)})
		case rule.Access == Read && !mounted:
			rules = append(rules, PathRule{Path: rule.Path, Rights: executeRights, Except: p.exceptions(rule.Path, mounted)})
		}
	}
	return p.signals(newRuleset(abi, rules))
}

// SupervisorRuleset returns a ruleset for the supervisor of a command. It limits
// the damage of a mistake in the supervisor: under it, the supervisor writes
// only in the writable roots, in shm, and in the few devices and files of procfs
// that a command may write, and makes no devices. Reading is not limited: the
// supervisor judges each call itself. shm is the command's replacement for
// /dev/shm, or "".
func (p *Policy) SupervisorRuleset(abi int, shm string) Ruleset {
	const changes = allRights &^ (fsMakeChar | fsMakeBlock)
	rules := []PathRule{
		{Path: "/", Rights: executeRights | p.unixRights()},
		{Path: "/dev", Rights: deviceRights},
		{Path: "/proc", Rights: contentRights},
	}
	for _, root := range p.WritableRoots() {
		rules = append(rules, PathRule{Path: root, Rights: changes})
	}
	if shm != "" {
		rules = append(rules, PathRule{Path: shm, Rights: changes})
	}
	for _, name := range p.Sockets { // the folder's, because the socket may be replaced
		rules = append(rules, PathRule{Path: pathname.Parent(name), Rights: fsResolveUnix})
	}
	r := newRuleset(abi, rules)
	r.Scoped = 0 // it judges the command's signals and sockets itself
	return r
}

// SupervisedRuleset returns a ruleset for a command whose calls a supervisor
// does, in that level. Under it, the command can write nothing and open no device
// that reveals anything. Beyond readable files it gets only descriptors that the
// supervisor opened: the rights of an open file are those of its opener. In
// LevelWrites the kernel opens files for reading, so the agent's own files are
// left out here.
func (p *Policy) SupervisedRuleset(abi int, level Level) Ruleset {
	except := []string{"/dev"}
	if level == LevelWrites {
		except = p.exceptions("/", false)
	}
	rules := []PathRule{{Path: "/", Rights: executeRights, Except: except}}
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		rules = append(rules, PathRule{Path: "/dev/" + name, Rights: fsReadFile})
	}
	for _, name := range p.Devices {
		rules = append(rules, PathRule{Path: name, Rights: fsReadFile | fsIoctlDev})
	}
	for _, rule := range p.Rules {
		if rule.Access >= Read && pathname.Below(rule.Path, "/dev") {
			rules = append(rules, PathRule{Path: rule.Path, Rights: executeRights})
		}
	}
	return p.signals(newRuleset(abi, rules))
}

// signals lets the process signal others, if the policy says so.
func (p *Policy) signals(r Ruleset) Ruleset {
	if p.SharesPIDs {
		r.Scoped &^= scopeSignal
	}
	return r
}

// unixRights returns the rights to connect to the UNIX sockets of others.
func (p *Policy) unixRights() uint64 {
	if p.AllUnixSockets {
		return fsResolveUnix
	}
	return 0
}

// movesABI is the first ABI whose domains can allow everything with files: under
// an older one, no process in a domain can move a file to another directory.
const movesABI = 2

// NetworkRuleset returns a ruleset for processes that only lose the network. It
// allows everything with files. It is needed because a process in a domain,
// whatever its rules, can open neither the memory nor the descriptors of
// processes outside, and so gets none of their sockets (ptrace(2), "Ptrace
// access mode checking"). Signals may still be sent. The ABI must be movesABI
// or later. With an ABI before scopeABI, the ruleset must handle a right of
// files, so the process cannot change mounts.
func NetworkRuleset(abi int) Ruleset {
	if abi >= scopeABI {
		// A ruleset must handle something. This scope removes nothing more,
		// because the filter refuses to connect to abstract sockets anyway.
		return Ruleset{Scoped: scopeAbstractUnixSocket}
	}
	return Ruleset{FS: fsRefer, Rules: []PathRule{{Path: "/", Rights: fsRefer}}}
}

// exceptions returns, if there is only Landlock, the denied paths below path,
// and below the root also /dev, because ProcessRuleset allows single devices by
// name.
func (p *Policy) exceptions(path string, mounted bool) []string {
	if mounted {
		return nil
	}
	var except []string
	if path == "/" {
		except = append(except, "/dev")
	}
	for _, rule := range p.Rules {
		if rule.Access == Denied && pathname.Below(rule.Path, path) {
			except = append(except, rule.Path)
		}
	}
	slices.Sort(except)
	return except
}
