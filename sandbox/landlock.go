package sandbox

import (
	"slices"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// Ruleset tells what Landlock shall handle and what of that it shall allow. What
// it handles and no rule allows fails with EACCES, a rename or link between
// directories with EXDEV. It is a pure value; a process puts it into force when it confines itself.
type Ruleset struct {
	FS     uint64 // the LANDLOCK_ACCESS_FS rights that are handled; may be 0
	Scoped uint64 // the LANDLOCK_SCOPE restrictions
	Rules  []PathRule
}

// PathRule allows rights on a path and all that lies below it.
type PathRule struct {
	Path   string // absolute, without symbolic links
	Rights uint64 // only rights that the ABI knows; files ignore those of directories
	// Except are paths strictly below Path on which the rule gives no rights,
	// but that directories may be listed. Landlock has no such exceptions, so
	// enforcement allows one by one the entries that lie beside them when
	// the ruleset comes into force. What appears there later gets no rights.
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

// The groups of rights that rules are made of.
const (
	readRights    = fsReadFile | fsReadDir
	executeRights = readRights | fsExecute
	// contentRights change what is in files that exist.
	contentRights = fsWriteFile | fsTruncate
	// nameRights are to make, move and remove files, directories and symlinks.
	// The file operations of the wire make nothing else.
	nameRights   = fsMakeReg | fsMakeDir | fsMakeSym | fsRemoveFile | fsRemoveDir | fsRefer
	deviceRights = fsReadFile | contentRights | fsIoctlDev
	allRights    = 1<<17 - 1
)

// landlockABIs has all rights and scopes that an ABI knows, for the ABIs that
// brought new ones: those between know as much as the one before
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

// newRuleset returns a ruleset that handles all that the ABI knows. It removes
// the rights that the ABI does not know from the rules, and rules that have no
// rights left.
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

// HelperRuleset returns a ruleset for the fs helper, whose own resolver decides
// exactly what a request may touch; the ruleset is a second wall, and a coarser
// one (sandbox.md 13). Under it the helper reads where the policy lets something
// be read, writes below the writable roots and executes nothing. It lists every
// directory: a directory on the way to a readable path can be listed, and
// Landlock cannot allow that without allowing it for all directories below. What
// is denied below something readable stays readable here.
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
// the process has a mount view too, which denies and protects single paths: the
// ruleset lets everything be read that the view shows, and the writable roots
// and the view's own /dev and /proc be written.
//
// Without mounted, Landlock is all there is, and the policy protects nothing
// inside a writable root: only what the rules show can be read and executed. Of
// /dev the process gets the devices that give nothing away, and not the
// terminals in /dev/pts, which are the host's.
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

// SupervisorRuleset returns a ruleset for the supervisor of a command. It is the
// ceiling of what a mistake of the supervisor could do: it writes in the
// writable roots, in shm and in the few files of procfs and devices that a
// command may write, and makes no devices. What it may read the supervisor
// decides itself, call by call. shm is the directory that it has for the command
// in the place of /dev/shm, or "".
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
	r := newRuleset(abi, rules)
	r.Scoped = 0 // it judges the signals and sockets of the command by itself
	return r
}

// SupervisedRuleset returns a ruleset for a command whose calls a supervisor
// does, in that level. Under it the command can write nothing and open no device
// that tells anything: all that it gets, beyond what it may read, is a descriptor
// that the supervisor has opened. A file's rights are those of whoever has opened
// it. In LevelWrites the kernel opens files for reading, so the agent's own are
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
	for _, rule := range p.Rules {
		if rule.Access >= Read && pathname.Below(rule.Path, "/dev") {
			rules = append(rules, PathRule{Path: rule.Path, Rights: executeRights})
		}
	}
	return newRuleset(abi, rules)
}

// unixRights are the rights by which a process reaches the UNIX sockets of others.
func (p *Policy) unixRights() uint64 {
	if p.AllUnixSockets {
		return fsResolveUnix
	}
	return 0
}

// movesABI is the first ABI whose domains can allow everything with files: under
// an older one, no process in a domain can move a file to another directory.
const movesABI = 2

// NetworkRuleset returns a ruleset for processes that lose the network and
// nothing else. It allows everything with files. It is there because a process
// in a domain, whichever rules that has, can open neither the memory nor the
// descriptors of processes outside, and so gets no socket of theirs (ptrace(2),
// "Ptrace access mode checking"). Signals may still be sent. The ABI has to be
// movesABI or later. With an ABI before scopeABI the ruleset has to handle a
// right of files, and so the process cannot change mounts.
func NetworkRuleset(abi int) Ruleset {
	if abi >= scopeABI {
		// A ruleset has to handle something. This scope takes nothing more
		// away: the filter refuses to connect to abstract sockets anyway.
		return Ruleset{Scoped: scopeAbstractUnixSocket}
	}
	return Ruleset{FS: fsRefer, Rules: []PathRule{{Path: "/", Rights: fsRefer}}}
}

// exceptions returns, where Landlock is alone, the denied paths below path, and
// below the root also /dev: ProcessRuleset allows single devices by name.
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
