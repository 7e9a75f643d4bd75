package paths

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestWalk: links, .. and . are followed as the kernel does, and each step is told.
func TestWalk(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t,
		err,
		os.MkdirAll(dir+"/a/b", 0o755),
		os.WriteFile(dir+"/a/b/file", nil, 0o600),
		os.Symlink("a/./b", dir+"/short"),
		os.Symlink(dir+"/a", dir+"/absolute"),
		os.Symlink("loop", dir+"/loop"),
	)
	for path, want := range map[string]struct {
		end   string
		steps []string // of those below dir
		err   error
	}{
		"/a/b/file":          {"/a/b/file", []string{"/a", "/a/b", "/a/b/file"}, nil},
		"/short/file":        {"/a/b/file", []string{"/short", "/a", "/a/b", "/a/b/file"}, nil},
		"/absolute/../a//b/": {"/a/b", []string{"/absolute", "/a", "/a", "/a/b"}, nil},
		"/none/file":         {"", nil, fs.ErrNotExist},
		"/a/b/file/more":     {"", []string{"/a", "/a/b", "/a/b/file"}, syscall.ENOTDIR},
		"/loop":              {"", slices.Repeat([]string{"/loop"}, maxLinks+1), syscall.ELOOP},
	} {
		var steps []string
		end, err := Walk(dir+path, func(s Step) error {
			if rest, below := strings.CutPrefix(s.Next, dir+"/"); below {
				steps = append(steps, "/"+rest)
			}
			return nil
		})
		rig.Is(t, err, want.err, "%s", path)
		rig.Is(t, err != nil || end == dir+want.end, true, "%s ends at %s", path, end)
		rig.Same(t, path, want.steps, steps)
	}
	stop := errors.New("stop")
	rig.Is(t, rig.Err(Walk(dir+"/a", func(Step) error { return stop })), stop, "the caller's error")
}
