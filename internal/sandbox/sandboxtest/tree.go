package sandboxtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Tree makes files below root, and the directories that they lie in, from lines such as "dir/",
// "link -> target", "fifo|", "socket~", "file=content", and "file", which contains its base name. A $ in a target
// or a content stands for root.
func Tree(t testing.TB, root string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, target, isLink := strings.Cut(line, " -> ")
		name, content, given := strings.Cut(name, "=")
		if !given {
			content = filepath.Base(name)
		}
		name, isFIFO := strings.CutSuffix(name, "|")
		name, isSocket := strings.CutSuffix(name, "~")
		full := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		switch {
		case isLink:
			err = errors.Join(err, os.Symlink(strings.ReplaceAll(target, "$", root), full))
		case isFIFO:
			err = errors.Join(err, unix.Mkfifo(full, 0o644))
		case isSocket: // nobody listens
			err = errors.Join(err, unix.Mknod(full, unix.S_IFSOCK|0o644, 0))
		case strings.HasSuffix(name, "/"):
			err = errors.Join(err, os.MkdirAll(full, 0o755))
		default:
			err = errors.Join(err, os.WriteFile(full, []byte(strings.ReplaceAll(content, "$", root)), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Sow makes a tree in a new directory, and returns its canonical path.
func Sow(t testing.TB, lines ...string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	Tree(t, root, lines...)
	return root
}
