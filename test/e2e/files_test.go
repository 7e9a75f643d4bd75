package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/test/rig"
)

// files is the environment of users of an agent's files.
func (w *way) files(t *testing.T) []string {
	return slices.Clip(append(slices.Clone(w.environ), "PATH="+filepath.Dir(rig.Agent(t))+":"+os.Getenv("PATH"), "AGENT_WAIT=5m"))
}

// TestFiles: what a user of cp, ls, cat, rm and mkdir types, and what they print.
func TestFiles(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		here := t.TempDir()
		console(t, "files", here, append(w.files(t), "HOME="+here, "THERE="+w.there, "TZ=UTC", "X=x\xff", "Y=x\ufffd")...)
	})
}

// forest makes a tree with a large file and many small ones.
func forest(t *testing.T, dir string, size int) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	large := make([]byte, size)
	_, _ = random.Read(large) // it never fails
	for name, content := range map[string][]byte{"large": large, "sub/a": large[:100], "sub/zero": nil, "name with\nnew line": large[:300_000]} {
		path := filepath.Join(dir, name)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, os.WriteFile(path, content, 0o640))
	}
	for i := range size >> 16 {
		rig.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("sub/", i)), large[i:2*i], 0o600))
	}
}

// sums are the names in a tree with their modes and the SHA-256 of what is in them, and with their
// times.
func sums(t *testing.T, dir string, times bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%q %v %x", strings.TrimPrefix(path, dir), info.Mode(), sha256.Sum256(content))
		if times {
			fmt.Fprint(&all, " ", info.ModTime().UnixNano())
		}
		fmt.Fprintln(&all)
		return err
	})
	rig.Must(t, err)
	return all.String()
}

// TestCopyThroughCuts: connections that are lost one after the other change nothing of a copy,
// either way, as files or as an archive.
func TestCopyThroughCuts(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, proxy, there := w.files(t), w.proxy, w.there
		here := t.TempDir()
		size, cut := 8<<20, int64(2_000_000)
		if rig.Runs(rig.Merge) {
			size, cut = 48<<20, 6_000_000
		}
		forest(t, filepath.Join(here, "src"), size)

		for _, step := range []struct{ line, tree string }{
			{"agent cp src :up", there + "/up"},
			{"agent cp :up down", here + "/down"},
			{"agent mkdir in && tar c -C src . | agent cp - :in", there + "/in"},
			{"mkdir out && agent cp :up/. - | tar x -C out", here + "/out"},
			{"mkdir cat && cp -a src/. cat && agent cat up/large >cat/large && touch -r src/large cat/large", here + "/cat"},
		} {
			before, _ := proxy.Seen()
			stop := proxy.CutEach(cut)
			cmd := rig.Command(t, "sh", "-c", step.line)
			cmd.Env, cmd.Dir = environ, here
			said := says(t, cmd)
			stop()
			rig.Is(t, said, "", "%s", step.line)
			times := !strings.Contains(step.line, "tar") // which has no nanoseconds
			rig.Is(t, sums(t, step.tree, times), sums(t, filepath.Join(here, "src"), times), "%s: what arrives", step.line)
			after, _ := proxy.Seen()
			rig.Is(t, after-before < 3, false, "%s: the connection was cut %d times", step.line, after-before-1)
		}
	})
}

// TestCopyInterrupted: who ends a copy in the middle finds what was there before, and nothing else,
// on both sides; also where the client or the agent is killed.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, proxy, there := w.files(t), w.proxy, w.there
		here := t.TempDir()
		large := bytes.Repeat([]byte("new content "), 700_000)
		for _, tt := range []struct {
			up     bool
			signal syscall.Signal
			code   int
		}{
			{true, syscall.SIGINT, 130}, {false, syscall.SIGINT, 130}, {true, syscall.SIGTERM, 143}, {false, syscall.SIGTERM, 143},
			{true, syscall.SIGKILL, -1}, {false, syscall.SIGKILL, -1},
		} {
			from, to, args := filepath.Join(here, "file"), filepath.Join(there, "file"), []string{"cp", "file", ":file"}
			if !tt.up {
				from, to, args = to, from, []string{"cp", ":file", "file"}
			}
			rig.Must(t, os.WriteFile(from, large, 0o644))
			rig.Must(t, os.WriteFile(to, []byte("old"), 0o644))
			held := make(chan struct{})
			proxy.CutAfter(3_000_000, func() {
				if tt.up {
					proxy.HoldUp()
				} else {
					proxy.HoldDown()
				}
				close(held)
			})
			cmd := exec.Command(rig.Agent(t), args...)
			cmd.Env, cmd.Dir = environ, here
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			p := rig.Start(t, cmd)
			p.Until(t, "the copy is held up", isClosed(held))
			rig.Must(t, p.Process.Signal(tt.signal))
			proxy.Pass()
			rig.Is(t, ending(withoutWaits(stderr.String()), p.Exit(t)), ending("", tt.code), "%v, up %v", tt.signal, tt.up)
			// The rest may come before the program sees the signal.
			if got := textOf(os.ReadFile(to)); got != "old" && got != string(large) {
				t.Errorf("%v, up %v: there is %.50q", tt.signal, tt.up, got)
			}
			for _, dir := range []string{here, there} {
				rig.Is(t, fmt.Sprint(rig.Value(filepath.Glob(dir+"/.*"))), "[]", "%v, up %v: left", tt.signal, tt.up)
			}
		}
	})
}

// isClosed returns a function that reports whether the channel is closed.
func isClosed(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}

// TestCopyProgress: on a terminal a bar shows how far the copy is. A script sees nothing of it.
func TestCopyProgress(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, proxy := w.files(t), w.proxy
		here := t.TempDir()
		rig.Must(t, os.WriteFile(filepath.Join(here, "file"), bytes.Repeat([]byte("content "), 1<<20), 0o644))
		for _, args := range [][]string{{"cp", "file", ":file"}, {"cp", ":file", "back"}} {
			// It goes on when the bar has been seen.
			held := make(chan struct{})
			proxy.CutAfter(3_000_000, func() {
				proxy.HoldUp()
				proxy.HoldDown()
				close(held)
			})
			cmd := exec.Command(rig.Agent(t), args...)
			cmd.Env, cmd.Dir = append(slices.Clone(environ), "NO_COLOR=1"), here
			u := at(t, cmd, &pty.Winsize{Rows: 24, Cols: 100})
			rig.Until(t, "the copy is held up", isClosed(held))
			u.sees(t, "[=", "% ", "of 8.4 MB")
			u.sees(t, "/s")
			u.sees(t, " left")
			proxy.Pass()
			u.sees(t, "] 100%  8.4 MB of 8.4 MB", "\r\n")
			u.ends(t, 0)
		}
		cmd := exec.Command(rig.Agent(t), "cp", "-q", "file", ":file")
		cmd.Env, cmd.Dir = environ, here
		u := at(t, cmd, &pty.Winsize{Rows: 24, Cols: 100})
		rig.Is(t, withoutWaits(u.exits(t)), "", "--quiet shows")
		u.ends(t, 0)
	})
}
