package sandboxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, and fails if they leave goroutines behind; TestMain calls it,
// and it does not return. The tests have the umask 022 and a temporary directory of their own, whatever
// the machine has. In that directory lies what others may leave in any: the names that a policy
// protects, and a file called new. So a test that depends on what lies above its own directory
// fails everywhere. The functions run once the directory is there, before the tests.
func Main(m *testing.M, prepare ...func()) {
	syscall.Umask(0o022)
	dir, err := temporary()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, f := range prepare {
		f()
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// temporary makes the temporary directory. Its name is short, because paths of sockets have to be.
func temporary() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "t"); err != nil {
		return "", err
	}
	for _, name := range []string{".agents", ".aws", ".codex", ".git"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		return "", err
	}
	return dir, os.Setenv("TMPDIR", dir)
}
