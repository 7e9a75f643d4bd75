package secretfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

const inNamespace = "SECRETFILE_TEST_IN_NAMESPACE"

// TestMounts: secrets as Kubernetes, Docker and podman mount them, in namespaces of a child.
func TestMounts(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMounts$", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		ids := func(id int) []syscall.SysProcIDMap {
			return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids(os.Geteuid()), GidMappings: ids(os.Getegid()),
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
			t.Skip("no user namespaces: ", err)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if !outside(overflow) || outside(stranger) {
		t.Error("a user without a uid in a user namespace is not known")
	}
	mount := func(at string, flags uintptr) {
		t.Helper()
		if err := syscall.Mount("none", at, "tmpfs", flags, "mode=0755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
	}
	mkdir := func(path string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, path string) {
		t.Helper()
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	check := func(path, want string) {
		t.Helper()
		if got, words := verdict(path); got != want {
			t.Errorf("%s: %s, %s; want %s", path, got, words, want)
		}
	}
	// Kubernetes: a tmpfs of its own, links to a folder with the time in its name, mode 0644, and
	// a folder that the group of the pod may write.
	volume := t.TempDir()
	mount(volume, 0)
	mkdir(volume, 0o777)
	mkdir(filepath.Join(volume, "..2026_01_01"), 0o775)
	write(t, filepath.Join(volume, "..2026_01_01", "token"), 0, 0, 0o644)
	link("..2026_01_01", filepath.Join(volume, "..data"))
	link("..data/token", filepath.Join(volume, "token"))
	check(filepath.Join(volume, "token"), refused)
	if err := syscall.Mount("none", volume, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	check(filepath.Join(volume, "token"), fine)
	if got := Place(filepath.Join(volume, "token")); got != volume {
		t.Errorf("to hide: %s", got)
	}

	// podman: a file of root's with mode 0444, below a folder that can be written to by root.
	mount("/run", 0)
	mkdir("/run/secrets", 0o755)
	check(write(t, "/run/secrets/token", 0, 0, 0o444), fine)
	if got := Place("/run/secrets/token"); got != "/run/secrets/token" {
		t.Errorf("to hide: %s", got)
	}
	check(write(t, "/run/token", 0, 0, 0o444), warned)
	check(write(t, "/run/secrets/open", 0, 0, 0o666), refused)
	link("/run/token", "/run/secrets/link")
	check("/run/secrets/link", warned) // it leads out
	mkdir("/run/secrets", 0o777)
	check("/run/secrets/token", refused)
}
