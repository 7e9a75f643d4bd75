package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// newPTY makes a pair of terminals and returns the number of the one that programs
// use, which is unlocked.
func newPTY() (master, number int, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, 0, err
	}
	number, err = unix.IoctlGetInt(master, unix.TIOCGPTN)
	return master, number, err
}

// TestTerminals: a command opens the terminals that it has made, and its
// controlling one, and no others, even if its policy names the devices for these.
func TestTerminals(t *testing.T) {
	t.Parallel()
	other, number, err := newPTY()
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(other)
	for _, level := range []sandbox.Level{sandbox.LevelWrites, sandbox.LevelMetadata} {
		policy := workspace(t, t.TempDir())
		policy.Devices = []string{"/dev/ptmx", "/dev/tty"}
		rig.Is(t, supervised(t, Config{Policy: policy}, level, "terminals", ptyPath(number)), "", "level %s", level)
	}
}

var _ = child("terminals", func(t rig.T, args []string) {
	_ = rig.Value(unix.Setsid())
	master, number, err := newPTY()
	rig.Must(t, err)
	slave := rig.Value(unix.Open(ptyPath(number), unix.O_RDWR, 0))
	rig.Is[error](t, rig.Err(unix.Open(args[0], unix.O_RDWR, 0)), unix.EACCES, "another terminal")
	rig.Is[error](t, rig.Err(unix.Open("/dev/tty", unix.O_RDWR, 0)), unix.ENXIO, "no controlling terminal")
	rig.Must(t, unix.IoctlSetInt(slave, unix.TIOCSCTTY, 0))
	tty := rig.Value(unix.Open("/dev/tty", unix.O_RDWR, 0))
	_ = rig.Value(unix.Write(tty, []byte("said\n")))
	said := make([]byte, 100)
	_ = rig.Value(unix.Read(master, said))
	rig.Is(t, string(said[:4]), "said", "the other end got")
})

// TestShm: what a command has in /dev/shm is private, by whatever path it goes
// there, and it sees nothing of the host's.
func TestShm(t *testing.T) {
	t.Parallel()
	private, err := os.MkdirTemp(devShm, "supervise-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(private)
	host := rig.Value(os.MkdirTemp(devShm, "supervise-host-"))
	defer os.RemoveAll(host)
	rig.Must(t, os.WriteFile(filepath.Join(host, "file"), []byte("host"), 0o666))
	c := Config{Policy: workspace(t, t.TempDir()), Shm: private}
	c.Policy.Rules = append(c.Policy.Rules, sandbox.Rule{Path: host, Access: sandbox.Denied, Origin: sandbox.Private})
	slices.SortFunc(c.Policy.Rules, func(a, b sandbox.Rule) int { return strings.Compare(a.Path, b.Path) })
	rig.Is(t, supervised(t, c, sandbox.LevelMetadata, "shm", host), "", "out")
	rig.Is(t, fmt.Sprint(rig.Value(os.ReadDir(private))), "[d d/ - x]", "the private directory")
	rig.Is(t, len(rig.Value(os.ReadDir(host))), 1, "entries of the host's directory")
}

var _ = child("shm", func(t rig.T, args []string) {
	fd := rig.Value(unix.Open("/dev/shm/x", unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600))
	rig.Must(t, unix.Mkdir("/dev/shm/d", 0o700))
	for _, path := range []string{"/dev/shm/d/../x", "/dev/../dev/shm/x", fmt.Sprintf("/proc/self/fd/%d", fd)} {
		unix.Close(rig.Value(unix.Open(path, unix.O_RDWR, 0)))
	}
	for _, path := range []string{args[0] + "/file", args[0] + "/new"} {
		rig.Is[error](t, rig.Err(unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o600)), unix.EACCES, "the host's %s", path)
	}
	dir := rig.Value(unix.Open("/dev/shm", unix.O_RDONLY|unix.O_DIRECTORY, 0))
	rig.Check(t, rig.Err(unix.Openat(dir, "x", unix.O_RDONLY, 0)))
	fd = rig.Value(unix.Open("/dev/shm", unix.O_PATH, 0))
	rig.Check(t, rig.Err(unix.Openat(fd, "x", unix.O_RDONLY, 0)))
})

// TestMemory: what has no path may be opened again, in whatever way.
func TestMemory(t *testing.T) {
	t.Parallel()
	rig.Is(t, supervised(t, Config{Policy: workspace(t, t.TempDir())}, sandbox.LevelMetadata, "memory"), "", "out")
}

var _ = child("memory", func(t rig.T, _ []string) {
	memory := rig.Value(unix.MemfdCreate("name", unix.MFD_CLOEXEC))
	_ = rig.Value(unix.Write(memory, []byte("text")))
	var pipe [2]int
	rig.Must(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	for _, c := range []struct {
		fd, flags int
		want      error
	}{
		{memory, unix.O_RDWR | unix.O_TRUNC | unix.O_CREAT, nil},
		{pipe[0], unix.O_RDONLY, nil},
		{pipe[1], unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC, nil},
		{pair[0], unix.O_RDWR, unix.ENXIO},
		{pipe[0], unix.O_RDONLY | unix.O_DIRECTORY, unix.ENOTDIR},
		{999, unix.O_RDONLY, unix.ENOENT},
	} {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.fd), c.flags, 0)
		rig.Is(t, err, c.want, "descriptor %d with flags %#o", c.fd, c.flags)
		unix.Close(fd)
	}
	for _, path := range []string{"x", ".", ""} {
		want := map[string]error{"x": unix.ENOTDIR, ".": unix.ENOTDIR, "": unix.ENOENT}[path]
		rig.Is(t, rig.Err(unix.Openat(memory, path, unix.O_RDWR|unix.O_CREAT, 0o600)), want, "%q at a file", path)
	}
	rig.Is[error](t, rig.Err(unix.Openat(999, "x", unix.O_RDWR, 0)), unix.EBADF, "at no descriptor")
})
