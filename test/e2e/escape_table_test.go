package e2e

import (
	"cmp"
	"slices"
	"strings"
)

// ends are what an attempt may end with in each mode: names of errors, the signal that killed it,
// or "ok". An empty net or tty means: as ww; an empty ww: as ro. All other modes are as ro, but
// for differences.
type ends struct{ ro, ww, net, tty string }

func (e ends) in(mode string) string {
	writing := cmp.Or(e.ww, e.ro)
	switch mode {
	case "ww", "work":
		return writing
	case "net":
		return cmp.Or(e.net, writing)
	case "tty":
		return cmp.Or(e.tty, writing)
	}
	return e.ro
}

const (
	refused = "EPERM"
	// kept is how a change to a read-only place ends, and foreign a change to a file there that
	// belongs to another user.
	kept    = "EROFS"
	foreign = "EROFS EACCES"
	// stuck is how it ends to move a mount point, or something into or out of one.
	stuck  = "EBUSY EROFS EXDEV"
	denied = "EACCES"
	absent = "ENOENT"
	// hidden is how it ends to look in a procfs at a process that may not be traced; which error
	// it is depends on whether somebody has looked before.
	hidden = "ENOENT EPERM"
	// unseen is how it ends to reach for a process in another namespace, or in another domain of
	// Landlock.
	unseen = "ESRCH EPERM"
)

