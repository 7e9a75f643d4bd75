// Package seccomp says, as tables, what each filter of package enforce does
// with each system call. filtergen compiles the tables into the programs that
// enforce embeds, and its tests hold the programs against them;
// nothing that runs in the agent imports this package.
package seccomp

// Action is what becomes of a call: a SECCOMP_RET value of linux/seccomp.h.
type Action uint32

// The actions, but for [Errno].
const (
	Kill   Action = 0x80000000 // of the whole process, by SIGSYS
	Notify Action = 0x7fc00000 // the listener decides
	Allow  Action = 0x7fff0000
)

// Errno makes the call fail.
func Errno(errno uint16) Action { return 0x00050000 | Action(errno) }

// The errors that calls fail with; the same on both architectures.
const (
	eperm      = 1
	eacces     = 13
	erofs      = 30
	enosys     = 38
	eopnotsupp = 95
)

// MaxReviewed is the highest call number that was looked at when the tables
// were written (file_setattr, Linux 6.17): what came later fails with ENOSYS
// in every filter, as do the x32 calls of amd64, whose numbers have bit 30 set.
const MaxReviewed = 469

// FirstUnified is the first call that libseccomp 2.5.4 has no name for.
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
	"arch_prctl": true, "chmod": true, "chown": true, "creat": true, "futimesat": true, "ioperm": true, "iopl": true,
	"lchown": true, "mknod": true, "open": true, "uselib": true, "utime": true, "utimes": true,
}

// Table is a filter.
type Table struct {
	Name string
	// Default is for the reviewed calls that no rule matches.
	Default Action
	// Rules are looked at in order: the first that matches a call decides.
	Rules []Rule
}

// Rule is about some calls, if their arguments are as all of When say.
type Rule struct {
	Calls  []string
	Action Action
	When   []Cond
}

// Cond is about an argument of a call: its bits in Mask are Value. Arguments
// that the kernel takes as int have 32 bits that count, whatever a program puts
// above them.
type Cond struct {
	Arg         int
	Mask, Value uint64
}

// int32Is is for arguments that the kernel takes as int or unsigned int.
func int32Is(arg int, value uint32) Cond { return Cond{arg, 0xffffffff, uint64(value)} }

// Tables are all filters.
func Tables() []Table {
	return []Table{
		{Name: "helper", Default: Kill, Rules: helper()},
		{Name: "restricted", Default: Allow, Rules: restricted()},
		{Name: "enabled", Default: Allow, Rules: enabled()},
		{Name: "landlock", Default: Allow, Rules: landlock()},
		{Name: "hidden-paths", Default: Allow, Rules: hiddenPaths()},
		{Name: "network", Default: Allow, Rules: network()},
	}
}
