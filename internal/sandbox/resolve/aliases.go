package resolve

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"golang.org/x/sys/unix"
)

// mountLine is what /proc/self/mountinfo tells about a mount
// (proc_pid_mountinfo(5)).
type mountLine struct {
	id     uint64
	device string // of the file system
	root   string // the path of the mount's root in the file system
	point  string // the path of the mount point
}

// PrivateAliases returns the other paths at which mounts show the objects at the
// private paths, or parts of them: canonical, sorted (sandbox.md 14.2). root is
// a descriptor of the root directory in which the private paths are looked up.
func PrivateAliases(root int, private []string) ([]string, error) {
	if len(private) == 0 {
		return nil, nil
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("looking for aliases of private paths: %w", err)
	}
	mounts, err := parseMounts(text)
	if err != nil {
		return nil, fmt.Errorf("looking for aliases of private paths: %w", err)
	}
	var all []string
	for _, name := range private {
		fd, err := OpenBeneath(root, name, 0)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
			continue
		default:
			return nil, fmt.Errorf("looking for aliases of %s: open: %w", name, err)
		}
		var st unix.Statx_t
		err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
		unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("looking for aliases of %s: statx: %w", name, err)
		}
		all = append(all, aliases(mounts, name, st.Mnt_id)...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// aliasesHere calls PrivateAliases for the root directory of this process.
func aliasesHere(private []string) ([]string, error) {
	if len(private) == 0 {
		return nil, nil
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("looking for aliases of private paths: %w", &os.PathError{Op: "open", Path: "/", Err: err})
	}
	defer unix.Close(root)
	return PrivateAliases(root, private)
}

// aliases returns the paths at which mounts show the object at name or
// something below it, except name and paths below it. id is the mount that name
// is in.
func aliases(mounts []mountLine, name string, id uint64) []string {
	i := slices.IndexFunc(mounts, func(m mountLine) bool { return m.id == id })
	if i < 0 || !pathname.Within(name, mounts[i].point) {
		return nil
	}
	in := join(mounts[i].root, name[len(trimRoot(mounts[i].point)):])
	var all []string
	for _, m := range mounts {
		if m.device != mounts[i].device {
			continue
		}
		alias := m.point
		switch {
		case pathname.Within(in, m.root):
			alias = join(m.point, in[len(trimRoot(m.root)):])
		case !pathname.Within(m.root, in):
			continue
		}
		if !pathname.Within(alias, name) {
			all = append(all, alias)
		}
	}
	return all
}

// trimRoot returns name, or "" for the root: so a path below any directory is
// trimRoot of the directory, a slash and a rest.
func trimRoot(name string) string {
	if name == "/" {
		return ""
	}
	return name
}

// join appends rest, which is empty or begins with a slash.
func join(dir, rest string) string {
	if rest == "" || rest == "/" {
		return dir
	}
	return trimRoot(dir) + rest
}

func parseMounts(text []byte) ([]mountLine, error) {
	var mounts []mountLine
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 5 {
			return nil, fmt.Errorf("mountinfo has the line %q", line)
		}
		id, err := strconv.ParseUint(string(fields[0]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo has the line %q", line)
		}
		mounts = append(mounts, mountLine{id: id, device: string(fields[2]), root: unescape(fields[3]), point: unescape(fields[4])})
	}
	return mounts, nil
}

// unescape undoes the octal escapes of the kernel's seq_path: \040 is a space.
func unescape(field []byte) string {
	plain := make([]byte, 0, len(field))
	for ; len(field) > 0; field = field[1:] {
		if field[0] == '\\' && len(field) >= 4 {
			if c, err := strconv.ParseUint(string(field[1:4]), 8, 8); err == nil {
				plain = append(plain, byte(c))
				field = field[3:]
				continue
			}
		}
		plain = append(plain, field[0])
	}
	return string(plain)
}
