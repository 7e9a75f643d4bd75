package sandbox

import (
	"slices"

	"github.com/execagent/execagent/sandbox/internal/pathname"
)

// Ruleset is what Landlock shall allow; what it handles and no rule allows is
// refused with EACCES, or EXDEV for a rename or link between directories. It is
// a pure value, which package enforce puts into force.
type Ruleset struct {
	FS     uint64 // the LANDLOCK_ACCESS_FS rights that are handled; may be 0
	Scoped uint64 // the LANDLOCK_SCOPE restrictions
	Rules  []PathRule
}

// PathRule allows rights on a path and all that lies below it.
type PathRule struct {
	Path   string // absolute, without symbolic links
	Rights uint64 // those that the ABI knows; on a file, those that files have
	// Except are paths strictly below Path that the rule does not reach, but
	// for their names: what lies beside them is allowed one by one, as it is
	// when the ruleset comes into force. What appears there later gets nothing.
	Except []string
}

// Rights and scopes of linux/landlock.h, as numbers: x/sys has their names for
// Linux only, and rulesets are made everywhere. TestLandlockNumbers compares them.
const (
	fsExecute     = 0x1
	fsWriteFile   = 0x2
	fsReadFile    = 0x4
	fsReadDir     = 0x8
	fsRemoveDir   = 0x10
	fsRemoveFile  = 0x20
	fsMakeDir     = 0x80
	fsMakeReg     = 0x100
	fsMakeSym     = 0x1000
	fsRefer       = 0x2000
	fsTruncate    = 0x4000
	fsIoctlDev    = 0x8000
	fsResolveUnix = 0x10000

	scopeAbstractUnixSocket = 0x1
	scopeSignal             = 0x2
)

// The groups of rights that rules are made of.
const (
	readRights    = fsReadFile | fsReadDir
	executeRights = readRights | fsExecute
	// contentRights change what is in files that exist.
	contentRights = fsWriteFile | fsTruncate
	// nameRights make, move and remove what the file operations of the wire do.
	nameRights   = fsMakeReg | fsMakeDir | fsMakeSym | fsRemoveFile | fsRemoveDir | fsRefer
	deviceRights = fsReadFile | contentRights | fsIoctlDev
	allRights    = 1<<17 - 1
)

// landlockABIs says what each ABI brought; those between are as the one before.
// Documentation/userspace-api/landlock.rst.
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

// newRuleset handles all that the ABI knows. Rights that it does not know are
// taken from the rules, and rules without rights are left out.
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

// HelperRuleset is the ceiling of the fs helper, whose own resolver decides
// exactly: it reads where anything may be read, writes below the writable roots
// and executes nothing. It lists every directory, because the way to a path
// that may be read can be listed, and Landlock has no rule for a directory
// without what lies below. What is denied below something readable stays
// readable here. sandbox.md, section 13.
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

// ProcessRuleset is for processes. With mounted it stands on top of the mount
// view, which does the carving: everything that the view shows can be read, the
// writable roots and the view's own /dev and /proc can be written to.
//
// Without it Landlock is all there is, for policies without carve-outs: only
// what the rules show can be read and executed, and of the devices only those
// that give nothing away. Terminals below /dev/pts are not among them, since
// the host's are there. sandbox.md, section 14.4.
func (p *Policy) ProcessRuleset(abi int, mounted bool) Ruleset {
	var rules []PathRule
	if mounted {
		rules = append(rules,
			PathRule{Path: "/", Rights: executeRights},
			PathRule{Path: "/dev", Rights: allRights &^ fsResolveUnix},
			PathRule{Path: "/proc", Rights: contentRights})
	} else {
		for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx"} {
			rules = append(rules, PathRule{Path: "/dev/" + name, Rights: deviceRights})
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
	return newRuleset(abi, rules)
}

// networkABI is the first whose domains can let everything be done with files:
// before it, no file could be moved to another directory in any of them.
const networkABI = 2

// NetworkRuleset is for processes that only the network is taken from. It lets
// everything be done with files; but from within any Landlock domain the kernel
// opens neither memory nor descriptors of processes outside, and so no socket
// of theirs (ptrace(2), "Ptrace access mode checking"). Signals may still be
// sent. The ABI is networkABI or later; before scopeABI, mounts cannot be
// changed from within.
func NetworkRuleset(abi int) Ruleset {
	if abi >= scopeABI {
		// The filter refuses to connect to these anyway.
		return Ruleset{Scoped: scopeAbstractUnixSocket}
	}
	return Ruleset{FS: fsRefer, Rules: []PathRule{{Path: "/", Rights: fsRefer}}}
}

// exceptions are the denied paths below path, and the devices, which are
// allowed by name.
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
