package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An argument of a call.
type argument struct {
	text  string
	value uintptr
	size  uintptr                // of the memory at value, where that is the next argument
	after func(value int) string // tells what the call has written there
}

// kinds make arguments, by the words of callOf.args.
var kinds = map[string]func(g *generator) argument{
	"dir":  (*generator).dir,
	"fd":   func(g *generator) argument { return number(g.slot()) },
	"slot": func(g *generator) argument { return number(firstSlot + g.IntN(slots)) },
	"zero": func(*generator) argument { return number(0) },
	"path": (*generator).pathArgument,
	"pathOrNull": func(g *generator) argument {
		if g.IntN(5) == 0 {
			return argument{text: "NULL"}
		}
		return g.pathArgument()
	},
	"target": func(g *generator) argument {
		return g.text(g.choose(40, "file", 15, "dir", 10, "../out", 10, "../out/file", 8, ".git", 5, "vault/x", 5, "nothing", 5, "loop", 3, "", 2, "/etc/passwd", 5, g.base+"/repo"))
	},
	"open":   (*generator).openFlags,
	"mode":   func(g *generator) argument { return octal(g.mode()) },
	"node":   (*generator).nodeMode,
	"device": func(g *generator) argument { return number(g.IntN(2) * 0x103) },
	"id":     (*generator).id,
	"unlink": func(g *generator) argument { return octal(g.bits(30, unix.AT_REMOVEDIR, 1, unix.AT_SYMLINK_NOFOLLOW)) },
	"rename": func(g *generator) argument {
		return octal(g.bits(30, unix.RENAME_NOREPLACE, 25, unix.RENAME_EXCHANGE, 1, 1<<5))
	},
	"link": func(g *generator) argument {
		return octal(g.bits(25, unix.AT_SYMLINK_FOLLOW, 20, unix.AT_EMPTY_PATH, 1, 1))
	},
	"at": func(g *generator) argument {
		return octal(g.bits(35, unix.AT_SYMLINK_NOFOLLOW, 20, unix.AT_EMPTY_PATH, 1, 1))
	},
	"statxAt": func(g *generator) argument {
		return octal(g.bits(35, unix.AT_SYMLINK_NOFOLLOW, 20, unix.AT_EMPTY_PATH, 1, 1, 5, 0x2000))
	},
	"xattr":    func(g *generator) argument { return octal(g.bits(15, unix.XATTR_CREATE, 15, unix.XATTR_REPLACE, 1, 4)) },
	"onExec":   func(g *generator) argument { return octal(g.bits(50, unix.O_CLOEXEC, 2, 1)) },
	"access":   func(g *generator) argument { return octal(g.bits(40, 4, 40, 2, 30, 1, 1, 8)) },
	"length":   func(g *generator) argument { return number(g.IntN(9000) - 100) },
	"basic":    func(*generator) argument { return octal(unix.STATX_BASIC_STATS) },
	"times":    (*generator).times,
	"timevals": (*generator).timevals,
	"utimbuf":  (*generator).utimbuf,
	"attribute": func(g *generator) argument {
		return g.text(g.choose(40, "user.one", 30, "user.two", 3, "security.x", 3, "trusted.x", 2, "user.", 2, "nothing", 2, "system.posix_acl_access", 1, "user."+strings.Repeat("x", 300)))
	},
	"value":  (*generator).content,
	"buffer": (*generator).buffer,
	"stat":   (*generator).stat,
	"statx":  (*generator).statx,
}

// sized are the kinds that are two arguments: memory, and its size.
var sized = map[string]bool{"value": true, "buffer": true}

// number is an argument that is a number.
func number(n int) argument { return argument{text: strconv.Itoa(n), value: uintptr(n)} }

// octal is an argument that is flags, or a mode.
func octal(n int) argument { return argument{text: fmt.Sprintf("%#o", n), value: uintptr(n)} }

// choose chooses one of the texts, which have their weights before them.
func (g *generator) choose(odds ...any) string {
	sum := 0
	for i := 0; i < len(odds); i += 2 {
		sum += odds[i].(int)
	}
	n := g.IntN(sum)
	for i := 0; ; i += 2 {
		if n -= odds[i].(int); n < 0 {
			return odds[i+1].(string)
		}
	}
}

// bits sets flags, which have their odds in percent before them.
func (g *generator) bits(odds ...int) (flags int) {
	for i := 0; i < len(odds); i += 2 {
		if g.IntN(100) < odds[i] {
			flags |= odds[i+1]
		}
	}
	return flags
}

// slot is the number of a descriptor, which may be open.
func (g *generator) slot() int {
	if g.IntN(50) == 0 {
		return []int{-1, 999, firstSlot + slots}[g.IntN(3)]
	}
	return firstSlot + g.IntN(slots)
}