// escapes says how each attempt of test/e2e/escape must end, by its number. Plain numbers are
// those of sandbox.md 17, numbers with an x are ours.
var escapes = endsOf(map[ends]string{
	{ro: kept, ww: "ok"}:              "1 18b",
	{ro: kept}:                        "2a 2d 2e 3 4 7a 8 14a 14b 14c 15 16 17 18a 24 40 x1a x1b x1c x1d x3c x3d x4a x4b x5e x5f x5g x5h x8a x8b x8c x8f x8h x11o",
	{ro: foreign}:                     "2b 2c 21 23a x20b x20d x20e x20f",
	{ro: kept, ww: "EEXIST EROFS"}:    "5 x2f",
	{ro: kept, ww: "EBUSY"}:           "6 x11a x11b x11c x11d x11e x11h x11i x11j x11l x11p",
	{ro: kept, ww: "EROFS EBUSY"}:     "7b",
	{ro: kept, ww: "EXDEV"}:           "9 x10a x10b x10c x10d",
	{ro: kept, ww: "EROFS EXDEV"}:     "10 11",
	{ro: denied}:                      "12 13 x3a x3f x4c x5a x5b",
	{ro: "EPERM EROFS", ww: refused}:  "19a 19b",
	{ro: absent}:                      "20a 20b 20c 20d 20e 20f 26 52 57 x6 x32 x37a x37b x52 x57a x57b x57c x57d x57e x57f x57g x57h",
	{ro: foreign + " ENOENT"}:         "22 23b 23c x20a x20c x21i x21j",
	{ro: hidden}:                      "25a 25b 25c 25d 25e 25f 25g 25h 25i 36a x36f x36g",
	{ro: unseen}:                      "27a 27b 27c 27d 27e x30f x30g x31a x31b x31c x31d x31f x31g x31h x31i",
	{ro: "ok " + unseen}:              "28",                        // its own tree; nobody outside has heard it
	{ro: refused, net: "ok"}:          "29 43a 43b 44 45a 50 x45a", // 45a: it asks, and may change nothing; x45a: tracing is allowed there
	{ro: refused, net: "EPERM ESRCH"}: "30",
	{ro: refused}: "31 32 33 34a 34b 34c 34d 34e 34f 34g 35a 35b 36b 36c 37 38a 38b 39a 39b 39c 41a 41b 41c 42 46a 46b 47a 47b 47c 49a 49b 51a 51b 51c 53 54b 54c " +
		"54d 54e 54f 55a 55e x30a x30b x30c x30d x30e x31e x33 x34 x36a x36b x36c x36d x36e x40a x40b x40c x40d x40e x40f x40g x41a x41b x42a x42b " +
		"x42c x42d x42e x43a x43b x43c x43d x43e x43f x43g x43h x43i x43j x43k x43l x43m x43n x44 x45b x46 x48 x49 x50h x60a x60b x60d x80e x80f x80g " +
		"x81a x81b x82a x82b x82c",
	{ro: "ENOSYS"}:                                               "34h 62a 62b 62c x50 x80h",
	{ro: refused, net: "ok EAFNOSUPPORT"}:                        "43c",
	{ro: refused, net: "ok EPROTONOSUPPORT ENOPROTOOPT"}:         "43d",
	{ro: refused, net: "ok EPROTONOSUPPORT"}:                     "45b",
	{ro: refused, net: "EACCES EPERM ECONNREFUSED"}:              "48a 48c 48e 48f 48g",
	{ro: refused, net: "EACCES EPERM ECONNREFUSED ELOOP ENOENT"}: "48b",
	{ro: kept, ww: refused, net: "EACCES EPERM ECONNREFUSED"}:    "48d",
	{ro: refused, net: "EBADF"}:                                  "48h",
	{ro: refused, net: "ECONNREFUSED"}:                           "48i 48j",
	{ro: "EINVAL"}:                                               "54a",
	{ro: "EINVAL EPERM"}:                                         "55b 55c 55d",
	{ro: "EBADF"}:                                                "56 x5c",
	{ro: "ok"}:                                                   "60a x35 x47 x50d x50e x60c x70a x70b x70c", // 60a: its own; x60c: segments of its own; x70a: the policy shows it
	{ro: "ENOSPC"}:                                               "60b",
	{ro: "SIGSYS EFAULT"}:                                        "61", // EFAULT: this kernel has no 32-bit entry
	{ro: "ENOENT EROFS", ww: kept}:                               "x2a x2c",
	{ro: "ENOENT EROFS", ww: stuck}:                              "x2b x2e",
	{ro: kept, ww: foreign}:                                      "x2d",
	{ro: kept, ww: stuck}:                                        "x3b x11f x11g",
	{ro: "EACCES EROFS"}:                                         "x3e",
	{ro: "EROFS EACCES EPERM"}:                                   "x5d",
	{ro: "EROFS ENOSYS"}:                                         "x5i x5j x5k",
	{ro: "EPERM ENOSYS"}:                                         "x5l",
	{ro: "EXDEV"}:                                                "x7a x7b",
	{ro: "EROFS ESPIPE", tty: "EROFS EPERM"}:                     "x8d x8e",
	{ro: "EROFS EPERM"}:                                          "x8g",
	{ro: stuck}:                                                  "x8i x8j",
	{ro: "ENOENT EROFS", ww: "EXDEV"}:                            "x10e",
	{ro: "ENOENT EROFS", ww: "EBUSY"}:                            "x11k x11m",
	{ro: "EPERM EROFS", ww: "ok EPERM"}:                          "x11n", // no device
	{ro: "EACCES EIO ENOENT"}:                                    "x21a x21e x21f x21g x21h",
	{ro: "EACCES EIO"}:                                           "x21b x21c",
	{ro: "EACCES EPERM EIO ENOENT"}:                              "x21d",
	{ro: "EACCES ENOENT"}:                                        "x22a x22b x22c",
	{ro: "EPERM EROFS EACCES"}:                                   "x23a x23b x23c x23d",
	{ro: "ok EINVAL EPERM EROFS EACCES"}:                         "x23e", // once, and of itself
	{ro: "ENODEV", net: "ok ENODEV"}:                             "x24",
	{ro: refused, net: "ok EPERM"}:                               "x50a x50b x50c",
	{ro: refused, net: "ok EAFNOSUPPORT ENOENT"}:                 "x50f",
	{ro: refused, net: "EPERM EAFNOSUPPORT"}:                     "x50g",
	{ro: kept, ww: refused}:                                      "x80a x80b x80c x80d x80i",
})

