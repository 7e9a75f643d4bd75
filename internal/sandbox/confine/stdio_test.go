package confine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

const stdioChild = "stdio-child"

// stdioChildMain is the main of a confined command that tries to change the
// file of a descriptor, and writes to stderr what it could change. Then it
// copies its input.
func stdioChildMain() int {
	fd, _ := strconv.Atoi(os.Args[2])
	self := fmt.Sprintf("/proc/self/fd/%d", fd)
	try := func(name string, err error) {
		if err == nil {
			fmt.Fprintf(os.Stderr, "could %s\n", name)
		}
	}
	if os.Args[3] == "write" {
		again, err := os.OpenFile(self, os.O_WRONLY, 0)
		try("write", err)
		if err == nil {
			_, _ = again.WriteString("forged") // the test finds it in the file
		}
	}
	try("chmod", unix.Fchmod(fd, 0o777))
	try("chmod by name", unix.Chmod(self, 0o777))
	try("chown", unix.Fchown(fd, os.Getuid(), os.Getgid()))
	try("utimes", unix.UtimesNano(self, []unix.Timespec{{Sec: 1}, {Sec: 1}}))
	try("setxattr", unix.Fsetxattr(fd, "user.forged", []byte("x"), 0))
	const noDump = 0x40 // FS_NODUMP_FL
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		try("setflags", unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|noDump))
	}
	if os.Args[3] != "terminal" {
		data, err := os.ReadFile("/dev/stdin")
		if fd == 0 && err != nil {
			fmt.Fprintf(os.Stderr, "reading: %v\n", err)
		}
		os.Stdout.Write(data)
	}
	return 0
}

// runWithFiles runs a confined command with files as its descriptors 0 to 2, as
// the command line does, and returns its output and exit code. A nil stdin is
// the null device; a nil stdout or stderr is a part of the output.
func runWithFiles(t *testing.T, c confined, files [3]*os.File) (out string, code int) {
	t.Helper()
	holdMissing(t, c.policy)
	p, err := Command{
		Policy: c.policy, Backend: c.backend, Limits: c.limits, Argv0: os.Args[0], Dir: "/", Argv: c.Argv,
		Env: []string{"PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"},
	}.Prepare()
	rig.Must(t, err)
	defer p.Close()
	cmd := &exec.Cmd{Path: p.Path, Args: p.Argv, Env: append(p.Env, "GORACE=atexit_sleep_ms=0"), Dir: "/", ExtraFiles: p.Files}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: p.Cloneflags, AmbientCaps: p.AmbientCaps}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if files[0] != nil {
		cmd.Stdin = files[0]
	}
	if files[1] != nil {
		cmd.Stdout = files[1]
	}
	if files[2] != nil {
		cmd.Stderr = files[2]
	}
	_ = cmd.Run() // the exit code is returned
	return output.String(), cmd.ProcessState.ExitCode()
}

// viewRows returns the rows that have a view, and one more without Landlock.
func viewRows() []row {
	withoutLandlock := full()
	withoutLandlock.Landlock = 0
	list := []row{{"no landlock", withoutLandlock, true, sandbox.NetworkRestricted, Limits{}}}
	for _, row := range rows() {
		if row.backend.Has(sandbox.MountNS) {
			list = append(list, row)
		}
	}
	return list
}

// stdioTester returns the command line of stdioChildMain.
func stdioTester(t *testing.T, args ...string) []string {
	t.Helper()
	self := rig.Value(os.Executable())
	return append([]string{self, stdioChild}, args...)
}

// TestInputIsReadOnly: a file that is passed for reading cannot be changed,
// wherever it lies.
func TestInputIsReadOnly(t *testing.T) {
	t.Parallel()
	for j, row := range viewRows() {
		const content = "the content"
		root, outside := t.TempDir(), t.TempDir()
		paths := []string{filepath.Join(root, ".git/config"), filepath.Join(root, "denied/file"), filepath.Join(outside, "file")}
		for _, path := range paths {
			put(t, path, content)
		}
		for i, path := range paths {
			if !tried(j, i) {
				continue
			}
			before := inode(t, path)
			in := rig.Value(os.Open(path))
			rig.Must(t, rig.Err(in.Seek(4, 0)))
			c := row.command(t, root)
			c.policy = denying(t, root, row.network, filepath.Join(root, "denied"))
			c.Argv = []string{"sh", "-c", "cat; exec \"$@\"", "sh"}
			c.Argv = append(c.Argv, stdioTester(t, "0", "write")...)
			out, code := runWithFiles(t, c, [3]*os.File{in})
			in.Close()
			if strings.Contains(out, "could ") || !strings.HasPrefix(out, "content") || code != 0 {
				t.Errorf("%s: %s: %q, code %d", row.name, path, out, code)
			}
			rig.Is(t, inode(t, path), before, "%s: %s", row.name, path)
			rig.Is(t, read(t, path), content, "%s: %s", row.name, path)
		}
	}
}

