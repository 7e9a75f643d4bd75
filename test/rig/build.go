package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Agent returns the path of the agent, built as it is released, once for all tests of a package.
func Agent(t T) string {
	t.Helper()
	return filepath.Join(built(t), "agent")
}

// Registry returns the path of the registry, built with the agent.
func Registry(t T) string {
	t.Helper()
	return filepath.Join(built(t), "registry")
}

// Launcher writes the program nouserns into a folder, and returns its path. nouserns executes a
// program as a container without user namespaces does. It is built with the agent.
func Launcher(t T, dir string) string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(built(t), "nouserns"))
	launcher := filepath.Join(dir, "nouserns")
	if err == nil {
		err = WriteProgram(launcher, program)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return launcher
}

func built(t T) string {
	t.Helper()
	bin, err := Build()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return bin
}

// Build returns the folder of the programs. The variable E2E_PROGRAMS names the folder if the
// programs were built before the tests. Otherwise Build builds them, once. Tests of several
// packages that run at once build one after the other.
var Build = sync.OnceValues(func() (bin string, err error) {
	if bin := os.Getenv("E2E_PROGRAMS"); bin != "" {
		return bin, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	lock, err := os.Open(root) // not go.mod, which the go command locks
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*Patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "make", "-C", root, "build-programs").CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build-programs: %w\n%s", err, out)
	}
	return filepath.Join(root, "bin"), nil
})

// moduleRoot returns the folder with go.mod above the working directory. In a test, the working
// directory is the folder of the package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("there is no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Lacking returns an error that names the first of these programs that this machine lacks, also outside of PATH.
func Lacking(programs ...string) error {
	for _, program := range programs {
		_, err := exec.LookPath(program)
		if err == nil {
			continue
		}
		if _, missing := os.Stat("/usr/sbin/" + program); missing != nil {
			return err
		}
	}
	return nil
}