// endsOf turns a table around: the key of what it returns is the number of an attempt.
func endsOf(table map[ends]string) map[string]ends {
	all := map[string]ends{}
	for end, numbers := range table {
		for number := range strings.FieldsSeq(numbers) {
			if _, twice := all[number]; twice {
				panic("two ends of attempt " + number)
			}
			all[number] = end
		}
	}
	return all
}

// difference says what some attempts end with in some modes or at some sites, in place of what
// the table says. The attempt fails there just as well, only with another error, unless the end
// is "ok": then the comment at the difference says why nobody is harmed.
type difference struct {
	in       func(s escapeSite, mode string) bool
	attempts string // numbers
	ends     string
}

// differences are tried in this order; the last one that applies to an attempt counts.
var differences = []difference{
	// plain denies nothing.
	{plain, "12 13 x3a x3f x4c", "ok"},

	// A path that the mode view does not show does not exist.
	{and(view, not(noMounts)), "2a 2d 2e 8 9 10 12 13 14a 14b 14c 15 16 17 18a 23a 24 40 48b 48c 53 " +
		"x3a x3c x3d x3e x3f x4a x4c x5a x5b x5c x5d x5e x5f x5g x5h x8f x10b x10c x46 x47 x70a x70b x70c", absent},
	{and(view, not(noMounts)), "3", "EROFS ENOENT"}, // whether the workspace is in /tmp
	{and(view, not(noMounts)), "11", "EXDEV"},       // both names are mount points
	// The engine's filter does not know these calls.
	{and(view, not(noMounts)), "x5i x5j x5k", "ENOENT ENOSYS"},

	// The engine's filter refuses personality, and the audit of the kernel with an error of its
	// own.
	{and(withNetwork, container), "x45a", "ENOSYS"},
	{and(withNetwork, privileged), "x45a", "ok"},
	{and(withNetwork, container), "45b", "ok EPROTONOSUPPORT EINVAL"},

	// The agent is process 1 of its container, and a group of that number is everybody: as 28,
	// own tree only.
	{container, "27e", "ok " + unseen},
	// Where there is a PID namespace, process 1 is not the agent but init, which is its own.
	{and(container, ownPIDs), "x31a x31b x31c x31f x31g", "ok EPERM"},
	// Without Landlock, signals reach init. It passes them on to the command, or takes no notice;
	// a command that makes it fail ends itself.
	{unguarded, "x30b x30c", "ok"},
	{and(container, unguarded), "27a 27c 27d", "ok"},

	// Without a procfs of their own, commands see the list of the container's processes, and
	// everything that says more about them is refused.
	{publicProc, "26", "ok"},
	{publicProc, "x57a x57b x57c x57d x57g x57h", denied},
	{publicProc, "25a 25b 25c 25d 25e 25f 25g 25h", denied},
	{publicProc, "36a", "EACCES EPERM"},
	{publicProc, "x57e x57f 25i x36f x36g", foreign},
	// Asking for a signal does not send one: Landlock stops it on its way, and the process
	// outside has received none.
	{and(publicProc, not(ownPIDs)), "x31d", "ok EPERM"},
	// A process in a PID namespace can name nobody outside, whatever it has open. Otherwise
	// Landlock refuses.
	{publicProc, "x37a x37b", "EINVAL"},
	{and(publicProc, not(ownPIDs)), "x37a x37b", refused},

	// Landlock cannot make a file system read-only. The operations that it does not cover are
	// refused by the filter, with EROFS.
	{noMounts, "1 2a 2d 2e 3 4 5 6 7a 7b 8 9 10 11 16 17 18a 18b 19a 19b 24 40 48d x1d x2d x2f x3b x4a x4b x5e x8i " +
		"x80a x80b x80c x80d x80e x80f x80g x80h x80i x10a x10b x10c x10d x11a x11b x11c x11d x11e x11f x11g x11h x11i x11j x11l x11n x11o x11p", denied},
	// Commands have no devices of their own there, and so no /dev/shm.
	{noMounts, "52 x52 60a", denied},
	// Nor do they have a namespace for System V segments: the calls are refused altogether.
	{noMounts, "x32", refused},
	// Paths that the view leaves out are refused, not missing; and there is no /proc.
	{and(noMounts, view), "12 13 53 x3a x3f x4c x5a x5b x5c x5d x5f x5g x5h x24 x37a x37b x46 x47 x70c x82a x82b x82c", denied},
	{and(noMounts, view), "26", absent},
	// A command can learn whether a path exists and where a link leads: without a view nothing
	// can refuse stat(2) and readlink(2). The documentation of the sandbox says so, and
	// --sandbox-minimum=full refuses to run commands that way.
	{and(noMounts, view), "x70a x70b", "ok"},

	// A supervisor has no mounts to answer with. The error is that of the name itself: a denied
	// one is refused, one that the view does not show is missing, and a protected name that does
	// not exist needs no placeholder.
	{supervised, "x3c x3d x3b x8g", denied},
	{and(supervised, writing), "x2e x2f x10b x11i x11j x11m", denied},
	{and(supervised, not(writing)), "x11h x11i", denied},
	{and(supervised, writing), "x2a x2c x10e", absent},
	{and(supervised, writing), "x11k x11l", kept},
	{and(supervised, view), "1 3 5 6 18b x2d x2f x3b x3c x3d x10a x10d x11a x11f x11g x11h x11i x11j x11l x11p 48d " +
		"x80a x80b x80c x80d x80i", absent},
	{and(supervised, view), "11", kept},
	// The workspace itself cannot be opened.
	{and(supervised, view), "x82a x82b x82c", denied},
	// What others have in /dev is refused, what others have for memory too.
	{supervised, "52 x52", denied},
	{supervised, "x32", refused},
	// Processes of the container are missing in /proc, and interfaces refused.
	{and(supervised, not(withNetwork)), "x24", denied},
	// With the network a supervisor gives fewer kinds of sockets than namespaces do. And nobody
	// traces, whatever the network is: a tracer could take the place of what was judged.
	{and(supervised, withNetwork), "x50f", refused},
	{and(supervised, withNetwork), "29 x45a", refused},
	// Landlock stops the signal on its way, as above.
	{supervised, "x31d", "ok EPERM"},

	// Nor are the devices of a machine, of which containers have few.
	{and(supervised, not(container)), "20a 20b 20c 20d 20e 20f", "EACCES ENOENT"},
	// An ordinary user cannot empty the bounding set, but in a user namespace. It leads nowhere:
	// no program gives capabilities under no_new_privs.
	{and(supervised, and(not(container), not(asRoot))), "54e", "ok"},
	// Engines mask it. A machine shows it to everybody.
	{and(supervised, not(container)), "x22b", "ok EACCES ENOENT"},
	// Engines refuse it. Here it is as with namespaces.
	{and(and(supervised, withNetwork), not(container)), "x45a", "ok"},
	// The kernel may have no such sockets.
	{and(supervised, not(container)), "x50f", "EPERM EAFNOSUPPORT"},

	// Where reads are judged and metadata is not, Landlock keeps links and directories of
	// others' processes out of reach.
	{and(old, open), "x3b x3c x3d x11h x11i", kept},
	{and(old, open), "25f x57c", denied},

	// In the lowest level nobody is asked about reads. Landlock keeps them from what is in
	// processes of others, which are listed.
	{direct, "x3b", kept},
	{direct, "x3c x3d x11h x11i", kept},
	{direct, "26", "ok"},
	{direct, "25a 25b 25c 25d 25e 25f 25g x57a x57b x57c x57d x57g x57h 36a", denied},
	{direct, "x37a x37b", refused},
	{direct, "x8g", kept},
	{direct, "x24", "ENODEV"},
	// The agent's records cannot be read, but their names be listed: Landlock allows that for
	// all directories below one that may be listed.
	{direct, "x6", "ok ENOENT"},
	// Uid 0 needs no capability for them, and no rule of Landlock can leave them out and have
	// the processes that are still to come.
	{and(direct, asRoot), "x21f x21g x21h", "ok"},
	// Engines mask these. The first takes a capability.
	{and(and(direct, asRoot), not(container)), "x21a", "EPERM"},
	{and(and(direct, asRoot), not(container)), "x21c x21e", "ok"},
	// An agent of root has records that others cannot look for.
	{and(and(direct, not(asRoot)), not(container)), "x6", "EACCES ENOENT"},

	// With visible metadata a command may learn what exists, where links lead, and watch what is
	// there. Landlock keeps others' processes.
	{and(visible, not(direct)), "25f x57c", denied},
	{and(visible, view), "x70a x70b x70c x47", "ok"},
	{and(visible, view), "48c", refused},

	// The filter of this engine, which is not Docker's, does not know these calls, or answers them
	// before a supervisor can.
	{and(enginesOwn, writing), "x80d x45a", "EPERM ENOSYS"},
	{enginesOwn, "x50f", "EPERM EAFNOSUPPORT"},

	// What the other modes deny is a part of the workspace here.
	{work, "12 13 x2d x2e x2f x3a x3b x3c x3d x3e x3f x4c x10b x10e x11h x11i x11j x11m", "ok ENOENT"},
	{work, "x11n", "ok EPERM ENOENT"},
}

