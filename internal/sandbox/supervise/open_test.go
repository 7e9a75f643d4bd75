package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestOpensAsBare opens all kinds of files with all flags that matter, without a
// filter and in each level, in equal directories: results, errors, the flags of the
// descriptors and what is made are the same.
func TestOpensAsBare(t *testing.T) {
	t.Parallel()
	run := func(level sandbox.Level) string {
		dir := t.TempDir()
		prepareOpens(t, dir)
		return supervised(t, Config{Policy: workspace(t, filepath.Dir(dir))}, level, "opens", dir)
	}
	want := run(sandbox.NoLevel)
	if n := strings.Count(want, "\n"); n < 20_000/flagSteps() {
		t.Fatalf("only %d lines:\n%s", n, want)
	}
	for _, level := range []sandbox.Level{sandbox.LevelWrites, sandbox.LevelReads, sandbox.LevelMetadata} {
		if got := run(level); got != want { // which is much to compare
			rig.Same(t, fmt.Sprintf("level %s, bare and supervised", level), strings.Split(want, "\n"), strings.Split(got, "\n"))
		}
	}
}

// flagSteps returns how many sets of flags there are to each one that is tried. Seven has no factor in
// common with the sets, so in each push every flag is tried, with and without every other one.
func flagSteps() int {
	if rig.Runs(rig.Merge) {
		return 1
	}
	return 7
}

// prepareOpens makes what the child finds.
func prepareOpens(t *testing.T, dir string) {
	t.Helper()
	sandboxtest.Tree(t, dir, "file=content", "dir/file=content", "link -> file", "dangling -> missing", "dangling-slash -> missing/",
		"linkdir -> dir", "loop -> loop", "magic -> /proc/self/cwd/dir", "fifo|")
	rig.Must(t, unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o644, 0))
	// The umask of this process is that of whatever is supervised at the moment.
	for name, mode := range map[string]os.FileMode{"": 0o755, "file": 0o644, "dir": 0o755, "dir/file": 0o644, "fifo": 0o644, "socket": 0o644} {
		rig.Must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
}

var openedPaths = []string{
	"file", "missing", "dir", "link", "dangling", "linkdir", "loop", "magic", "fifo", "socket",
	"file/", "missing/", "dir/", "link/", "linkdir//", "dangling/", "dangling-slash", "dir/.", "dir/..", ".", "..", "/", "//", "./", "",
	"dir/file", "linkdir/file", "linkdir/../file", "file/x", "missing/x", "dir/missing", "magic/missing",
	"/dev/null", "/dev/zero", "/proc/self/fd/105", "/dev/fd/106", "/proc/self/cwd", "/proc/self/cwd/file", "/proc/thread-self/root", "/proc/self/exe/",
}

// The child opens each path with each set of flags, and prints what it gets.
var _ = child("opens", func(t rig.T, args []string) {
	rig.Must(t, unix.Chdir(args[0]))
	unix.Umask(0o26)
	for fd, name := range map[int]string{105: "file", 106: "dir"} {
		own := rig.Value(unix.Open(name, unix.O_RDONLY, 0))
		rig.Must(t, unix.Dup3(own, fd, 0))
	}
	flags := []int{unix.O_CREAT, unix.O_EXCL, unix.O_TRUNC, unix.O_APPEND, unix.O_DIRECTORY, unix.O_NOFOLLOW, tmpfile, unix.O_PATH}
	for i := 0; i < 4<<len(flags); i += flagSteps() {
		set := i & unix.O_ACCMODE
		for bit, flag := range flags {
			if i>>2>>bit&1 != 0 {
				set |= flag
			}
		}
		if i%3 == 0 {
			set |= unix.O_CLOEXEC
		}
		if i%5 == 0 {
			set |= unix.O_SYNC
		}
		for _, path := range openedPaths {
			if set&tmpfile != 0 && (strings.Trim(path, "/") == "" || strings.HasSuffix(path, "/root")) {
				continue // no file is made outside of the test's directory
			}
			asked := set
			if i%7 == 0 || strings.HasPrefix(path, "fifo") {
				asked |= unix.O_NONBLOCK
			}
			fmt.Printf("%q %#o: %s\n", path, asked, openAndTell(path, asked))
		}
	}
})

