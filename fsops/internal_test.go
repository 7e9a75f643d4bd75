package fsops

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// anything are rules that let everything be written.
var anything = Rules{
	Access: func(string) Access { return Write },
	Leads:  func(string) bool { return false },
	Bound:  func(string) bool { return false },
}

// opens are both ways of opening.
var opens = map[string]func(int, string, int) (int, error){"openat2": openBeneath, "steps": stepBeneath}

// TestOpenBeneathFallback: stepBeneath answers as openat2 does.
func TestOpenBeneathFallback(t *testing.T) {
	t.Parallel()
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	for _, dir := range []string{"a/b/c", "x"} {
		rig.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for name, target := range map[string]string{"l": "a", "a/up": "..", "dang": "nope", "loop": "loop"} {
		rig.Must(t, os.Symlink(target, filepath.Join(root, name)))
	}
	rig.Must(t, os.WriteFile(filepath.Join(root, "a/f"), nil, 0o600))
	dir := rig.Value(unix.Open(root, dirFlags, 0))
	defer unix.Close(dir)

	for _, tt := range []struct {
		path string
		want error
	}{
		{path: "a"}, {path: "a/b/c"}, {path: "x"},
		{path: "l", want: unix.ENOTDIR}, {path: "l/b", want: unix.ENOTDIR}, {path: "a/up", want: unix.ENOTDIR},
		{path: "a/up/x", want: unix.ENOTDIR}, {path: "loop", want: unix.ENOTDIR}, {path: "loop/x", want: unix.ENOTDIR},
		{path: "dang/x", want: unix.ENOTDIR}, {path: "a/f", want: unix.ENOTDIR}, {path: "a/f/x", want: unix.ENOTDIR},
		{path: "nope", want: unix.ENOENT}, {path: "a/nope/x", want: unix.ENOENT},
	} {
		for _, base := range []string{"", root + "/"} {
			for name, open := range opens {
				for _, flags := range []int{dirFlags, unix.O_PATH | unix.O_DIRECTORY} {
					fd, err := open(dir, base+tt.path, flags)
					rig.Is(t, err, tt.want, "%s of %q", name, base+tt.path)
					if err != nil {
						continue
					}
					var got, want unix.Stat_t
					rig.Must(t, unix.Fstat(fd, &got), unix.Stat(filepath.Join(root, tt.path), &want))
					rig.Is(t, idOf(&got), idOf(&want), "the file that %s of %q opened", name, base+tt.path)
					flags := rig.Value(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0))
					rig.Is(t, flags, unix.FD_CLOEXEC, "%s of %q: descriptor flags", name, base+tt.path)
					unix.Close(fd)
				}
			}
		}
	}
	for name, open := range opens {
		fd, err := open(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY)
		rig.Is(t, err, nil, "%s of /", name)
		unix.Close(fd)
	}
}

// TestOpenBeneathLink: a link is opened as such, by both ways of opening.
func TestOpenBeneathLink(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rig.Must(t, os.Symlink("nowhere", filepath.Join(root, "l")))
	dir := rig.Value(unix.Open(root, dirFlags, 0))
	defer unix.Close(dir)
	for name, open := range opens {
		fd := rig.Value(open(dir, "l", unix.O_PATH|unix.O_NOFOLLOW))
		rig.Is(t, rig.Value(readLinkAt(fd, "")), "nowhere", "%s leads to", name)
		unix.Close(fd)
	}
}