// dir is a descriptor that a path begins at.
func (g *generator) dir() argument {
	if g.IntN(5) < 3 {
		return argument{text: "CWD", value: ^uintptr(99)} // AT_FDCWD
	}
	return number(g.slot())
}

// pathArgument is a path in memory, or what the kernel takes for none.
func (g *generator) pathArgument() argument {
	switch g.IntN(150) {
	case 0:
		return argument{text: "nowhere", value: 1}
	case 1:
		return g.text(strings.Repeat("x/", 2048)) // with its end this is one byte too much
	case 2:
		return g.text(strings.Repeat("./", 2045) + "file") // the longest that is allowed
	}
	return g.text(g.path())
}

// text is a text in memory.
func (g *generator) text(s string) argument {
	b := append([]byte(s), 0)
	shown := s
	if len(s) > 300 {
		shown = fmt.Sprintf("%s... (%d)", s[:10], len(s))
	}
	return argument{text: strconv.Quote(shown), value: g.keep(&b[0])}
}

// keep returns the address of something that lives as long as the generator.
func (g *generator) keep(b *byte) uintptr {
	g.kept = append(g.kept, b)
	return uintptr(unsafe.Pointer(b))
}

// path makes up a path.
func (g *generator) path() string {
	fd := strconv.Itoa(g.slot())
	lead := g.choose(
		46, "", 24, g.base+"/repo/", 2, g.base+"/out/", 3, "./", 3, "../", 3, "../repo/", 3, "dir/../", 2, "dirlink/", 2, "outdir/../repo/", 2, "//",
		6, "/proc/self/fd/"+fd+"/", 2, "/proc/self/cwd/", 1, "/proc/thread-self/cwd/", 1, "/dev/fd/"+fd+"/", 2, "/proc/self/root"+g.base+"/repo/",
		1, "/proc/"+strconv.Itoa(os.Getpid())+"/cwd/", 1, "/proc/thread-self/fd/"+fd+"/", 1, "a/../", 1, "nothing/../", 1, "file/../",
	)
	if strings.Contains(lead, "/fd/") && g.IntN(4) == 0 {
		return strings.TrimSuffix(lead, "/") // what the descriptor is of
	}
	name := g.choose(
		14, "file", 8, "dir", 14, "new", 8, "new2", 8, "dir/new", 5, "dir/x", 5, "dir/sub", 4, "dir/sub/deep", 4, "new/x", 4, "new2/y", 2, "x",
		4, "link", 4, "dirlink", 2, "dirlink/x", 3, "outlink", 3, "outdir", 2, "outdir/file", 2, "outdir/new", 2, "loop", 2, "loop/x", 3, "dangling",
		2, "gitlink", 2, "gitlink/HEAD", 2, "vaultlink", 2, "vaultlink/x", 2, "fifo", 2, "readonly", 1, "abs", 1, "chain",
		3, ".git", 2, ".git/HEAD", 2, ".git/new", 1, ".git/hooks/x", 2, ".codex", 1, ".codex/x", 1, ".agents", 1, ".aws",
		2, "vault", 2, "vault/x", 1, "vault/new", 2, "a.env", 1, "secret", 1, "secret/x",
		2, "a", 2, "a/b", 2, "a/b/locked", 2, "a/b/locked/x", 1, "a/b/locked/new", 2, "a/new", 2, "a/b/x", 1, "a/b/locked/open", 2, "a/b/locked/open/new", 1, "a/b/locked/open/x",
		3, ".", 2, "..", 2, "../out", 2, "../out/file", 1, "../out/new", 1, "../..", 1, "", 1, strings.Repeat("n", 255), 1, strings.Repeat("n", 256),
	)
	return lead + name + g.choose(80, "", 7, "/", 3, "/.", 3, "/..", 1, "//", 2, "/x", 2, "/../file", 1, "/./")
}

// mode is one of a file.
func (g *generator) mode() int {
	switch n := g.IntN(100); {
	case n < 30:
		return g.IntN(0o2000)
	case n < 33: // a filter refuses set-user-ID, whatever else is wrong
		return g.IntN(0o10000)
	}
	return []int{0o644, 0o755, 0o777, 0o600, 0o666, 0o1777, 0o700, 0o400}[g.IntN(8)]
}

