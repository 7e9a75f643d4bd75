package fsops_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func TestStat(t *testing.T) {
	t.Parallel()
	root := tree(t, standard...)
	type meta struct {
		dir, file, link bool
		size            uint64
	}
	for _, tt := range []struct {
		path  string
		links fsops.Links
		want  meta
		err   error
	}{
		{path: "d/a.txt", want: meta{file: true, size: 5}},
		{path: "dlink/sub/b", want: meta{file: true, size: 1}},
		{path: "d/loop", err: unix.ELOOP},
		{path: "d/dang", err: unix.ENOENT},
		{path: "z/x", err: unix.ENOTDIR},
		{path: "d/ff", links: fsops.RefuseLinks},
		{path: "d/dang", links: fsops.RefuseLinks, err: invalid},
		{path: "d/loop", links: fsops.RefuseLinks, err: invalid},
		{path: "d/loop/x", links: fsops.RefuseLinks, err: unix.ENOTDIR},
		{path: "d/nope", links: fsops.RefuseLinks, err: unix.ENOENT},
		{path: "nope/x", links: fsops.RefuseLinks, err: unix.ENOENT},
	} {
		t.Run(tt.path+"/"+strconv.Itoa(int(tt.links)), func(t *testing.T) {
			m, err := host.Stat(t.Context(), filepath.Join(root, tt.path), tt.links)
			checkErr(t, err, tt.err)
			rig.Is(t, (meta{m.IsDirectory, m.IsFile, m.IsSymlink, m.Size}), tt.want, "the result")
		})
	}
	for _, links := range []fsops.Links{fsops.FollowLinks, fsops.RefuseLinks} {
		for _, path := range []string{"/", filepath.Join(root, "d")} {
			m, err := host.Stat(t.Context(), path, links)
			if err != nil || !m.IsDirectory || m.IsFile || m.IsSymlink {
				t.Errorf("Stat(%q, %v) = %+v, %v", path, links, m, err)
			}
		}
	}
}

func TestStatTimes(t *testing.T) {
	t.Parallel()
	before := time.Now().Add(-time.Second).UnixMilli() // the clock of file systems is coarse
	path := filepath.Join(tree(t, "f"), "f")
	for _, want := range []int64{1_000_000_000_123, -1500} {
		rig.Must(t, os.Chtimes(path, time.Time{}, time.UnixMilli(want)))
		m := rig.Value(host.Stat(t.Context(), path, fsops.FollowLinks))
		rig.Is(t, m.ModifiedAtMs, want, "modified at")
		var st unix.Statx_t
		rig.Must(t, unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st))
		if st.Mask&unix.STATX_BTIME == 0 {
			if m.CreatedAtMs != 0 {
				t.Errorf("created at %d without a birth time, want 0", m.CreatedAtMs)
			}
		} else if m.CreatedAtMs < before || m.CreatedAtMs > time.Now().UnixMilli() {
			t.Errorf("created at %d, want a moment after %d", m.CreatedAtMs, before)
		}
	}
	rig.Is(t, rig.Value(host.Stat(t.Context(), "/proc/version", fsops.FollowLinks)).CreatedAtMs, 0, "procfs: created at")
}

func TestCanonicalize(t *testing.T) {
	t.Parallel()
	root := tree(t, standard...)
	grow(t, root, "up -> d/../z", "abs -> "+root+"/d/sub", "d/slash -> a.txt/", "nb\xff/f", "nl -> nb\xff")
	for i := range 41 {
		grow(t, root, "c"+strconv.Itoa(i+1)+" -> c"+strconv.Itoa(i))
	}
	grow(t, root, "c0 =x")
	for _, tt := range []struct {
		path, want string
		err        error
	}{
		{path: "d/a.txt", want: "d/a.txt"},
		{path: "d/link", want: "d/a.txt"},
		{path: "dlink/dl/b", want: "d/sub/b"},
		{path: "up", want: "z"},
		{path: "abs/b", want: "d/sub/b"},
		{path: "nl/f", want: "nb\xff/f"},
		{path: "c40", want: "c0"},
		{path: "c41", err: unix.ELOOP},
		{path: "d/slash", err: unix.ENOTDIR},
		{path: "d/loop/x", err: unix.ELOOP},
		{path: "nope", err: unix.ENOENT},
		{path: "z/x", err: unix.ENOTDIR},
	} {
		got, err := host.Canonicalize(t.Context(), filepath.Join(root, tt.path), false)
		checkErr(t, err, tt.err)
		want := ""
		if tt.err == nil {
			want = filepath.Join(root, tt.want)
		}
		rig.Is(t, got, want, "Canonicalize(%q)", tt.path)
	}
	rig.Is(t, rig.Value(host.Canonicalize(t.Context(), "/", false)), "/", "/")
	// A link to the root leads to "/", not to "".
	grow(t, root, "r -> /")
	rig.Is(t, rig.Value(host.Canonicalize(t.Context(), filepath.Join(root, "r"), false)), "/", "r -> /")
}
