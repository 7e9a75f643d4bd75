package resolve

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

// maxPointer is the most bytes of a pointer file: a path and the text around it.
const maxPointer = 4096

// gitDirs makes the git directories read-only that .git pointer files at the top
// of writable roots name, if the policy lets them be written (sandbox.md 6.3). It
// does the same for the common directory that such a git directory names, which
// has the hooks and the configuration (gitrepository-layout(5)).
func (s *resolution) gitDirs() error {
	for _, pointer := range slices.Sorted(maps.Keys(s.pointers)) {
		root := pathname.Parent(pointer)
		if s.rules[root].Access != sandbox.Write || s.rules[pointer].Access == sandbox.Write {
			continue
		}
		text, ok := strings.CutPrefix(s.pointers[pointer], "gitdir: ")
		if !ok {
			continue
		}
		dir, err := s.seal(pointer, root, text)
		if err != nil {
			return err
		}
		if dir == "" {
			continue
		}
		second, text, err := s.commonDir(dir)
		if err == nil {
			_, err = s.seal(second, dir, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// seal makes the directory read-only that text, the content of the file pointer,
// names relative to base. It returns the directory's path. It returns "" if there
// is none, or if an entry of the profile makes that very directory writable: then
// commands may decide what git uses, and nothing is left to protect.
func (s *resolution) seal(pointer, base, text string) (dir string, err error) {
	name := strings.TrimRight(text, "\r\n")
	switch {
	case name == "":
		return "", nil
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("the pointer file %s has a NUL", pointer)
	case !path.IsAbs(name):
		name = base + "/" + name
	}
	err = s.see("git directory", name, func(o *sighting) error {
		if s.rules[o.path].Access == sandbox.Write {
			return nil
		}
		if s.rules.Access(o.path) == sandbox.Write {
			o.rule, o.origin = true, sandbox.GitDir
			s.rules.Add(sandbox.Rule{Path: o.path, Access: sandbox.Read, Origin: sandbox.GitDir})
		}
		if o.exists() && !o.barred {
			dir = o.path
		}
		return nil
	})
	return dir, err
}

// commonDir returns the path of the commondir file in a git directory, and its
// text, which names another directory; "" if there is no such file.
func (s *resolution) commonDir(dir string) (pointer, text string, err error) {
	pointer = path.Join(dir, "commondir")
	err = s.see("git directory", pointer, func(o *sighting) error {
		if !o.exists() || o.stat.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil
		}
		o.pointer = true
		var err error
		if text, err = readPointer(o.fd); err != nil {
			return fmt.Errorf("reading %s: %w", o.path, err)
		}
		return nil
	})
	return pointer, text, err
}

// readPointer reads a pointer file through its O_PATH descriptor.
func readPointer(fd int) (string, error) {
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", errors.Unwrap(err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxPointer+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxPointer {
		return "", fmt.Errorf("it is longer than %d bytes", maxPointer)
	}
	return string(text), nil
}
