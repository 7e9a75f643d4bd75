package filecopy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// exchange exchanges two names.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// TestExchanged: somebody who may write to a source puts a link in the place of a directory of it
// while it is sent. What the link leads to is not sent.
func TestExchanged(t *testing.T) {
	t.Parallel()
	given := []string{"outside/b secret", "outside/c secret", "outside/deep/c secret",
		"src/d/a public", "src/d/b public", "src/d/deep/c public", "src/l ->../outside"}

	// Once the sender is in the directory, and exactly then.
	t.Run("inside", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		plant(t, dir, given...)
		var out bytes.Buffer
		exchanged := false
		s := Sender{Sources: []string{dir + "/src"}, Plain: true, Progress: func(int64, int64) {
			if !exchanged { // src/d/a has been sent
				exchanged = true
				rig.Must(t, exchange(dir+"/src/d", dir+"/src/l"))
			}
		}}
		rig.Must(t, s.Send(context.Background(), &out))
		if got := out.String(); !exchanged || strings.Contains(got, "secret") || strings.Count(got, "public") != 6 {
			// The directory has two names by now, one after the other.
			t.Errorf("exchanged %v, and %d of 2 times 3 files are sent, %d from outside", exchanged, strings.Count(got, "public"), strings.Count(got, "secret"))
		}
	})

	// And at any time.
	t.Run("all the time", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		plant(t, dir, given...)
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				if err := exchange(dir+"/src/d", dir+"/src/l"); err != nil {
					stopped <- err
					return
				}
			}
		}()
		rounds := 500
		if rig.Runs(rig.Merge) {
			rounds = 1000
		}
		for i := 0; i < rounds && !t.Failed(); i++ {
			var out bytes.Buffer
			s := Sender{Sources: []string{dir + "/src"}, Plain: true, Measure: true}
			if err := s.Send(context.Background(), &out); err != nil && !errors.Is(err, ErrIncomplete) {
				t.Error(err)
			}
			rig.Is(t, bytes.Contains(out.Bytes(), []byte("secret")), false, "what is outside was sent")
		}
		close(stop)
		rig.Must(t, <-stopped)
	})
}

// TestDeep: directories that are deeper in each other than a stream may have are left out and
// named; the rest is sent.
func TestDeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	deep := filepath.Join(dir, "src", strings.Repeat("d/", maxDepth-1))
	rig.Must(t, os.MkdirAll(deep, 0o755))
	plant(t, dir, "src/f f")
	rig.Must(t, os.WriteFile(filepath.Join(deep, "f"), nil, 0o644))
	var noted []error
	s := Sender{Sources: []string{dir + "/src"}, Note: func(_ string, err error) { noted = append(noted, err) }}
	rig.Is(t, transfer(s, Receiver{Target: dir + "/dst"}), ErrIncomplete, "")
	rig.Is(t, errors.Join(noted...).Error(), errDeep.Error(), "noted")
	rig.Is(t, len(harvest(t, dir+"/dst")), maxDepth, "files and directories that have come")
	has(t, dir+"/dst", "f f")
	// What is in the directory is one less deep than the directory.
	rig.Must(t, transfer(Sender{Sources: []string{dir + "/src/."}}, Receiver{Target: dir + "/inside"}))
}
