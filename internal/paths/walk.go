package paths

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may lead through (path_resolution(7)).
const maxLinks = 40

// A Step is an entry of a folder on the way.
type Step struct {
	At     string // the folder, a path without links
	Folder os.FileInfo
	Next   string // the entry in it
	Entry  os.FileInfo
}

// Walk returns where an absolute path leads, without links. It calls judge for each step, and ends
// with its error. Other errors are those of lstat(2) and readlink(2), or ELOOP.
func Walk(path string, judge func(Step) error) (string, error) {
	const separator = string(filepath.Separator)
	at, names, links := separator, strings.Split(path, separator), 0
	folder, err := os.Lstat(at)
	if err != nil {
		return "", err
	}
	for {
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" || name == "." })
		if len(names) == 0 {
			return at, nil
		}
		next := filepath.Join(at, names[0]) // which goes up where the name is ..
		entry, err := os.Lstat(next)
		if err != nil {
			return "", err
		}
		if err := judge(Step{At: at, Folder: folder, Next: next, Entry: entry}); err != nil {
			return "", err
		}
		names = names[1:]
		if entry.Mode()&fs.ModeSymlink == 0 {
			at, folder = next, entry
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "walk", Path: path, Err: syscall.ELOOP}
		}
		if filepath.IsAbs(target) {
			at = separator
			if folder, err = os.Lstat(at); err != nil {
				return "", err
			}
		}
		names = append(strings.Split(target, separator), names...)
	}
}
