package procs

import (
	"cmp"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// defaultPath is searched when the environment has no PATH.
	defaultPath = "/usr/local/bin:/bin:/usr/bin"
	// maxPath bounds how many elements of PATH are searched.
	maxPath = 4096
)

// LookPath finds a program as execvp(3) does, but with the working directory
// and environment of the child, and without its fallback to a shell. It
// searches the first 4,096 different elements of PATH. A name with a slash is returned as it is.
func LookPath(name, dir string, env []string) (found string, err error) {
	err = Search(name, dir, env, func(path string) error {
		found = path
		return nil
	})
	return found, err
}

// Search calls use with each executable path where [LookPath] would look for a program. Like
// execvp(3), it stops when use succeeds, or fails for another reason than that the program does not
// exist or must not be executed. For a name with a slash, use alone decides. Relative elements of
// PATH are in dir; with "" they stay relative.
func Search(name, dir string, env []string, use func(path string) error) error {
	switch {
	case name == "":
		return syscall.ENOENT
	case strings.Contains(name, "/"):
		return use(name) // the child resolves it in dir
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
			break // getenv(3) takes the first
		}
	}
	found := error(syscall.ENOENT)
	seen := make(map[string]struct{})
	for element := range strings.SplitSeq(path, ":") {
		if _, ok := seen[element]; ok {
			continue
		}
		if len(seen) == maxPath {
			break
		}
		seen[element] = struct{}{}
		if dir == "" {
			element = cmp.Or(element, ".")
		} else if !filepath.IsAbs(element) {
			element = dir + "/" + element
		}
		candidate := element + "/" + name
		err := executable(candidate) // which costs less than a failing fork
		if err == nil {
			err = use(candidate)
		}
		switch err {
		case nil:
			return nil
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES:
			found = err
		default:
			return err
		}
	}
	return found
}

// executable returns the error that execve(2) would return for path, as far as
// its name and permissions decide it.
func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return syscall.EACCES
	}
	return unix.Access(path, unix.X_OK)
}
