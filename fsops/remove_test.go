package fsops_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func TestRemove(t *testing.T) {
	t.Parallel()
	type args struct {
		recursive, force bool
		links            fsops.Links
	}
	every := []args{{}, {recursive: true}, {force: true}, {recursive: true, force: true}}
	refuse := []args{{links: fsops.RefuseLinks}, {force: true, links: fsops.RefuseLinks}}
	unforced := []args{every[0], every[1], refuse[0]}
	forced := []args{every[2], every[3], refuse[1]}
	flat := []args{every[0], every[2]}
	deep := []args{every[1], every[3]}
	for _, tt := range []struct {
		path string
		args []args
		gone int // how many lines of the tree go
		err  error
	}{
		{path: "nope", args: unforced, err: unix.ENOENT},
		{path: "nope/x", args: unforced, err: unix.ENOENT},
		{path: "nope/x", args: forced},
		{path: "d/loop/x", args: every, err: unix.ELOOP},
		{path: "d/loop/x", args: refuse, err: unix.ENOTDIR},
		{path: "d/a.txt", args: append(every, refuse...), gone: 1},
		{path: "dlink/a.txt", args: every, gone: 1},
		{path: "dlink/a.txt", args: refuse, err: unix.ENOTDIR},
		{path: "d/ff", args: append(every, refuse...), gone: 1},
		{path: "d/dang", args: every, gone: 1},
		{path: "d/loop", args: every, gone: 1},
		{path: "d/dl", args: every, gone: 1},
		{path: "dlink", args: every, gone: 1},
		{path: "d/dl", args: refuse, err: invalid},
		{path: "d/sub", args: append(flat, refuse...), err: unix.ENOTEMPTY},
		{path: "d/sub", args: deep, gone: 2},
		{path: "d", args: deep, gone: 9},
		{path: "e", args: append(every, refuse...), gone: 1},
		{path: "/", args: every, err: unix.EBUSY},
	} {
		for _, a := range tt.args {
			root := tree(t, standard...)
			grow(t, root, "e/")
			before := list(t, root)
			path := at(root, tt.path)
			err := host.Remove(t.Context(), path, a.recursive, a.force, a.links)
			checkErr(t, err, tt.err)
			if after := list(t, root); len(before)-len(after) != tt.gone {
				t.Errorf("Remove(%q, %+v): %d lines went, want %d: %q", tt.path, a, len(before)-len(after), tt.gone, after)
			}
		}
	}
	path := filepath.Join(tree(t, "d/f"), "d")
	rig.Is(t, host.Remove(t.Context(), path, true, true, fsops.RefuseLinks) != nil, true, "recursive removal with refused links fails")
	wantTree(t, path, "f")
}

// TestRemoveDeepAndWide removes a tree that is deeper than any path and than
// the directories held open, and a directory with more names than one buffer
// holds.
func TestRemoveDeepAndWide(t *testing.T) {
	t.Parallel()
	root := tree(t, "keep =x", "t/")
	for i := range 700 {
		grow(t, root, "t/a-name-of-some-length-"+strconv.Itoa(i)+" -> ../keep")
	}
	const depth = 900
	fd, err := unix.Open(filepath.Join(root, "t"), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range depth {
		if err == nil {
			err = unix.Mkdirat(fd, "deep", 0o755)
		}
		var next int
		if err == nil {
			next, err = unix.Openat(fd, "deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err == nil {
			err = unix.Symlinkat("../..", fd, "up")
		}
		rig.Must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	rig.Must(t, host.Remove(t.Context(), filepath.Join(root, "t"), true, false, fsops.FollowLinks))
	wantTree(t, root, "keep =x")
}

func TestRemoveCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := tree(t, "d/e/f")
	checkErr(t, host.Remove(ctx, filepath.Join(root, "d"), true, true, fsops.FollowLinks), context.Canceled)
	wantTree(t, root, "d/", "d/e/", "d/e/f")
}

func TestRemoveNoPermission(t *testing.T) {
	if !asUser(t) {
		return
	}
	root := tree(t, "r/s/f", "r/u/")
	rig.Must(t, os.Chmod(filepath.Join(root, "r/s"), 0o500))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "r/s"), 0o700) })
	checkErr(t, host.Remove(t.Context(), filepath.Join(root, "r"), true, true, fsops.FollowLinks), unix.EACCES)
	rig.Check(t, rig.Err(os.Lstat(filepath.Join(root, "r/s/f"))))
	checkErr(t, host.Remove(t.Context(), filepath.Join(root, "r/s/f"), true, true, fsops.FollowLinks), unix.EACCES)
}
