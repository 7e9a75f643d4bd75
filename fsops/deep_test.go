package fsops_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// dig makes a chain of directories x below root, depth deep. Every stride
// directories, but not in the last one, it makes the links given: name, target.
// The chain is deeper than paths can be, so dig has the test remove it.
func dig(t *testing.T, root string, depth, stride int, links map[string]string) {
	t.Helper()
	t.Cleanup(func() {
		rig.Check(t, host.Remove(context.Background(), root+"/x", true, true, fsops.FollowLinks))
	})
	fd, err := unix.Open(root, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < depth && err == nil; i++ {
		if i%stride == 0 {
			for name, target := range links {
				err = errors.Join(err, unix.Symlinkat(target, fd, name))
			}
		}
		next := -1
		if err = errors.Join(err, unix.Mkdirat(fd, "x", 0o755)); err == nil {
			next, err = unix.Openat(fd, "x", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(fd)
		fd = next
	}
	rig.Must(t, err)
	unix.Close(fd)
}

// within fails when an answer takes more processor time than anybody should
// wait for.
func within(t *testing.T, what string, answer func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadTime(t)
	answer()
	if took := threadTime(t) - begin; took > time.Second {
		t.Errorf("%s took %s", what, took)
	}
}

// threadTime is how much of a processor this thread has had so far.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	rig.Must(t, unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestViewDeepLinks: links lead from one to the next, each through many
// directories, to a place that is too deep for any path. The view has to answer
// soon: this once took tens of seconds.
func TestViewDeepLinks(t *testing.T) {
	rig.Tier(t, rig.Merge) // the chain has thousands of directories
	t.Parallel()
	root := tree(t, "f =f")
	const stride = 600
	dig(t, root, 8*stride, stride, map[string]string{
		"dots": strings.Repeat("x/./", stride) + "dots",
		"l":    strings.Repeat("x/", stride) + "l",
		"here": strings.Repeat("x/", 500) + "../x",
	})
	v := everything.view(t, root)
	for _, line := range []string{"read dots", "real l", "stat dots/x", "walk l", "mkdirs dots/a/b/c", "cpr dots/x copy"} {
		var err error
		within(t, line, func() { _, err = operation(t.Context(), v, root, line) })
		checkErr(t, err, unix.ENAMETOOLONG)
	}
	within(t, "what a path may do", func() {
		rig.Is(t, len(rig.Value(operation(t.Context(), v, root, "real here"))) >= 990, true, "the path is long")
	})
}

// TestViewManyNames: a link that goes up and down again and again, far from the
// base. After each ".." the rules are asked about all names once more.
func TestViewManyNames(t *testing.T) {
	t.Parallel()
	root := tree(t)
	down := strings.Repeat("x/", 300)
	dig(t, root, 302, 400, map[string]string{
		"few": down + strings.Repeat("x/../", 5), "many": down + strings.Repeat("x/../", 40),
	})
	v := everything.view(t, root)
	for line, want := range map[string]error{"real few": nil, "real many": unix.ELOOP} {
		within(t, line, func() {
			rig.Is(t, rig.Err(operation(t.Context(), v, root, line)), want, "%s", line)
		})
	}
}

// TestViewManyLinks: a directory full of links, each as costly as one link may be,
// is refused. A directory with as many links that lead nearby is listed.
func TestViewManyLinks(t *testing.T) {
	rig.Tier(t, rig.Merge) // it makes thousands of links
	t.Parallel()
	root := tree(t, "far/", "near/", "f")
	dig(t, root, 900, 890, map[string]string{"here": "."})
	steps := root + "/" + strings.Repeat("x/", 890) + "here/here/"
	for i := range 2000 {
		grow(t, root, fmt.Sprintf("far/%d -> %s", i, steps), fmt.Sprintf("near/%d -> ../f", i))
	}
	v := everything.view(t, root)
	entries := rig.Value(v.ReadDirectory(t.Context(), root+"/near", false))
	rig.Is(t, len(entries), 2000, "near: entries")
	rig.Is(t, entries[0].IsFile, true, "near: a file")
	checkErr(t, rig.Err(v.ReadDirectory(t.Context(), root+"/far", false)), invalid)
}

// TestReadDirectoryTooLarge: a directory has more names than a message can
// carry, counted as they are answered.
func TestReadDirectoryTooLarge(t *testing.T) {
	rig.Tier(t, rig.Merge) // it makes tens of thousands of files
	t.Parallel()
	root, err := os.MkdirTemp("/dev/shm", "fsops-test")
	if err != nil {
		root = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	const length = 250
	n := fsops.MaxDirectorySize/(3*length+64) + 1
	for i := range n {
		name := fmt.Sprintf("%s/%06d%s", root, i, strings.Repeat("\xff", length))[:len(root)+1+length+5]
		rig.Must(t, unix.Mknod(name, unix.S_IFREG|0o600, 0))
		if i == n*9/10 {
			rig.Check(t, rig.Err(host.ReadDirectory(t.Context(), root, false)))
		}
	}
	checkErr(t, rig.Err(host.ReadDirectory(t.Context(), root, false)), invalid)
}