// openFlags are flags of open(2). The call must not wait, so O_NONBLOCK is always among them.
func (g *generator) openFlags() argument {
	flags := unix.O_NONBLOCK | g.bits(
		35, unix.O_CREAT, 15, unix.O_EXCL, 15, unix.O_TRUNC, 8, unix.O_APPEND, 10, unix.O_DIRECTORY, 12, unix.O_NOFOLLOW, 8, unix.O_PATH,
		5, unix.O_TMPFILE, 40, unix.O_CLOEXEC, 3, unix.O_NOCTTY, 3, unix.O_NOATIME, 2, unix.O_SYNC, 2, unix.O_DSYNC, 2, unix.O_LARGEFILE, 1, 1<<30,
	)
	switch n := g.IntN(100); {
	case n < 25:
		flags |= unix.O_WRONLY
	case n < 50:
		flags |= unix.O_RDWR
	case n < 53:
		flags |= unix.O_ACCMODE
	}
	return octal(flags)
}

// nodeMode is a mode with the kind of a file.
func (g *generator) nodeMode() argument {
	kinds := []int{0, unix.S_IFREG, unix.S_IFREG, unix.S_IFIFO, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFDIR, unix.S_IFLNK, 0o170000}
	return octal(g.mode()&0o7777 | kinds[g.IntN(len(kinds))])
}

// id is a user or a group: as it is, our own, or another one. Without capabilities the user and the
// group have the same number here.
func (g *generator) id() argument {
	return number([]int{-1, -1, unix.Getuid(), unix.Getuid(), 12345}[g.IntN(5)])
}

// times are two of utimensat(2).
func (g *generator) times() argument {
	if g.IntN(6) == 0 {
		return argument{text: "NULL"}
	}
	var ts [2]unix.Timespec
	for i := range ts {
		ts[i] = unix.Timespec{Sec: int64(g.IntN(1e8)), Nsec: []int64{0, 1e6, unix.UTIME_NOW, unix.UTIME_OMIT, 2e9}[pickIndex(g, 10, 5, 3, 3, 1)]}
	}
	g.kept = append(g.kept, &ts)
	return argument{text: fmt.Sprint(ts), value: uintptr(unsafe.Pointer(&ts))}
}

// timevals are two of utimes(2).
func (g *generator) timevals() argument {
	if g.IntN(6) == 0 {
		return argument{text: "NULL"}
	}
	var ts [2]unix.Timeval
	for i := range ts {
		ts[i] = unix.Timeval{Sec: int64(g.IntN(1e8)), Usec: []int64{0, 1e3, 2e6, -1}[pickIndex(g, 10, 5, 1, 1)]}
	}
	g.kept = append(g.kept, &ts)
	return argument{text: fmt.Sprint(ts), value: uintptr(unsafe.Pointer(&ts))}
}

// utimbuf has two times of utime(2).
func (g *generator) utimbuf() argument {
	if g.IntN(6) == 0 {
		return argument{text: "NULL"}
	}
	ts := [2]int64{int64(g.IntN(1e8)), int64(g.IntN(1e8))}
	g.kept = append(g.kept, &ts)
	return argument{text: fmt.Sprint(ts), value: uintptr(unsafe.Pointer(&ts))}
}

// pickIndex returns the number of one of the weights.
func pickIndex(g *generator, weights ...int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := g.IntN(sum)
	return slices.IndexFunc(weights, func(w int) bool { n -= w; return n < 0 })
}

// content is what is written.
func (g *generator) content() argument {
	b := []byte(strings.Repeat(string(rune('a'+g.IntN(26))), []int{0, 1, 7, 300, 5000}[pickIndex(g, 1, 5, 5, 3, 1)]))
	if len(b) == 0 {
		return argument{text: "nothing"}
	}
	return argument{text: fmt.Sprintf("%d times %c", len(b), b[0]), value: g.keep(&b[0]), size: uintptr(len(b))}
}

// buffer is for what is read.
func (g *generator) buffer() argument {
	b := make([]byte, []int{0, 3, 64, 4096}[pickIndex(g, 1, 1, 2, 10)])
	a := argument{text: strconv.Itoa(len(b)), size: uintptr(len(b))}
	if len(b) > 0 {
		a.value = g.keep(&b[0])
	}
	a.after = func(n int) string { return textOf(b[:min(n, len(b))]) }
	return a
}

// stat is memory for struct stat.
func (g *generator) stat() argument {
	if g.IntN(100) == 0 {
		return argument{text: "nowhere", value: 1}
	}
	st := new(unix.Stat_t)
	g.kept = append(g.kept, st)
	return argument{text: "stat", value: uintptr(unsafe.Pointer(st)), after: func(int) string { return describe(st) }}
}

// statx is memory for struct statx.
func (g *generator) statx() argument {
	st := new(unix.Statx_t)
	g.kept = append(g.kept, st)
	return argument{text: "statx", value: uintptr(unsafe.Pointer(st)), after: func(int) string {
		return describe(&unix.Stat_t{Mode: uint32(st.Mode), Nlink: linksOf(st), Uid: st.Uid, Gid: st.Gid, Size: int64(st.Size), Mtim: unix.Timespec{Sec: st.Mtime.Sec}})
	}}
}