// TestDevicesAreReadOnly: a terminal and the null device work as without a
// sandbox, and their mode, owner and times cannot be changed.
func TestDevicesAreReadOnly(t *testing.T) {
	t.Parallel()
	for j, row := range viewRows() {
		terminal := newTerminal(t)
		null := rig.Value(os.OpenFile(os.DevNull, os.O_RDWR, 0))
		for i, tt := range []struct {
			name  string
			file  *os.File
			place int
		}{
			{"terminal", terminal, 0}, {"terminal", terminal, 1}, {"terminal", terminal, 2}, {"null", null, 0}, {"null", null, 1},
		} {
			if !tried(j, i) {
				continue
			}
			before := inode(t, tt.file.Name())
			c := row.command(t, t.TempDir())
			c.Argv = stdioTester(t, strconv.Itoa(tt.place), "terminal")
			var files [3]*os.File
			files[tt.place] = tt.file
			text, code := runWithFiles(t, c, files)
			rig.Is(t, fmt.Sprintf("%q, code %d", text, code), `"", code 0`, "%s: %s as %d", row.name, tt.name, tt.place)
			rig.Is(t, inode(t, tt.file.Name()), before, "%s: %s was %+v", row.name, tt.name, before)
		}
		for place, script := range []string{"tty; stty size", "tty <&1 >&2; stty size <&1 >&2", "tty <&2; stty size <&2"} {
			if !tried(j, place+4) {
				continue
			}
			c := row.command(t, t.TempDir())
			c.Argv = []string{"sh", "-c", script + "; echo seen > /proc/self/fd/" + strconv.Itoa(place)}
			files := [3]*os.File{}
			files[place] = terminal
			out, code := runWithFiles(t, c, files)
			rig.Is(t, fmt.Sprint(out, code), "/dev/console\n0 0\n0", "%s: a terminal as %d, and the code", row.name, place)
		}
		null.Close()
	}
}

// TestOtherStreams: a file that is passed for writing can be written, a file
// without a name can be read, and a directory leads nowhere that the view does
// not show.
func TestOtherStreams(t *testing.T) {
	t.Parallel()
	for _, row := range someOf(viewRows()) {
		root := t.TempDir()
		secret := filepath.Join(root, "denied")
		put(t, secret+"/file", "secret")
		c := row.command(t, root)
		c.policy = denying(t, root, row.network, secret)

		out := rig.Value(os.OpenFile(filepath.Join(t.TempDir(), "out"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600))
		c.Argv = []string{"sh", "-c", "echo one; echo two >&2"}
		text, code := runWithFiles(t, c, [3]*os.File{nil, out, out})
		rig.Is(t, fmt.Sprintf("%q %d %q", text, code, read(t, out.Name())), `"" 0 "one\ntwo\n"`, "%s: written, and the code", row.name)
		out.Close()

		gone := rig.Value(os.Open(secret + "/file"))
		rig.Must(t, os.Remove(gone.Name()))
		c.Argv = []string{"cat"}
		text, code = runWithFiles(t, c, [3]*os.File{gone})
		rig.Is(t, fmt.Sprint(text, code), "secret0", "%s: what a file without a name holds, and the code", row.name)
		gone.Close()
		put(t, secret+"/file", "secret")

		for dir, want := range map[string]string{root: "", secret: "sandbox: taking descriptor 0: the directory " + secret + " is not shown in the sandbox\n"} {
			in := rig.Value(os.Open(dir))
			c.Argv = []string{"sh", "-c", "exec 2>/dev/null; cat /proc/self/fd/0/denied/file /proc/self/fd/0/../../*/denied/file; touch /proc/self/fd/0/../new && echo could"}
			text, _ := runWithFiles(t, c, [3]*os.File{in})
			rig.Is(t, text, want, "%s: the directory %s", row.name, dir)
			in.Close()
		}
	}
}

// put writes a file, and makes its directory.
func put(t *testing.T, path, content string) {
	t.Helper()
	rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
}

// read returns the content of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	return string(rig.Value(os.ReadFile(path)))
}

// change is what can be changed about a file without writing to it.
type change struct {
	mode, uid uint32
	ctime     unix.Timespec
}

// inode returns the state of a file that a command might have changed.
func inode(t *testing.T, path string) change {
	t.Helper()
	var st unix.Stat_t
	rig.Must(t, unix.Stat(path, &st))
	c := change{mode: st.Mode, uid: st.Uid, ctime: st.Ctim}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		c.ctime = unix.Timespec{} // writing to a device is allowed, and changes it
	}
	return c
}

// newTerminal returns a terminal whose other end nobody reads from.
func newTerminal(t *testing.T) *os.File {
	t.Helper()
	ptmx := rig.Value(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))
	t.Cleanup(func() { ptmx.Close() })
	n := rig.Value(unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN))
	rig.Must(t, unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0))
	terminal := rig.Value(os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0))
	t.Cleanup(func() { terminal.Close() })
	return terminal
}

// denying returns a policy that lets everything be read and root be written, but
// denies the paths in denied.
func denying(t testing.TB, root string, network sandbox.Network, denied ...string) *sandbox.Policy {
	t.Helper()
	profile := sandbox.Profile{
		Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		},
		Network: network,
	}
	for _, path := range denied {
		profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: path, Access: sandbox.Denied})
	}
	return policyOf(t, profile)
}