// openAndTell opens path, and returns what can be seen of that.
func openAndTell(path string, flags int) string {
	free, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return "dup: " + err.Error()
	}
	unix.Close(free)
	var before unix.Stat_t
	existed := unix.Fstatat(unix.AT_FDCWD, path, &before, 0) == nil
	fd, err := unix.Openat(unix.AT_FDCWD, path, flags, 0o1777)
	if err != nil {
		return unix.ErrnoName(err.(unix.Errno))
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "fstat: " + err.Error()
	}
	status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return "F_GETFL: " + err.Error()
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		return "F_GETFD: " + err.Error()
	}
	told := fmt.Sprintf("lowest %v mode %o flags %#o %d", fd == free, st.Mode, status&^unix.O_NOFOLLOW, own)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		_, err := unix.Write(fd, []byte("content"))
		told += fmt.Sprintf(" links %d, size %d, write: %v", st.Nlink, st.Size, err)
	}
	if !existed {
		var after unix.Stat_t
		if unix.Fstatat(unix.AT_FDCWD, path, &after, 0) == nil {
			target := path
			if link, err := os.Readlink(path); err == nil {
				target = link
			}
			told += fmt.Sprintf(" made, removed: %v", unix.Unlink(target))
		}
	}
	_ = unix.Truncate("file", 7)
	_ = unix.Truncate("dir/file", 7)
	return told
}

// refusedOpens are opens in a workspace whose name .git is protected, with a
// carve-out, ro, and files that are denied or hidden. Each line has what comes of
// it: the first byte that can be read, "nothing" of an empty file, or an errno.
const refusedOpens = `
EROFS: ../outside/file rw, ../outside/file r trunc, ../outside/missing w creat, ../outside rw tmpfile
EROFS: outnew w creat, ro rw tmpfile, .git w creat, /proc/self/fd/105 w, /proc/self/fd/105 rw trunc
EROFS: /proc/self/task/TID/fd/105 w, /proc/thread-self/fd/106/file w, /proc/self/cwd/../outside/file w
EROFS: /dev/fd/105 w, /proc/self/mem w, /proc/sys/kernel/hostname w, /proc/sys/kernel/core_pattern w
EROFS: /dev/new w creat
o: ../outside/file r creat, /proc/self/fd/105 r
EEXIST: ../outside/file r creat excl, file w creat excl
EISDIR: ../outside w, ../outside w creat, ../outside/ w creat
ENOTDIR: ../outside/file/x w
EACCES: ../outside/fifo w, ../denied/file path, ../denied r directory, ../denied path, ../leads r directory
EACCES: /proc/kcore r, /proc/kpageflags r, /proc/kmsg r, /proc/keys r, /proc/net r, /proc/self/net/tcp r, char r
EACCES: /proc/self/task/TID/net/tcp r
nothing: /proc/self/ns/net path, /proc/self/task/TID/ns/net path
r: ro/rw/file rw
nothing: ro/rw/new w creat, ../leads path, /proc/self/comm w, /proc/self/task/TID/comm w
nothing: /proc/self/oom_score_adj w, /dev/null rw, /dev/null w creat trunc, /dev/full rw, null w
EPERM: set w creat setid, file w creat setid
ENOENT: new.secret r, ../hidden r, ../hidden/file r, ../hidden/missing w creat, ../hidden path, /proc/1/comm r
ENOENT: /proc/SUPERVISOR/environ r, /proc/SUPERVISOR path, /proc/SUPERVISOR/fd/0 r
f: /proc/self/rootDIR/file rw
N: /proc/self/status r
ENXIO: /dev/tty rw
`