// TestViewWithoutProcfs: without procfs a view opens objects by name, and only
// if they are still the same.
func TestViewWithoutProcfs(t *testing.T) {
	t.Parallel()
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	for _, name := range []string{"f", "other"} {
		rig.Must(t, os.WriteFile(filepath.Join(root, name), []byte(name), 0o600))
	}
	v, err := NewView(anything)
	rig.Must(t, err)
	defer v.Close()
	unix.Close(v.paths.fds)
	v.paths.fds = -1

	path := filepath.Join(root, "f")
	rig.Is(t, len(rig.Value(v.ReadDirectory(t.Context(), root, false))), 2, "entries")
	rig.Check(t, WriteFile(t.Context(), v, path, []byte("new"), WriteOptions{}))
	rig.Is(t, string(rig.Value(ReadFile(t.Context(), v, path, FollowLinks, nil))), "new", "the file")

	p, err := v.find(v.paths.base, path, 0)
	rig.Must(t, err)
	defer p.Close()
	rig.Must(t, os.Rename(filepath.Join(root, "other"), path))
	if fd, err := v.paths.Reopen(&p, unix.O_WRONLY|unix.O_TRUNC); err != errMoved {
		unix.Close(fd)
		t.Errorf("opened another file: %v", err)
	}
	rig.Is(t, string(rig.Value(os.ReadFile(path))), "other", "the other file")
}

// TestFollowTrap: a link in a directory such as /tmp is followed only if it belongs
// to who follows it, or to the owner of the directory.
func TestFollowTrap(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("another owner needs uid 0")
	}
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	const other, third = 1000, 1001
	r := rig.Value(NewResolver(anything))
	defer r.Close()
	for _, tt := range []struct {
		mode      uint32
		dir, link int // their owners
		off       bool
		want      error
	}{
		{0o1777, 0, 0, false, nil},
		{0o1777, 0, other, false, unix.EACCES},
		{0o1777, 0, other, true, nil},
		{0o1777, other, other, false, nil},
		{0o1777, third, other, false, unix.EACCES},
		{0o777, third, other, false, nil},
		{0o1775, third, other, false, nil},
	} {
		dir := filepath.Join(root, "d")
		link := filepath.Join(dir, "link")
		rig.Must(t,
			os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.Symlink(root, link), os.Lchown(link, tt.link, -1), os.Chown(dir, tt.dir, -1), unix.Chmod(dir, tt.mode),
		)
		r.wary = !tt.off
		p, err := r.Resolve(viewReading{&r.rules}, r.Base(), link, FollowLast)
		if err == nil {
			p.Close()
		}
		rig.Is(t, err, tt.want, "a link of %d in a directory of %d with mode %o", tt.link, tt.dir, tt.mode)
		// On the way to something else the kernel follows it.
		p = rig.Value(r.Resolve(viewReading{&r.rules}, r.Base(), link+"/d", 0))
		p.Close()
	}
}

// TestDirStackMoved: a directory that is moved while it is not held open is
// noticed.
func TestDirStackMoved(t *testing.T) {
	t.Parallel()
	for _, move := range []bool{false, true} {
		root := t.TempDir()
		var s dirStack
		fd, err := openAt(unix.AT_FDCWD, root, dirFlags, 0)
		rig.Must(t, err)
		const depth = maxOpenDirs + 4
		for range depth {
			rig.Must(t, s.push(Dir{FD: fd}), unix.Mkdirat(fd, "d", 0o755))
			fd, err = openAt(fd, "d", dirFlags, 0)
			rig.Must(t, err)
		}
		unix.Close(fd)
		open := 0
		for _, d := range s.dirs {
			if d.FD >= 0 {
				open++
			}
		}
		rig.Is(t, open, maxOpenDirs+1, "directories are open")
		if move {
			// The fourth directory is moved, with all below it.
			p := filepath.Join(root, "d/d/d")
			rig.Must(t, os.Rename(p, filepath.Join(root, "elsewhere")))
		}
		var reopened int
		for len(s.dirs) > 1 && err == nil {
			var again bool
			if again, err = s.pop(); again {
				reopened++
			}
		}
		if move != (err == errMoved) || !move && (err != nil || reopened != 3) {
			t.Errorf("moved %v: %d opened anew, error %v", move, reopened, err)
		}
		s.close()
	}
}

