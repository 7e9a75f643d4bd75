package sandboxtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Attempts makes a list of calls from lines "OUTCOME: CALL, CALL, ...", with what [Attempt.Try] has to
// return for each of them.
func Attempts(root string, lines ...string) []Attempt {
	var all []Attempt
	for _, line := range lines {
		want, calls, _ := strings.Cut(line, ": ")
		for call := range strings.SplitSeq(calls, ", ") {
			all = append(all, Attempt{root, call, want})
		}
	}
	return all
}

// An Attempt is one system call, or a few that belong together, and what has to become of it. The
// backends of the sandbox are all tested with the same calls.
type Attempt struct {
	// Root is where relative paths begin, and what stands for $ in others. If it is empty they
	// begin in the working directory.
	Root string
	// Call is the name of a call and its arguments, as call has them.
	Call string
	Want string
}

// Try makes the call, and returns what it tells, or "ok", or the name of an errno.
func (a Attempt) Try() string {
	words := strings.Fields(a.Call)
	for i, word := range words {
		words[i] = strings.Trim(word, `"`)
		if a.Root == "" || i == 0 || i == 1 && words[0] == "symlink" {
			continue
		}
		if words[i] = strings.ReplaceAll(word, "$", a.Root); !filepath.IsAbs(words[i]) {
			words[i] = filepath.Join(a.Root, words[i])
		}
	}
	told, err := Call(words)
	switch errno, known := errors.AsType[unix.Errno](err); {
	case known && errno != 0:
		return unix.ErrnoName(errno)
	case err != nil && !known:
		return err.Error()
	case told == "":
		return "ok"
	}
	return told
}

// TryAll tries all, and returns the outcomes that are not what they have to be.
func TryAll(attempts []Attempt) error {
	var wrong strings.Builder
	for _, a := range attempts {
		if got := a.Try(); got != a.Want {
			fmt.Fprintf(&wrong, "%s: %s, want %s\n", a.Call, got, a.Want)
		}
	}
	if wrong.Len() > 0 {
		return fmt.Errorf("%s", &wrong)
	}
	return nil
}

// now is the time that the word now stands for.
var now = time.Now().Unix()