// TestOpenRefusals: what a policy forbids fails with the errno of a view, in every
// spelling, and nothing changes.
func TestOpenRefusals(t *testing.T) {
	t.Parallel()
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	dir := filepath.Join(root, "work")
	sandboxtest.Tree(t, root, "work/file", "work/ro/file=r", "work/ro/rw/file=r", "work/a.secret=a", "outside/file=o", "denied/file=d", "denied/open/file=d",
		"hidden/file=h", "leads/file=l", "leads/to/file=l", "work/out -> ../outside/file", "work/outdir -> ../outside", "work/outnew -> ../outside/new",
		"work/tosecret -> a.secret", "outside/fifo|")
	devices := true
	for name, minor := range map[string]uint32{"char": 1, "null": 3} { // mem and null
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			devices = false
		}
	}
	policy := &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{
		{Path: "/", Access: sandbox.Read},
		{Path: root + "/denied", Access: sandbox.Denied},
		{Path: root + "/denied/open", Access: sandbox.Read},
		{Path: root + "/hidden", Access: sandbox.Hidden},
		{Path: root + "/leads", Access: sandbox.Hidden},
		{Path: root + "/leads/to", Access: sandbox.Read},
		{Path: dir, Access: sandbox.Write},
		{Path: dir + "/.git", Access: sandbox.Read, Origin: sandbox.Protected},
		{Path: dir + "/ro", Access: sandbox.Read},
		{Path: dir + "/ro/rw", Access: sandbox.Write},
	}, Globs: []sandbox.Glob{{Base: dir, Pattern: "**/*.secret"}}}
	before := tree(t, filepath.Join(root, "outside"))
	var want, calls []string
	for line := range strings.Lines(strings.TrimSpace(refusedOpens)) {
		outcome, all, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for call := range strings.SplitSeq(all, ", ") {
			if name, _, _ := strings.Cut(call, " "); devices || name != "char" && name != "null" {
				want, calls = append(want, call+": "+outcome), append(calls, call)
			}
		}
	}
	got := supervised(t, Config{Policy: policy}, sandbox.LevelMetadata, "open", append([]string{dir}, calls...)...)
	rig.Same(t, "what came of it", want, strings.Split(strings.TrimSuffix(got, "\n"), "\n"))
	rig.Is(t, tree(t, filepath.Join(root, "outside")), before, "outside was\n%sand is\n", before)
}

// The child opens what each line says in a directory, and reads the first byte.
var _ = child("open", func(t rig.T, args []string) {
	dir := args[0]
	rig.Must(t, unix.Chdir(dir))
	_ = rig.Value(unix.Setsid()) // it has no terminal then
	for fd, name := range map[int]string{105: "../outside/file", 106: "../outside"} {
		own := rig.Value(unix.Open(name, unix.O_RDONLY, 0))
		rig.Must(t, unix.Dup3(own, fd, 0))
	}
	for _, line := range args[1:] {
		words := strings.Fields(line)
		path := strings.NewReplacer("TID", fmt.Sprint(unix.Gettid()), "DIR", dir, "SUPERVISOR", fmt.Sprint(os.Getppid())).Replace(words[0])
		flags, mode := unix.O_NONBLOCK, uint32(0o644)
		for _, word := range words[1:] {
			switch word {
			case "setid":
				mode = 0o4755
			default:
				flags |= map[string]int{
					"w": unix.O_WRONLY, "rw": unix.O_RDWR, "creat": unix.O_CREAT, "excl": unix.O_EXCL, "trunc": unix.O_TRUNC,
					"tmpfile": unix.O_TMPFILE, "path": unix.O_PATH, "directory": unix.O_DIRECTORY,
				}[word]
			}
		}
		told := "nothing"
		fd, err := unix.Open(path, flags, mode)
		if err != nil {
			told = unix.ErrnoName(err.(unix.Errno))
		} else {
			b := make([]byte, 1)
			if n, _ := unix.Read(fd, b); n == 1 && b[0] != 0 {
				told = string(b)
			}
			unix.Close(fd)
		}
		fmt.Println(line+":", told)
	}
})

// TestStandingOutside: in levels in which the kernel enters directories by itself, a
// command can stand in the directory of its supervisor in procfs, or in one that
// tells of the network. It reads nothing there.
func TestStandingOutside(t *testing.T) {
	t.Parallel()
	want := "supervisor:" + strings.Repeat(" EACCES", 6) + "\n"
	for level, network := range map[sandbox.Level]string{sandbox.LevelWrites: "nil", sandbox.LevelReads: "EACCES"} {
		got := supervised(t, Config{Policy: workspace(t, t.TempDir())}, level, "stand outside")
		rig.Same(t, fmt.Sprintf("level %s", level), want+"network: "+network+"\nown: nil\n", got)
	}
}

var _ = child("stand outside", func(t rig.T, _ []string) {
	show := func(name, in string, paths ...string) {
		rig.Must(t, unix.Chdir(in))
		fmt.Print(name + ":")
		for _, path := range paths {
			// With O_CREAT the supervisor is asked in all levels.
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CREAT, 0)
			told := "nil"
			if err != nil {
				told = unix.ErrnoName(err.(unix.Errno))
			} else {
				unix.Close(fd)
			}
			fmt.Print(" ", told)
		}
		fmt.Println()
	}
	outside := fmt.Sprintf("/proc/%d", os.Getppid())
	show("supervisor", outside, "maps", "mem", "fd/0", "task/"+fmt.Sprint(os.Getppid())+"/maps", "cwd/x", "/proc/self/cwd/maps")
	show("network", "/proc/thread-self/net", "dev")
	show("own", "/proc/thread-self", "maps")
})
