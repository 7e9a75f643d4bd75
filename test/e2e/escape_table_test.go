package e2e

import (
	"cmp"
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