func (s escapeSite) expected(want ends, n, mode string) string {
	expected := want.in(mode)
	for _, d := range differences {
		if d.in(s, mode) && slices.Contains(strings.Fields(d.attempts), n) {
			expected = d.ends
		}
	}
	return expected
}

func plain(_ escapeSite, mode string) bool       { return mode == "plain" }
func view(_ escapeSite, mode string) bool        { return mode == "view" }
func withNetwork(_ escapeSite, mode string) bool { return mode == "net" }
func container(s escapeSite, _ string) bool      { return s.containers != nil }
func publicProc(s escapeSite, _ string) bool {
	return slices.Contains([]means{sharedPIDs, sharedUnguarded, landlockOnly}, s.kind.means)
}
func unguarded(s escapeSite, _ string) bool {
	return slices.Contains([]means{noLandlock, sharedUnguarded, nothing}, s.kind.means)
}
func ownPIDs(s escapeSite, mode string) bool { return !publicProc(s, mode) || unguarded(s, mode) }
func supervised(s escapeSite, _ string) bool {
	return s.kind.means == supervisor || s.kind.means == oldSupervisor
}
func old(s escapeSite, _ string) bool        { return s.kind.means == oldSupervisor }
func work(_ escapeSite, mode string) bool    { return mode == "work" }
func visible(s escapeSite, _ string) bool    { return slices.Contains(s.flags, metadataVisible) }
func open(s escapeSite, mode string) bool    { return plain(s, mode) || work(s, mode) }
func direct(s escapeSite, mode string) bool  { return s.kind.means == supervisor && open(s, mode) }
func asRoot(s escapeSite, _ string) bool     { return s.uid == 0 }
func writing(_ escapeSite, mode string) bool { return writes(mode) }
func enginesOwn(s escapeSite, _ string) bool { return s.kind.name == "root without capabilities" }
func privileged(s escapeSite, _ string) bool { return s.kind.name == "privileged" }
func noMounts(s escapeSite, _ string) bool   { return s.kind.means == landlockOnly }

type condition = func(s escapeSite, mode string) bool

func and(a, b condition) condition {
	return func(s escapeSite, mode string) bool { return a(s, mode) && b(s, mode) }
}

func not(a condition) condition {
	return func(s escapeSite, mode string) bool { return !a(s, mode) }
}
