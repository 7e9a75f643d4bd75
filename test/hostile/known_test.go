package hostile

import (
	"regexp"
	"slices"
	"strings"
)

// difference is one between the backends that has a reason.
type difference struct {
	calls string         // their names; "" is all
	args  *regexp.Regexp // nil: any
	says  *regexp.Regexp // the result of the supervised one; nil: any
	mode  mode           // "": any
	// The errors, alternatives of each other: "ok" is success, and "failure" any error.
	namespaces, supervised string
	why                    string
}

var known = []difference{
	{
		calls: "rename renameat renameat2 link linkat linkfd whole temporary", namespaces: "EXDEV", supervised: "ok failure",
		why: "in a view, writable roots, carve-outs and folders above them are mounts: nothing is moved or linked from one to the other",
	},
	{
		args: setID, namespaces: "EPERM", supervised: "ok failure",
		why: "the filter refuses a mode with set-user-ID before anything else is looked at",
	},
	{
		calls: "mknod mknodat", args: device, namespaces: "ok failure", supervised: "EPERM",
		why: "a supervisor makes no devices, not even those with the number 0, and says so before it looks at the path",
	},
	{
		namespaces: "ENAMETOOLONG", supervised: "failure",
		why: "a supervisor has not looked at a name that is too long when it says what else is wrong",
	},
	{
		namespaces: "failure", supervised: "ENAMETOOLONG",
		why: "and the other way round, where it looks at two names",
	},
	{
		args: upwards, namespaces: "ok failure", supervised: "EACCES",
		why: "after .. a supervisor walks down from the root again, so it has to be able to pass all folders above",
	},
	{
		args: inProc, namespaces: "failure", supervised: "EROFS",
		why: "to a supervisor procfs is read-only as a whole; the kernel's knows what is there first",
	},
	{
		calls: "fchownat lchown utimensat faccessat2", args: inProc, namespaces: "ok", supervised: "EROFS",
		why: "the kernel lets a process change its own links in procfs, which means nothing",
	},
	{
		calls: "lstat newfstatat statx", args: inProc, namespaces: "ok", supervised: "ok",
		why: "and those times and owners are told",
	},
	{
		namespaces: "failure", supervised: "EBUSY",
		why: "what a rule is about is not moved or removed; a view says first what else is wrong",
	},
	{
		calls: "link linkat linkfd", namespaces: "failure", supervised: "EXDEV",
		why: "what may not be changed gets no other name; a view says first what else is wrong",
	},
	{
		calls: "open openat", args: accessMode3, namespaces: "ok", supervised: "EROFS",
		why: "the access mode 3 is for ioctl alone; a supervisor takes it for writing, as far as a view is read-only",
	},
	{
		mode: denying, namespaces: "failure", supervised: "EACCES ENOENT",
		why: "in a view something empty is in the place of what is denied, and is a mount",
	},
	{
		calls: "stat lstat newfstatat statx", says: typeAlone, mode: denying, namespaces: "ok", supervised: "ok",
		why: "of what is denied a supervisor tells the type alone; a view has something empty there",
	},
	{
		calls: "open openat", args: pathOnly, mode: denying, namespaces: "ok", supervised: "EACCES",
		why: "the same: what is empty in a view can be held with O_PATH",
	},
	{
		calls: "listxattr llistxattr statfs watch", mode: denying, namespaces: "ok", supervised: "EACCES",
		why: "the same: what is empty in a view can be asked about",
	},
	{
		calls: "getxattr lgetxattr", namespaces: "ERANGE", supervised: "failure",
		why: "a supervisor looks at the path before the kernel looks at the name of the attribute",
	},
	{
		calls: "rename renameat renameat2", mode: denying, namespaces: "ok ENOTDIR ENOTEMPTY EISDIR", supervised: "EACCES",
		why: "a supervisor looks for what a glob would deny in a folder before that is moved, and has to be able to read it",
	},
	{
		args: absent, mode: missing, namespaces: "ok failure", supervised: "ok failure",
		why: "a view has a placeholder where a supervisor has nothing",
	},
	{
		calls: "list", mode: missing, namespaces: "ok", supervised: "ok",
		why: "placeholders are listed",
	},
	{
		calls: "fchownat fchown chown lchown", args: stranger, namespaces: "EINVAL", supervised: "EPERM EROFS",
		why: "a user namespace has no number for other users",
	},
}

var (
	upwards     = regexp.MustCompile(`\.\.`)
	setID       = regexp.MustCompile(`\b0[0-7]*[2-7][0-7]{3}\b`)
	device      = regexp.MustCompile(`\b0[26][0-7]{4}, [0-9]+$`)
	inProc      = regexp.MustCompile(`/proc/|/dev/fd/`)
	pathOnly    = regexp.MustCompile(`, 0[0-7]*[1357][0-7]{7}, [0-7]+$`)
	accessMode3 = regexp.MustCompile(`, 0[0-7]*[37], [0-7]+$`)
	typeAlone   = regexp.MustCompile(` mtime 0$`)
	absent      = regexp.MustCompile(`\.codex|\.agents|\.aws|secret`)
	stranger    = regexp.MustCompile(`\b12345\b`)
)

// explain returns the row of the table that says why two results differ; nil if none does.
func explain(m mode, a, b made) *difference {
	in := func(list, end string) bool {
		ends := strings.Fields(list)
		return slices.Contains(ends, end) || slices.Contains(ends, "failure") && end != "ok"
	}
	for i, d := range known {
		if (d.calls == "" || slices.Contains(strings.Fields(d.calls), a.Call)) && (d.mode == "" || d.mode == m) &&
			in(d.namespaces, kindOf(a)) && in(d.supervised, kindOf(b)) && (d.args == nil || d.args.MatchString(a.Args)) &&
			(d.says == nil || d.says.MatchString(b.Result)) {
			return &known[i]
		}
	}
	return nil
}
