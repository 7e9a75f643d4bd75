package fsops_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// TestViewSwapped: directories, files and links into forbidden places change
// places as fast as they can, while every operation runs. Nothing forbidden is
// read, nothing outside changes, and some state of the tree explains each
// error.
func TestViewSwapped(t *testing.T) {
	t.Parallel()
	duration := 100 * time.Millisecond // for each of the eight
	switch {
	case rig.Runs(rig.Nightly):
		duration = time.Minute
	case rig.Runs(rig.Merge):
		duration = 2 * time.Second
	}
	tests := []struct {
		name string
		ops  []string
		errs []unix.Errno
		// holds lists what an answer must not have in it.
		holds []string
	}{
		{"read", []string{"read m/d/f", "read m/d/k/f", "read m/x", "read! m/d/f", "read m/o/f"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR, unix.ELOOP}, []string{"secret"}},
		{"look", []string{"stat m/d/f", "stat m/x", "real m/d/k", "real m/x", "stat! m/x", "real m/d/secret.name", "lstat m/x", "realm m/x/y", "realm m/d/n/secret"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR}, []string{"forbidden/", "secret.name"}},
		{"list", []string{"list m/d", "list m/d/k", "walk m", "follow m", "follow m/d", "list m", "lists m/d"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR}, []string{"secret.name"}},
		{"write", []string{"write m/d/f", "write m/d/k/f", "write m/x", "write! m/d/f", "write m/d/new", "write m/o/new", "swap m/d/f", "swap m/x", "swap m/d/new", "swap m/o/f", "deep m/d/k/p/q", "mode m/d/f"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR, unix.EROFS, unix.EISDIR, unix.ELOOP, unix.EBUSY, unix.EEXIST}, nil},
		{"make", []string{"mkdirs m/d/p/q", "mkdir m/d/p", "mkdirs! m/d/p/q", "mkdirs m/o/p", "rmrf m/d/p", "rm m/d/p/q"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR, unix.EROFS, unix.EEXIST, unix.ENOTEMPTY}, nil},
		{"remove", []string{"rmrf m/d/k", "rmr m/d/k", "rm m/d/f", "rm! m/d/f", "mkdirs m/d/k/l", "write m/d/k/f", "write m/d/k/l/g", "rmr m/d/k/l"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR, unix.EROFS, unix.EEXIST, unix.ENOTEMPTY, unix.EISDIR}, nil},
		{"copy", []string{"cpr m n", "cp m/x n/x", "cp m/d/f n/g", "cpr m/d n/d", "cp n/x m/d/f", "cpr n m/d/n", "rmrf n", "mkdirs n", "rmrf m/d/n"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR, unix.EROFS, unix.EEXIST, unix.EISDIR, unix.ENOTEMPTY, unix.ELOOP}, nil},
		{"rename", []string{"mv m/d/f m/d/g", "mvr m/d/g m/d/f", "mvr m/x2 m/d/f", "write m/x2", "mv m/d/k m/k2", "mv m/k2 m/d/k", "mvr m/d/f m/o/f", "rmrf m/k2"},
			[]unix.Errno{unix.EACCES, unix.ENOENT, unix.ENOTDIR, unix.EROFS, unix.EEXIST, unix.EISDIR, unix.ENOTEMPTY, unix.ELOOP, unix.EINVAL}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, "work/m/d/f =inside", "work/m/d/k/f =inside", "work/m/e -> ../../forbidden", "work/m/x =inside",
				"work/m/y -> ../../forbidden/f", "work/m/o -> ../../readable", "work/m2 -> ../forbidden", "work/n/",
				"forbidden/f =secret", "forbidden/x =secret", "forbidden/k/f =secret", "forbidden/secret.name =secret", "forbidden/d/f =secret",
				"forbidden/d/k/secret.name =secret", "readable/f =readable", "readable/k/f =readable", "readable/d/f =readable", "readable/x =readable")
			outside := append(list(t, filepath.Join(root, "forbidden")), list(t, filepath.Join(root, "readable"))...)
			v := policy{rules: []rule{{"/", fsops.Read}, {"work", fsops.Write}, {"forbidden", fsops.Denied}}}.view(t, root)

			end := time.Now().Add(duration)
			var wg sync.WaitGroup
			work := filepath.Join(root, "work")
			wg.Go(func() { swapAll(work, end) })
			for range 2 {
				wg.Go(func() {
					for time.Now().Before(end) {
						line := tt.ops[rand.IntN(len(tt.ops))]
						got, err := operation(t.Context(), v, work, line)
						for _, bad := range tt.holds {
							// A link in the tree may have the name of its
							// target.
							if strings.Contains(strings.ReplaceAll(got, "/forbidden/f", ""), bad) {
								t.Errorf("%s gives %q", line, got)
								return
							}
						}
						if _, ok := errors.AsType[fsops.InvalidError](err); ok || err == nil {
							continue
						}
						if errno, ok := errors.AsType[unix.Errno](err); !ok || !slices.Contains(tt.errs, errno) {
							t.Errorf("%s: error %v", line, err)
							return
						}
					}
				})
			}
			wg.Wait()
			after := append(list(t, filepath.Join(root, "forbidden")), list(t, filepath.Join(root, "readable"))...)
			rig.Same(t, "outside changed", outside, after)
			err := filepath.Walk(work, func(path string, fi os.FileInfo, err error) error {
				if err == nil && fi.Mode().IsRegular() {
					if data, _ := os.ReadFile(path); strings.Contains(string(data), "secret") || fi.Name() == "secret.name" {
						t.Errorf("%s holds %q", path, data)
					}
				}
				return err
			})
			rig.Check(t, err)
		})
	}
}

// swapAll exchanges names in dir, back and forth, until end. It makes anew what the
// operations have removed.
func swapAll(dir string, end time.Time) {
	pairs := [][2]string{{"m/d", "m/e"}, {"m/x", "m/y"}, {"m/d", "m/o"}, {"m", "m2"}, {"m/d", "m/x"}, {"m/d/f", "m/y"}, {"m/d/k", "m/e"}}
	path := func(name string) string { return filepath.Join(dir, name) }
	for i := 0; time.Now().Before(end); i++ {
		p, q := pairs[i%len(pairs)], pairs[rand.IntN(len(pairs))]
		for _, pair := range [][2]string{p, q, q, p} {
			_ = exchange(path(pair[0]), path(pair[1]))
		}
		if i%64 == 0 {
			mend(path)
		}
	}
}

// exchange swaps two names below dir, unless a link is on the way to them: the
// test itself must not touch the directories outside.
func exchange(a, b string) error {
	in := func(path string) (int, error) {
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
		return unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), &how)
	}
	from, err := in(a)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := in(b)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return unix.Renameat2(from, filepath.Base(a), to, filepath.Base(b), unix.RENAME_EXCHANGE)
}

// mend makes the directories that are gone, if m is a directory.
func mend(path func(string) string) {
	if real, err := filepath.EvalSymlinks(path("m")); err != nil || real != path("m") {
		return
	}
	m, err := os.OpenRoot(path("m")) // nothing leads out of it
	if err != nil {
		return
	}
	_ = m.MkdirAll("d/k", 0o700)
	m.Close()
}
