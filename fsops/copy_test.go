package fsops_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	// whole is what a copy of d has, under the name %.
	whole := []string{"%/", "%/a.txt =hello", "%/dang -> nowhere", "%/dl -> sub", "%/link -> a.txt", "%/loop -> loop", "%/sub/", "%/sub/b =b"}
	named := func(name string, but ...string) []string {
		var out []string
		for _, line := range whole {
			line = name + line[1:]
			if !slices.Contains(but, line) {
				out = append(out, line)
			}
		}
		return out
	}
	for _, tt := range []struct {
		name     string
		src, dst string
		flat     bool     // recursive is false
		with     []string // additions to the tree
		new      []string // lines that are added, or replace others of the same name
		err      error
	}{
		{name: "file, recursive", src: "d/a.txt", dst: "n", new: []string{"n =hello"}},
		{name: "over a longer file", src: "z", dst: "d/a.txt", flat: true, new: []string{"d/a.txt =zz"}},
		{name: "through a link", src: "dlink/a.txt", dst: "n", new: []string{"n =hello"}},
		{name: "onto a link", src: "z", dst: "d/link", new: []string{"d/a.txt =zz"}},
		{name: "onto a loop", src: "z", dst: "d/loop", err: unix.ELOOP},
		{name: "onto a fifo", src: "z", dst: "d/ff", err: unix.ENXIO},
		{name: "onto a device", src: "z", dst: "/dev/null"},
		{name: "under a file", src: "z", dst: "d/a.txt/x", err: unix.ENOTDIR},
		{name: "source under a file", src: "z/x", dst: "n", err: unix.ENOTDIR},
		{name: "source under a loop", src: "d/loop/x", dst: "n", err: unix.ELOOP},
		{name: "itself by a directory link", src: "d/a.txt", dst: "dlink/a.txt", err: invalid},
		{name: "device", src: "/dev/null", dst: "n", err: invalid},

		{name: "directory link", src: "d/dl", dst: "n", flat: true, new: []string{"n -> sub"}},
		{name: "dangling link", src: "d/dang", dst: "n", new: []string{"n -> nowhere"}},
		{name: "looping link", src: "d/loop", dst: "n", new: []string{"n -> loop"}},
		{name: "link onto itself", src: "d/link", dst: "d/link", err: unix.EEXIST},
		{name: "link onto a directory", src: "d/link", dst: "d/sub", err: unix.EEXIST},

		{name: "directory", src: "d", dst: "n", new: named("n")},
		{name: "parents are made", src: "d", dst: "p/q/n", new: append([]string{"p/", "p/q/"}, named("p/q/n")...)},
		{name: "merge", src: "d", dst: "e", with: []string{"e/sub/old =o", "e/a.txt =older text"}, new: named("e", "e/", "e/sub/")},
		{name: "merge by a link", src: "d", dst: "e", with: []string{"e -> f", "f/"}, new: named("f", "f/")},
		{name: "merge into a linked directory", src: "d", dst: "e", with: []string{"e/sub -> ../f", "f/"},
			new: append(named("e", "e/", "e/sub/", "e/sub/b =b"), "f/b =b")},
		{name: "merge into a linked file", src: "d", dst: "e", with: []string{"e/a.txt -> ../g", "g =old"},
			new: append(named("e", "e/", "e/a.txt =hello"), "g =hello")},
		{name: "merge, directory for a link", src: "d", dst: "e", with: []string{"e/link/"}, err: unix.EEXIST},
		{name: "merge, directory for a file", src: "d", dst: "e", with: []string{"e/a.txt/"}, err: unix.EISDIR},
		{name: "merge, file for a directory", src: "d", dst: "e", with: []string{"e/sub"}, err: unix.EEXIST},
		{name: "merge, dangling link for a directory", src: "d", dst: "e", with: []string{"e/sub -> nowhere"}, err: unix.EEXIST},
		{name: "directory under a file", src: "d", dst: "z/x", err: unix.ENOTDIR},
		{name: "into itself", src: "d", dst: "d", err: invalid},
		{name: "into itself by a link", src: "d", dst: "dlink", err: invalid},
		{name: "onto a descendant", src: "d", dst: "d/dl", err: invalid},
		{name: "onto a dangling link in it", src: "d", dst: "d/dang", err: invalid},
		{name: "a name that begins alike", src: "d", dst: "dd", new: named("dd")},
		{name: "a linked file of the source", src: "d/sub", dst: "e", with: []string{"e/b -> ../d/sub/b"}, err: invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, standard...)
			grow(t, root, tt.with...)
			want := list(t, root)
			checkErr(t, host.Copy(t.Context(), at(root, tt.src), at(root, tt.dst), !tt.flat), tt.err)
			if tt.err != nil && tt.err != error(invalid) && len(tt.with) > 0 {
				return // the copy stopped in the middle
			}
			name := func(line string) string { return string(bytes.SplitN([]byte(line), []byte(" "), 2)[0]) }
			for _, line := range tt.new {
				want = slices.DeleteFunc(want, func(old string) bool { return name(old) == name(line) })
				want = append(want, line)
			}
			got := list(t, root)
			slices.Sort(want)
			slices.Sort(got)
			rig.Same(t, "the tree", want, got)
		})
	}
}

