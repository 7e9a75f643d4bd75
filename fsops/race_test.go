package fsops_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// swap exchanges a and b over and over until stop is called. It returns once it
// has done so for the first time.
func swap(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	first, end, done := make(chan error), make(chan struct{}), make(chan struct{})
	exchange := func() error {
		return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	}
	go func() {
		defer close(done)
		first <- exchange()
		for {
			select {
			case <-end:
				return
			default:
				_ = exchange() // fails once they are removed
			}
		}
	}()
	rig.Must(t, <-first)
	return func() {
		close(end)
		<-done
	}
}

// TestSwappedLinks: while a directory and a link to a directory outside change
// places, nothing outside is touched.
func TestSwappedLinks(t *testing.T) {
	t.Parallel()
	files := func(prefix string) []string {
		var out []string
		for i := range 20 {
			out = append(out, prefix+strconv.Itoa(i))
		}
		return out
	}
	const duration = 300 * time.Millisecond

	t.Run("remove", func(t *testing.T) {
		t.Parallel()
		root := tree(t, files("outside/")...)
		want := list(t, filepath.Join(root, "outside"))
		for end := time.Now().Add(duration); time.Now().Before(end); {
			grow(t, root, append(files("t/m/d/"), "t/m/e -> ../../outside")...)
			stop := swap(t, filepath.Join(root, "t/m/d"), filepath.Join(root, "t/m/e"))
			_ = host.Remove(t.Context(), filepath.Join(root, "t"), true, true, fsops.FollowLinks)
			stop()
			rig.Must(t, os.RemoveAll(filepath.Join(root, "t")))
		}
		wantTree(t, filepath.Join(root, "outside"), want...)
	})
	t.Run("copy", func(t *testing.T) {
		t.Parallel()
		root := tree(t, append(files("t/m/d/"), "t/m/e -> ../../outside", "outside/secret =x")...)
		stop := swap(t, filepath.Join(root, "t/m/d"), filepath.Join(root, "t/m/e"))
		for end := time.Now().Add(duration); time.Now().Before(end); {
			_ = host.Copy(t.Context(), filepath.Join(root, "t"), filepath.Join(root, "n"), true)
			for _, line := range list(t, filepath.Join(root, "n")) {
				rig.Is(t, strings.Contains(line, "secret"), false, "copied %s", line)
			}
			rig.Must(t, os.RemoveAll(filepath.Join(root, "n")))
		}
		stop()
	})
	t.Run("walk", func(t *testing.T) {
		t.Parallel()
		root := tree(t, append(files("t/m/d/k/"), "t/m/e -> ../../outside", "outside/k/secret =x")...)
		stop := swap(t, filepath.Join(root, "t/m/d"), filepath.Join(root, "t/m/e"))
		for end := time.Now().Add(duration); time.Now().Before(end); {
			res := rig.Value(host.Walk(t.Context(), filepath.Join(root, "t"), limits))
			isSecret := func(e fsops.WalkEntry) bool { return strings.Contains(e.Path, "secret") }
			rig.Is(t, slices.ContainsFunc(res.Entries, isSecret), false, "listed %v", res.Entries)
		}
		stop()
	})
	t.Run("refuse", func(t *testing.T) {
		t.Parallel()
		root := tree(t, "m/d/f =inside", "m/e -> ../outside", "outside/f =secret")
		stop := swap(t, filepath.Join(root, "m/d"), filepath.Join(root, "m/e"))
		path := filepath.Join(root, "m/d/f")
		for end := time.Now().Add(duration); time.Now().Before(end); {
			got, err := fsops.ReadFile(t.Context(), host, path, fsops.RefuseLinks, nil)
			if err == nil && string(got) != "inside" || err != nil && !errors.Is(err, unix.ENOTDIR) {
				t.Fatalf("read %q, %v", got, err)
			}
			err = fsops.WriteFile(t.Context(), host, path, []byte("inside"), fsops.WriteOptions{Links: fsops.RefuseLinks, Atomic: rand.IntN(2) == 0})
			if err != nil && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOENT) {
				t.Fatal(err)
			}
		}
		stop()
		rig.Is(t, string(rig.Value(os.ReadFile(filepath.Join(root, "outside/f")))), "secret", "outside")
	})
}