// Call makes one call: the name, one or two paths, and arguments, most of which may be left out. It
// returns what the call tells.
func Call(words []string) (told string, err error) {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	num := func(i, base, without int) int {
		if i >= len(words) {
			return without
		}
		n, err := strconv.ParseInt(words[i], base, 64)
		if err != nil {
			panic(err)
		}
		return int(n)
	}
	p := arg(1)
	open := func(flags int, mode uint32) (string, error) {
		fd, err := unix.Open(p, flags|unix.O_CLOEXEC, mode)
		if err == nil {
			err = unix.Close(fd)
		}
		return "", err
	}
	onSocket := func(use func(fd int) error) (string, error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		defer unix.Close(fd)
		return "", use(fd)
	}
	times := func() []unix.Timespec {
		if arg(2) == "now" {
			return []unix.Timespec{{Sec: now}, {Sec: now}}
		}
		return []unix.Timespec{{Sec: int64(num(2, 10, 0)), Nsec: 5}, {Sec: int64(num(3, 10, 0)), Nsec: 6}}
	}
	opened := -1 // what the calls with a descriptor are about
	if onFile, onPath := strings.HasPrefix(words[0], "f") && words[0] != "fchmodat2" && words[0] != "fill", strings.HasPrefix(words[0], "path"); onFile || onPath {
		flags := unix.O_RDONLY | unix.O_CLOEXEC
		if onPath {
			flags = unix.O_PATH | unix.O_CLOEXEC
		}
		if opened, err = unix.Open(p, flags, 0); err != nil {
			return "", err
		}
		defer unix.Close(opened)
	}
	var st unix.Stat_t
	tell := func(err error) (string, error) {
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%o %d %d %d", st.Mode, st.Nlink, st.Uid, st.Size*int64(1-st.Mode&unix.S_IFDIR/unix.S_IFDIR)), nil
	}
	switch words[0] {
	case "umask":
		unix.Umask(num(1, 8, 0))
		return "", nil

	// What opens.
	case "read":
		data, err := os.ReadFile(p)
		return strings.TrimSpace(string(data)), underlying(err)
	case "list":
		entries, err := os.ReadDir(p)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), underlying(err)
	case "open":
		return open(unix.O_RDONLY, 0)
	case "opendir":
		return open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
	case "write":
		return open(unix.O_WRONLY, 0)
	case "overwrite":
		return open(unix.O_WRONLY|unix.O_TRUNC, 0)
	case "shell-write": // as "> path" does
		return open(unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	case "create":
		return open(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	case "tmpfile":
		return open(unix.O_WRONLY|unix.O_TMPFILE, 0o600)
	case "terminal": // makes one, and asks for its number by ioctl
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		defer unix.Close(fd)
		_, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return "", err
	case "execute": // it inherits what restricts the thread
		cmd := exec.Command(p)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return "", underlying(cmd.Run())

	// What makes, moves and removes names.
	case "mkdir":
		return "", unix.Mkdir(p, uint32(num(2, 8, 0o755)))
	case "mkfifo":
		return "", unix.Mkfifo(p, 0o644)
	case "mknod":
		return "", unix.Mknod(p, uint32(num(2, 8, unix.S_IFCHR|0o666)), 0x0103)
	case "symlink":
		return "", unix.Symlink(p, arg(2))
	case "link":
		return "", unix.Link(p, arg(2))
	case "linkat":
		return "", unix.Linkat(unix.AT_FDCWD, p, unix.AT_FDCWD, arg(2), unix.AT_SYMLINK_FOLLOW)
	case "rename":
		return "", unix.Rename(p, arg(2))
	case "exchange":
		return "", unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, arg(2), unix.RENAME_EXCHANGE)
	case "rename2":
		flag, known := map[string]uint{"noreplace": unix.RENAME_NOREPLACE, "exchange": unix.RENAME_EXCHANGE}[arg(3)]
		if !known {
			flag = uint(num(3, 10, 0))
		}
		return "", unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, arg(2), flag)
	case "rmdir":
		return "", unix.Rmdir(p)
	case "unlink":
		return "", unix.Unlink(p)
	case "fill": // with files that have nothing in them
		for i := range 2048 {
			if err := unix.Mknod(p+"/fill"+strconv.Itoa(i), unix.S_IFREG|0o600, 0); err != nil {
				return "", err
			}
		}
		return "", nil

	// What changes.
	case "chmod":
		return "", unix.Chmod(p, uint32(num(2, 8, 0o700)))
	case "fchmodat2":
		flags := 0
		if arg(3) == "nofollow" {
			flags = unix.AT_SYMLINK_NOFOLLOW
		}
		return "", unix.Fchmodat(unix.AT_FDCWD, p, uint32(num(2, 8, 0)), flags)
	case "fchmod", "pathfchmod":
		return "", unix.Fchmod(opened, uint32(num(2, 8, 0)))
	case "chown":
		return "", unix.Chown(p, os.Getuid(), os.Getgid())
	case "lchown":
		return "", unix.Lchown(p, -1, os.Getgid())
	case "pathfchown":
		return "", unix.Fchown(opened, os.Getuid(), -1)
	case "utimes":
		return "", unix.UtimesNanoAt(unix.AT_FDCWD, p, times(), 0)
	case "lutimes":
		return "", unix.UtimesNanoAt(unix.AT_FDCWD, p, times(), unix.AT_SYMLINK_NOFOLLOW)
	case "futimens", "pathfutimens":
		return "", unix.Futimes(opened, []unix.Timeval{{Sec: int64(num(2, 10, 0))}, {Sec: int64(num(3, 10, 0))}})
	case "omittimes":
		const omit = 1<<30 - 2 // UTIME_OMIT
		return "", unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{{Nsec: omit}, {Nsec: omit}}, 0)
	case "badtimes":
		return "", unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{{Nsec: 1e9}, {}}, 0)
	case "notimes": // and no path
		cwd := unix.AT_FDCWD
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(cwd), 0, 0, unix.AT_SYMLINK_NOFOLLOW, 0, 0)
		return "", errno
	case "truncate":
		return "", unix.Truncate(p, int64(num(2, 10, 0)))
	case "setxattr":
		name, value := "user.x", "y"
		if len(words) > 2 {
			name, value = words[2], words[3]
		}
		return "", unix.Setxattr(p, name, []byte(value), 0)
	case "lsetxattr":
		return "", unix.Lsetxattr(p, arg(2), []byte(arg(3)), 0)
	case "flagxattr":
		return "", unix.Setxattr(p, arg(2), []byte(arg(3)), 4)
	case "pathfsetxattr":
		return "", unix.Fsetxattr(opened, arg(2), []byte(arg(3)), 0)
	case "removexattr":
		return "", unix.Removexattr(p, arg(2))
	case "pathfremovexattr":
		return "", unix.Fremovexattr(opened, arg(2))

	// What tells.
	case "access":
		return "", unix.Faccessat(unix.AT_FDCWD, p, uint32(num(2, 10, 0)), 0)
	case "stat":
		return tell(unix.Stat(p, &st))
	case "lstat":
		return tell(unix.Lstat(p, &st))
	case "fstat":
		return tell(unix.Fstatat(opened, "", &st, unix.AT_EMPTY_PATH))
	case "mode":
		info, err := os.Lstat(p)
		if err != nil {
			return "", underlying(err)
		}
		return info.Mode().String(), nil
	case "readlink":
		buf := make([]byte, 100)
		n, err := unix.Readlink(p, buf)
		return string(buf[:max(n, 0)]), err
	case "getcwd":
		return os.Getwd()
	case "descriptors": // but for the standard streams, the one of this listing and those of the Go runtime
		entries, err := os.ReadDir("/proc/self/fd")
		var rest []string
		for _, e := range entries {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			if strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "/sys/fs/cgroup/") && e.Name() > "2" {
				rest = append(rest, to)
			}
		}
		return strings.Join(rest, " "), underlying(err)

	// The rest.
	case "chdir":
		return "", unix.Chdir(p)
	case "umount":
		return "", unix.Unmount(p, unix.MNT_DETACH)
	case "bind":
		return onSocket(func(fd int) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: p}) })
	case "connect":
		return onSocket(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: p}) })
	case "connect-abstract":
		return onSocket(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + p}) })
	case "signal-parent":
		return "", unix.Kill(os.Getppid(), 0)
	}
	panic("no such call: " + words[0])
}

// underlying returns the errno of an error, if it has one.
func underlying(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}