// A link in the destination that leads into the source must not make a copy
// without end.
func TestCopyIntoItselfByLinkBelow(t *testing.T) {
	t.Parallel()
	root := tree(t, "s/x/deep/f =1", "e/x -> ../s/x/deep")
	checkErr(t, host.Copy(t.Context(), filepath.Join(root, "s"), filepath.Join(root, "e"), true), invalid)
}

func TestCopyModes(t *testing.T) {
	t.Parallel()
	root := tree(t, "f =x", "over =longer", "t/g =y", "t/sub/")
	special := uint32(0)
	if os.Geteuid() == 0 { // a write of any other user takes these bits away
		special = 0o4000
	}
	for name, mode := range map[string]uint32{"f": 0o750 | special, "over": 0o600, "t/g": 0o444, "t/sub": 0o700} {
		rig.Must(t, unix.Chmod(filepath.Join(root, name), mode))
	}
	for src, dst := range map[string]string{"f": "n", "t": "t2"} {
		rig.Must(t, host.Copy(t.Context(), filepath.Join(root, src), filepath.Join(root, dst), true))
	}
	rig.Must(t, host.Copy(t.Context(), filepath.Join(root, "f"), filepath.Join(root, "over"), true))
	umask := unix.Umask(0)
	unix.Umask(umask)
	for name, want := range map[string]uint32{
		"n": 0o750 | special, "over": 0o750 | special, "t2/g": 0o444, "t2": 0o777 &^ uint32(umask), "t2/sub": 0o777 &^ uint32(umask),
	} {
		var st unix.Stat_t
		rig.Check(t, unix.Stat(filepath.Join(root, name), &st))
		rig.Is(t, st.Mode&0o7777, want, "mode of %s", name)
	}
}

// TestCopyData copies contents of several chunks, and from and to file systems
// between which the kernel does not copy.
func TestCopyData(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	want := bytes.Repeat([]byte("0123456789abcdef"), (40<<20)/16)
	src := filepath.Join(root, "src")
	rig.Must(t, os.WriteFile(src, want, 0o600))
	dsts := []string{filepath.Join(root, "dst")}
	if shm, err := os.MkdirTemp("/dev/shm", "fsops"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		dsts = append(dsts, filepath.Join(shm, "dst"))
	}
	for _, dst := range dsts {
		rig.Must(t, host.Copy(t.Context(), src, dst, false))
		rig.Is(t, bytes.Equal(rig.Value(os.ReadFile(dst)), want), true, "%s has the %d bytes", dst, len(want))
	}
	// Holes stay holes: nobody could wait for so many zeros.
	rig.Must(t, os.Truncate(src, 1<<40))
	f := rig.Value(os.OpenFile(src, os.O_WRONLY, 0))
	rig.Value(f.WriteAt([]byte("island"), 1<<39+5))
	rig.Must(t, f.Close())
	for _, dst := range dsts {
		rig.Must(t, host.Copy(t.Context(), src, dst, false))
		got := rig.Value(os.Open(dst))
		island := make([]byte, 8)
		rig.Value(got.ReadAt(island, 1<<39+4))
		rig.Is(t, string(island), "\x00island\x00", "%s has", dst)
		rig.Is(t, rig.Value(got.Stat()).Size(), 1<<40, "%s: size", dst)
		rig.Must(t, got.Close())
	}
	proc := filepath.Join(root, "proc")
	rig.Must(t, host.Copy(t.Context(), "/proc/version", proc, false))
	rig.Is(t, string(rig.Value(os.ReadFile(proc))), string(rig.Value(os.ReadFile("/proc/version"))), "procfs")
}

func TestCopyDeep(t *testing.T) {
	t.Parallel()
	root := tree(t, "s/")
	var path strings.Builder
	path.WriteString(filepath.Join(root, "s"))
	const depth = 150 // more than twice what is held open
	for range depth {
		path.WriteString("/d")
	}
	rig.Must(t, os.MkdirAll(path.String(), 0o755))
	for p := path.String(); p != root; p = filepath.Dir(p) {
		grow(t, p, "f =x", "e/")
	}
	rig.Must(t, host.Copy(t.Context(), filepath.Join(root, "s"), filepath.Join(root, "t"), true))
	wantTree(t, filepath.Join(root, "t"), list(t, filepath.Join(root, "s"))...)
}

func TestCopyCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := tree(t, "f =x", "d/g =y")
	for _, src := range []string{"f", "d"} {
		checkErr(t, host.Copy(ctx, filepath.Join(root, src), filepath.Join(root, "n"+src), true), context.Canceled)
	}
}

func TestCopyNoPermission(t *testing.T) {
	if !asUser(t) {
		return
	}
	root := tree(t, "secret =x", "ok =y", "closed =z", "t/a", "t/b/c")
	for name, mode := range map[string]os.FileMode{"secret": 0, "closed": 0o400, "t/b": 0} {
		path := filepath.Join(root, name)
		rig.Must(t, os.Chmod(path, mode))
		t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
	}
	for src, dst := range map[string]string{"secret": "n", "ok": "closed", "t": "t2"} {
		checkErr(t, host.Copy(t.Context(), filepath.Join(root, src), filepath.Join(root, dst), true), unix.EACCES)
	}
}
