package programs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// An entry is one of a tree that a program has left.
type entry struct {
	mode     fs.FileMode
	uid, gid uint32
	links    string    // their number, of what is no directory: file systems count those in different ways
	content  string    // the hash of a file, the target of a link
	xattrs   string    // those of users
	modified time.Time // set by the program if it is long ago
}

// tree returns what is below a folder, by path.
func tree(t *testing.T, dir string) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		e := entry{mode: info.Mode(), uid: st.Uid, gid: st.Gid, links: fmt.Sprint(st.Nlink), modified: info.ModTime(), xattrs: xattrs(path)}
		switch e.mode.Type() {
		case 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			e.content = fmt.Sprintf("%d bytes %x", len(data), sha256.Sum256(data))
		case fs.ModeSymlink:
			if e.content, err = os.Readlink(path); err != nil {
				return err
			}
		case fs.ModeDir:
			e.links = ""
		}
		rel, err := filepath.Rel(dir, path)
		found[rel] = e
		return err
	})
	rig.Must(t, err)
	return found
}

// xattrs returns the attributes of users that a file has.
func xattrs(path string) string {
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	if err != nil {
		return "" // the file system has none
	}
	var text strings.Builder
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if bytes.HasPrefix(name, []byte("user.")) {
			value := make([]byte, 4096)
			n, err := unix.Lgetxattr(path, string(name), value)
			fmt.Fprintf(&text, "%s=%q %v ", name, value[:max(n, 0)], err)
		}
	}
	return text.String()
}

// seen returns all that is compared of a run, as texts: what it printed, how it ended and, by
// path, what it left. Files that are older than the time have had it set.
func (r *ran) seen(t *testing.T, program string, began time.Time) map[string]string {
	t.Helper()
	of := allowed(program)
	seen := map[string]string{
		"the end":          r.state.String(),
		"the output":       of.printed(r.stdout.printed),
		"the error output": of.printed(r.stderr.printed),
	}
	for path, e := range r.left {
		what := of.leaves(path)
		if what == anything {
			continue
		}
		if what == anyContent {
			e.content = ""
		}
		text := fmt.Sprintf("%v %d:%d, %s links, %s, %s", e.mode, e.uid, e.gid, e.links, e.content, e.xattrs)
		if e.modified.Before(began.Add(-time.Hour)) && what != anyContent {
			text += e.modified.UTC().String()
		}
		seen["the file "+path] = text
	}
	return seen
}
