// Package seccomp says, as tables, what each filter of package enforce does with
// each system call. filtergen compiles the tables into the programs that enforce
// embeds, and the tests of enforce compare the programs with the tables. Nothing
// that runs in the agent imports this package. The package builds on every system. Its
// variables never change, so goroutines may use them concurrently.
package seccomp

import (
	"slices"

	"github.com/execagent/execagent/sandbox"
)

// Action says what happens to a call. It is a SECCOMP_RET value of linux/seccomp.h.
type Action uint32

// The actions other than [Errno].
const (
	Kill   Action = 0x80000000 // SIGSYS ends the whole process
	Notify Action = 0x7fc00000 // the call waits, and the listener decides
	Allow  Action = 0x7fff0000 // the kernel makes the call
)

// Errno returns the action that makes the call fail with that error.
func Errno(errno uint16) Action { return 0x00050000 | Action(errno) }

// The errors that calls fail with. Their numbers are the same on both
// architectures.
const (
	eperm      = 1
	eacces     = 13
	erofs      = 30
	enosys     = 38
	eopnotsupp = 95

	eprotonosupport = 93
)

// MaxReviewed is the highest call number that was reviewed when the tables
// were written (file_setattr, Linux 6.17). Later calls fail with ENOSYS in every
// filter. So do the x32 calls of amd64, because their numbers have bit 30 set.
const MaxReviewed = 469

// FirstUnified is the number of the first call for which libseccomp 2.5.4 has no name.
const FirstUnified = 451

// Unified has the calls from FirstUnified to MaxReviewed, whose numbers are the
// same on every architecture.
var Unified = map[string]uint32{
	"cachestat":         451,
	"fchmodat2":         452,
	"map_shadow_stack":  453,
	"futex_wake":        454,
	"futex_wait":        455,
	"futex_requeue":     456,
	"statmount":         457,
	"listmount":         458,
	"lsm_get_self_attr": 459,
	"lsm_set_self_attr": 460,
	"lsm_list_modules":  461,
	"mseal":             462,
	"setxattrat":        463,
	"getxattrat":        464,
	"listxattrat":       465,
	"removexattrat":     466,
	"open_tree_attr":    467,
	"file_getattr":      468,
	"file_setattr":      469,
}

// AMD64Only are calls that arm64 does not have. Any other name that an
// architecture does not know is a mistake.
var AMD64Only = map[string]bool{
	"access": true, "arch_prctl": true, "chmod": true, "chown": true, "creat": true, "futimesat": true, "ioperm": true, "iopl": true,
	"lchown": true, "link": true, "lstat": true, "mkdir": true, "mknod": true, "open": true, "readlink": true, "rename": true,
	"rmdir": true, "stat": true, "symlink": true, "unlink": true, "uselib": true, "utime": true, "utimes": true,
}

// Table says what one filter does.
type Table struct {
	Name string // of the program's file, without ".bpf"
	// Default is for the reviewed calls that no rule matches.
	Default Action
	// Rules apply in order: the first rule that matches a call decides.
	Rules []Rule
}

// Rule matches a call if Calls has its name and all conditions hold. Without
// conditions it matches every such call.
type Rule struct {
	Calls  []string
	Action Action
	When   []Cond
}

// Cond holds if the bits of an argument that are set in Mask are equal to Value.
// Where the kernel takes an argument as int, a condition has to ignore the upper
// 32 bits: a program may put anything there.
type Cond struct {
	Arg         int // from 0
	Mask, Value uint64
}

// int32Is returns the condition that an argument is value. It is for an argument that the
// kernel takes as int or unsigned int.
func int32Is(arg int, value uint32) Cond { return Cond{arg, 0xffffffff, uint64(value)} }

// Tables returns the tables of all filters, in new slices.
func Tables() []Table {
	tables := []Table{
		{Name: "helper", Default: Kill, Rules: helper()},
		{Name: "restricted", Default: Allow, Rules: restricted()},
		{Name: "enabled", Default: Allow, Rules: enabled()},
		{Name: "restricted-sockets", Default: Allow, Rules: restrictedSockets()},
		{Name: "managed", Default: Allow, Rules: managed(false, false)},
		{Name: "managed-unix", Default: Allow, Rules: managed(true, false)},
		{Name: "managed-sockets", Default: Allow, Rules: slices.Concat(judgedConnects(), managed(false, true))},
		{Name: "managed-held", Default: Allow, Rules: slices.Concat(held(), managed(false, false))},
		{Name: "managed-unix-held", Default: Allow, Rules: slices.Concat(held(), managed(true, false))},
		{Name: "managed-sockets-held", Default: Allow, Rules: slices.Concat(held(), managed(false, true))},
		{Name: "landlock", Default: Allow, Rules: landlock()},
		{Name: "hidden-paths", Default: Allow, Rules: hiddenPaths()},
		{Name: "network", Default: Allow, Rules: network()},
	}
	for _, s := range []struct {
		name  string
		level sandbox.Level
	}{{"supervised-w", sandbox.LevelWrites}, {"supervised-r", sandbox.LevelReads}, {"supervised-s", sandbox.LevelMetadata}} {
		tables = append(tables,
			Table{Name: s.name, Default: Allow, Rules: supervised(s.level, false)},
			Table{Name: s.name + "-sockets", Default: Allow, Rules: supervisedSockets(s.level)},
			Table{Name: s.name + "-online", Default: Allow, Rules: supervised(s.level, true)},
			Table{Name: s.name + "-managed", Default: Allow, Rules: supervisedManaged(s.level, false)},
			Table{Name: s.name + "-managed-held", Default: Allow, Rules: supervisedManaged(s.level, true)})
		if s.level >= sandbox.UnscopedLevel {
			tables = append(tables, Table{Name: s.name + "-unscoped", Default: Allow, Rules: unscoped(s.level)})
		}
	}
	return tables
}
