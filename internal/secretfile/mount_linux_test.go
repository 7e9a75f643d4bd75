package secretfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

const inNamespace = "SECRETFILE_TEST_IN_NAMESPACE"

// TestMounts: secrets as Kubernetes, Docker and podman mount them, in namespaces of a child.
func TestMounts(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMounts$", "-test.v")
		theirs := filepath.Join(t.TempDir(), "theirs")
		rig.Must(t, os.WriteFile(theirs, []byte("secret"), 0o600))
		if os.Geteuid() == 0 {
			give(t, theirs, stranger, -1, 0o600)
		}
		cmd.Env = append(os.Environ(), inNamespace+"="+strconv.Itoa(os.Geteuid()), "SECRETFILE_TEST_STRANGER="+theirs)
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
		rig.Is(t, err, nil, "%s", out)
		return
	}
	mount := func(at string, flags uintptr) {
		t.Helper()
		rig.Must(t, syscall.Mount("none", at, "tmpfs", flags, "mode=0755"))
		t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
	}
	// A root of our own: that of the host may belong to a user without a uid here.
	root := t.TempDir()
	mount(root, 0)
	rig.Must(t, os.Mkdir(root+"/proc", 0o755), os.Mkdir(root+"/tmp", 0o755), os.Mkdir(root+"/run", 0o755), os.Mkdir(root+"/host", 0o755),
		syscall.Mount("/proc", root+"/proc", "", syscall.MS_BIND|syscall.MS_REC, ""),
		syscall.Mount("/", root+"/host", "", syscall.MS_BIND|syscall.MS_REC, ""),
		syscall.Chroot(root), os.Chdir("/"), os.Setenv("TMPDIR", "/tmp"))
	mkdir := func(path string, mode os.FileMode) {
		t.Helper()
		rig.Must(t, errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)))
	}
	link := func(target, path string) {
		t.Helper()
		rig.Must(t, os.Symlink(target, path))
	}
	check := func(path, want string) {
		t.Helper()
		got, words := verdict(path)
		rig.Is(t, got, want, "%s: %s", path, words)
	}
	// Kubernetes: a tmpfs of its own, links to a folder with the time in its name, mode 0644, and
	// a folder that the group of the pod may write.
	volume := "/volume"
	mkdir(volume, 0o755)
	mount(volume, 0)
	mkdir(volume, 0o777)
	mkdir(filepath.Join(volume, "..2026_01_01"), 0o775)
	write(t, filepath.Join(volume, "..2026_01_01", "token"), 0, 0, 0o644)
	link("..2026_01_01", filepath.Join(volume, "..data"))
	link("..data/token", filepath.Join(volume, "token"))
	check(filepath.Join(volume, "token"), refused)
	rig.Must(t, syscall.Mount("none", volume, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	check(filepath.Join(volume, "token"), fine)
	files, folders := Hide(filepath.Join(volume, "token"), nil)
	rig.Is(t, slices.Contains(files, volume), true, "to hide are %q, %q, and the volume", files, folders)
	// Links that others can make do not count as mounts of secrets.
	mkdir("/open", 0o777)
	link("/volume/token", "/open/key")
	check("/open/key", refused)

	// All is read-only, as for a service of systemd, but others can write elsewhere.
	strict := "/strict"
	mkdir(strict, 0o755)
	mount(strict, 0)
	mkdir(strict+"/etc", 0o755)
	mkdir(strict+"/etc/open", 0o777)
	write(t, strict+"/etc/changed", 0, 0, 0o666)
	write(t, strict+"/etc/open/token", 0, 0, 0o600)
	rig.Must(t, syscall.Mount("none", strict, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
	check(strict+"/etc/changed", refused)
	check(strict+"/etc/open/token", refused)

	// Who has no uid here may be anybody, in all of what is on the host.
	if uid := os.Getenv(inNamespace); uid == "0" {
		check("/host"+os.Getenv("SECRETFILE_TEST_STRANGER"), refused)
	}

	// podman: a file of root's with mode 0444, below a folder that can be written to by root.
	mount("/run", 0)
	mkdir("/run/secrets", 0o755)
	check(write(t, "/run/secrets/token", 0, 0, 0o444), fine)
	check(write(t, "/run/token", 0, 0, 0o444), warned)
	check(write(t, "/run/secrets/open", 0, 0, 0o666), refused)
	link("/run/token", "/run/secrets/link")
	check("/run/secrets/link", warned) // it leads out
	mkdir("/run/secrets", 0o777)
	check("/run/secrets/token", refused)
	// Docker: a file of anybody's, mounted read-only where secrets are.
	mkdir("/run/secrets", 0o755)
	bind := func(flags uintptr) error {
		return syscall.Mount("/run/secrets/open", "/run/secrets/token", "", flags, "")
	}
	rig.Must(t, errors.Join(bind(syscall.MS_BIND), bind(syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY)))
	check("/run/secrets/token", fine)
	check("/run/secrets/open", refused)
}