func TestLossy(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                       "",
		"plain é 世":              "plain é 世",
		"a\xffb":                 "a\ufffdb",
		"\xff\xfe":               "\ufffd\ufffd",
		"\xe4\xb8":               "\ufffd",       // a beginning, cut off
		"\xe4\xb8A":              "\ufffdA",      // and interrupted
		"\xf0\x9f\x98x":          "\ufffdx",      // three of four bytes
		"\xc0\xaf":               "\ufffd\ufffd", // overlong
		"\xed\xa0\x80":           "\ufffd\ufffd\ufffd",
		"\xf5\x80":               "\ufffd\ufffd",
		"ok\x80\xe4\xb8\x96\xe4": "ok\ufffd世\ufffd",
	} {
		rig.Is(t, lossy(in), want, "lossy(%q)", in)
	}
}

func dirent(name string, kind byte, pad int) []byte {
	b := make([]byte, 19+len(name)+1+pad)
	binary.NativeEndian.PutUint64(b, 7)
	binary.NativeEndian.PutUint64(b[8:], 99)
	binary.NativeEndian.PutUint16(b[16:], uint16(len(b)))
	b[18] = kind
	copy(b[19:], name)
	return b
}

func FuzzDirReader(f *testing.F) {
	f.Add(append(dirent(".", unix.DT_DIR, 4), dirent("name", unix.DT_REG, 0)...))
	f.Add(dirent(strings.Repeat("x", 255), unix.DT_LNK, 7))
	f.Add(dirent("", unix.DT_REG, 0)[:19])
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := dirReader{buf: b, n: len(b)}
		total := 0
		for name := range r.all {
			if len(name) == 0 || bytes.IndexByte(name, 0) >= 0 {
				t.Fatalf("name %q", name)
			}
			total += len(name)
		}
		if total > len(b) {
			t.Fatalf("%d bytes of names in %d", total, len(b))
		}
		r.offset()
	})
}

// TestStepHost: a path leads to the same object, or has the same error, if it is gone one name at a time.
func TestStepHost(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rig.Must(t, os.MkdirAll(filepath.Join(root, "d/e"), 0o755), os.WriteFile(filepath.Join(root, "d/f"), nil, 0o600))
	for name, target := range map[string]string{
		"l": "d", "ll": "l/f", "up": "d/e/../f", "abs": "/proc/version", "loop": "loop", "dangling": "d/new", "slash": "d/", "wrong": "d/f/", "top": "/", "magic": "/proc/1/root/proc/version",
	} {
		rig.Must(t, os.Symlink(target, filepath.Join(root, name)))
	}
	outcome := func(fd int, err error) string {
		if err != nil {
			return err.Error()
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		rig.Must(t, fstat(fd, &st))
		return fmt.Sprint(idOf(&st))
	}
	for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY | unix.O_CREAT, unix.O_PATH, dirFlags} {
		for _, name := range []string{"d/f", "d//e/", "l", "l/", "l/f", "ll", "up", "abs", "loop", "loop/x", "dangling", "slash", "wrong", "top", "magic", "nope", "nope/x", "d/f/", "d/f/x", "..", "."} {
			for _, follow := range []int{0, unix.O_NOFOLLOW} {
				if flags&unix.O_CREAT != 0 {
					_ = os.Remove(filepath.Join(root, "d/new"))
					_ = os.Remove(filepath.Join(root, "nope"))
				}
				at := func(open func(int, string, int, uint32) (int, error)) string {
					return outcome(open(unix.AT_FDCWD, root+"/"+name, flags|follow, 0o600))
				}
				stepped := at(stepHost)
				rig.Is(t, stepped, at(openAt), "%s, flags %#o", name, flags|follow)
				rig.Is(t, at(openHost), stepped, "%s at once, flags %#o", name, flags|follow)
			}
		}
	}
}

// TestGlobAsks: a search can end while the braces of one glob are looked at.
func TestGlobAsks(t *testing.T) {
	t.Parallel()
	g := rig.Value(newGlobs([]string{"**/*" + strings.Repeat("a", 120) + strings.Repeat("{b,c}", 10)}))
	asked := 0
	g.take(strings.Repeat(strings.Repeat("a", 200)+"/", 9)+"a", false, func() bool { asked++; return asked == 3 })
	rig.Is(t, asked, 3, "questions whether the search is over")
}
