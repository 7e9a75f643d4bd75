package rig

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// CProgram is a static program in C, compiled once for all tests of a package. Everybody may
// execute it.
type CProgram struct {
	Source string // relative to the folder of the package

	once sync.Once
	dir  string
	err  error
	says []byte // what the compiler has printed
}

// Path compiles the program if that was not done yet, with gcc, and returns its path.
func (p *CProgram) Path(t T) string {
	t.Helper()
	path := func() string { return filepath.Join(p.dir, "program") }
	p.once.Do(func() {
		if p.dir, p.err = publicDir(0o755); p.err == nil {
			p.says, p.err = exec.Command("gcc", "-O1", "-Wall", "-Werror", "-static", "-pthread", "-o", path(), p.Source).CombinedOutput()
		}
		if p.err == nil {
			p.err = os.Chmod(path(), 0o755) // which the umask may forbid
		}
	})
	if p.err != nil {
		t.Fatalf("compiling %s: %v\n%s", p.Source, p.err, p.says)
	}
	return path()
}

// Remove removes the program, at the end of all tests.
func (p *CProgram) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// Public returns a new folder that every user may enter and write to.
func Public(t T) string {
	t.Helper()
	dir, err := publicDir(0o777)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// publicDir returns a new folder whose mode no umask restricts.
func publicDir(mode os.FileMode) (string, error) {
	dir, err := os.MkdirTemp("", "rig")
	if err == nil {
		err = os.Chmod(dir, mode)
	}
	return dir, err
}
