package fsops_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(closing{m}) }

// closing closes the inotify instance of the tests after them.
type closing struct{ m *testing.M }

func (c closing) Run() int {
	defer inotifies.Close()
	return c.m.Run()
}

// patience is how long a test waits for what must come, before it fails. The
// machine may have much else to do.
const patience = 5 * time.Minute

// host is the file system that tests without a policy work on.
var host fsops.Host

// tree makes a new directory with what lines describe:
//
//	path            an empty file        path =text       a file
//	path/           a directory          path -> target   a link
//	path |          a fifo
func tree(t testing.TB, lines ...string) string {
	t.Helper()
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	grow(t, root, lines...)
	return root
}

func grow(t testing.TB, root string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, rest, _ := strings.Cut(line, " ")
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			switch {
			case strings.HasSuffix(name, "/"):
				err = os.MkdirAll(path, 0o755)
			case strings.HasPrefix(rest, "-> "):
				err = os.Symlink(rest[3:], path)
			case rest == "|":
				err = unix.Mkfifo(path, 0o644)
			default:
				err = os.WriteFile(path, []byte(strings.TrimPrefix(rest, "=")), 0o644)
			}
		}
		rig.Must(t, err)
	}
}

// standard is the tree of the conformance cases, and a link to its directory.
var standard = []string{
	"d/a.txt =hello", "d/sub/b =b", "d/link -> a.txt", "d/dang -> nowhere", "d/dl -> sub",
	"d/loop -> loop", "d/ff |", "dlink -> d", "z =zz",
}

// list names everything under root, with the targets of links and the
// contents of files.
func list(t testing.TB, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch {
		case e.IsDir():
			rel += "/"
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			rel += " -> " + target
		case e.Type() == fs.ModeNamedPipe:
			rel += " |"
		default:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if len(data) > 0 {
				rel += " =" + string(data)
			}
		}
		out = append(out, rel)
		return nil
	})
	rig.Must(t, err)
	return out
}

// wantTree compares what is under root with what list says of it.
func wantTree(t testing.TB, root string, want ...string) {
	t.Helper()
	rig.Same(t, "the tree", want, list(t, root))
}

// at is a path under root, unless it is absolute.
func at(root, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(root, path)
}

// invalid stands for any InvalidError in a table.
var invalid = fsops.InvalidError{}

// checkErr compares an error with an errno, invalid or a sentinel.
func checkErr(t testing.TB, got, want error) {
	t.Helper()
	if want == error(invalid) {
		e, ok := errors.AsType[fsops.InvalidError](got)
		if !ok || e.Text == "" {
			t.Errorf("error %v, want an InvalidError", got)
		}
		return
	}
	rig.Is(t, got, want, "error")
	if _, ok := want.(unix.Errno); ok {
		if _, ok := errors.AsType[*fs.PathError](got); !ok {
			t.Errorf("error %T, want a *fs.PathError", got)
		}
	}
}

// asUser returns true if the test is to do its work. As root, for whom
// permission bits do not count, it runs the test once more as another user and
// returns false.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "GORACE=atexit_sleep_ms=0")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("without privileges: %v\n%s", err, out)
	}
	rig.Is(t, strings.Contains(string(out), "--- PASS: "+t.Name()), true, "without privileges it ran:\n%s", out)
	return false
}
