package applypatch

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Provided is a directory for the PATH of commands, with the tool in it.
type Provided struct {
	dir     string
	program string
}

// Provide makes such a directory, with a link to this program. The caller closes it.
//
// If possible, it is not in a directory for temporary files, because commands may write there, and
// protecting a part of a writable directory needs a weaker kind of sandbox.
func Provide() (*Provided, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var refused []error
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir()} {
		if !filepath.IsAbs(parent) {
			continue
		}
		dir, err := os.MkdirTemp(parent, "apply_patch-")
		if err != nil {
			refused = append(refused, err)
			continue
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil { // a policy that lets a link on the way be written would be refused
			return nil, err
		}
		p := &Provided{dir: dir, program: program}
		if err := errors.Join(os.Chmod(dir, 0o755), os.Symlink(program, filepath.Join(dir, toolName))); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		return p, nil
	}
	return nil, errors.Join(refused...)
}

// Close removes the directory.
func (p *Provided) Close() error { return os.RemoveAll(p.dir) }

// Dir is the directory; a nil p has none.
func (p *Provided) Dir() string {
	if p == nil {
		return ""
	}
	return p.dir
}

// Paths returns the paths that a command must be able to read to execute the tool, and must not be
// able to change. A nil p has none.
func (p *Provided) Paths() []string {
	if p == nil {
		return nil
	}
	return []string{p.dir, p.program}
}

// Before puts the directory in front of PATH in env, if env has a PATH. A nil p returns env
// unchanged.
func (p *Provided) Before(env []string) []string {
	if p == nil {
		return env
	}
	i := slices.IndexFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "PATH=") && entry != "PATH=" })
	if i < 0 || slices.Contains(filepath.SplitList(env[i][len("PATH="):]), p.dir) {
		return env
	}
	env = slices.Clone(env)
	env[i] = "PATH=" + p.dir + string(filepath.ListSeparator) + env[i][len("PATH="):]
	return env
}
