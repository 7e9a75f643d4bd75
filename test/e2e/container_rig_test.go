package e2e

import (
	"debug/elf"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestMain has programs start as they do for everybody, whoever runs the tests, and removes what
// the tests of containers share.
func TestMain(m *testing.M) {
	// The secrets of the user of this machine are no part of a test.
	for name, value := range map[string]string{"AGENT_CONFIG": "/nonexistent/config.toml", "AGENT_SANDBOX_SHOW_SECRETS": "true", "LC_ALL": "C"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	syscall.Umask(0o022)
	// What is ignored here, as after nohup or in the background of a script, programs would ignore
	// that are started. What is caught here has its default there.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	http.DefaultClient.Timeout = patience
	code := m.Run()
	if containerDir != "" {
		if err := os.RemoveAll(containerDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// containerDir is where podman keeps the images and the containers of the tests, once there are
// any. Its name is short since podman allows the path of its run root 50 bytes.
var containerDir string

// containerSeconds is when a container that does not end by itself is ended.
const containerSeconds = "1200"

// containers runs programs in containers of one image. It has the agent as /agent, a shell and
// tools of busybox in /bin, and the volume /repo, which is the folder repo on this machine and
// belongs to the user of the container.
//
// It needs root, podman with an OCI runtime, and a static busybox; nothing is pulled. Every
// podman runs in a mount namespace of its own with a cgroup2 file system over /sys/fs/cgroup:
// podman does not work with the hybrid layout of some machines. All methods may be called at
// once.
type containers struct{ repo string }

// newContainers returns containers with a volume of their own.
func newContainers(t *testing.T) *containers {
	t.Helper()
	rig.Tier(t, rig.Merge)
	if os.Getuid() != 0 {
		t.Skip("containers are run by root here")
	}
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skipf("no podman: %v", err)
	}
	if err := static(busybox); err != nil {
		t.Skipf("no static busybox for the image: %v", err)
	}
	rig.Must(t, buildImages())
	return &containers{repo: t.TempDir()}
}

// buildImages builds the images of the Dockerfiles, and the image of the tests from that of the
// agent.
var buildImages = sync.OnceValue(func() error {
	if _, err := rig.Build(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ctr")
	if err != nil {
		return err
	}
	containerDir = dir
	context := filepath.Join(dir, "image")
	// Locks are files, not shared memory, so that nothing is shared with the machine's own
	// podman.
	const config = "[engine]\nlock_type = \"file\"\nevents_logger = \"none\"\n"
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "containers.conf"), []byte(config), 0o600),
		os.Mkdir(context, 0o700),
	); err != nil {
		return err
	}
	if out, err := exec.Command("sh", "container/root.sh", context, strconv.Itoa(containerUser)).CombinedOutput(); err != nil {
		return fmt.Errorf("container/root.sh: %w\n%s", err, out)
	}
	for _, build := range [][]string{
		{"-f", "../../Dockerfile", "-t", "execagent/agent", "../.."},
		{"-f", "../../deploy/registry.Dockerfile", "-t", "execagent/registry", "../.."},
		{"-f", "container/Dockerfile", "-t", "exectest", "--pull=never", context},
	} {
		if out, err := podman(append([]string{"build", "-q"}, build...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("podman build %s: %w\n%s", build, err, out)
		}
	}
	return nil
})

// podman is a podman of the tests' own.
func podman(args ...string) *exec.Cmd {
	const enter = `mount -t cgroup2 none /sys/fs/cgroup && exec timeout --foreground 1500 podman "$@"`
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", enter, "podman",
		"--root", filepath.Join(containerDir, "store"), "--runroot", filepath.Join(containerDir, "run"),
		"--tmpdir", filepath.Join(containerDir, "tmp"), "--cgroup-manager=cgroupfs"}, args...)...)
	cmd.Env = append(os.Environ(), "STORAGE_DRIVER=vfs", "CONTAINERS_CONF="+filepath.Join(containerDir, "containers.conf"))
	return cmd
}

// runFlags are those of every podman run here.
var runFlags = []string{"--rm", "-i", "--pull=never", "--timeout=" + containerSeconds, "--cgroups=disabled", "--network=none",
	"--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"}

// command is a program in a new container, which ends with it. The options are podman's, besides
// those of the profile.
func (c *containers) command(t *testing.T, kind containerKind, options []string, argv ...string) *exec.Cmd {
	t.Helper()
	c.own(t, kind)
	return podman(slices.Concat([]string{"run", "--volume=" + c.repo + ":/repo"}, runFlags, options, kind.flags,
		[]string{"localhost/exectest"}, argv)...)
}

// run runs a program in a new container to its end.
func (c *containers) run(t *testing.T, kind containerKind, argv ...string) result {
	t.Helper()
	r := finish(t, c.command(t, kind, nil, argv...))
	if r.code == 125 { // podman's own; a command of the tests' own never ends so
		t.Fatalf("podman cannot run %s: %s", argv, r.stderr)
	}
	return r
}

// own gives the volume, and what is in it, to the user of a kind of container.
func (c *containers) own(t *testing.T, kind containerKind) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(c.repo, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, kind.uid, kind.uid))
	}))
}

const busybox = "/bin/busybox"

// static tells why a program cannot run without other files of this machine; nil if it can.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs a loader", path)
		}
	}
	return nil
}

func write(t *testing.T, path, content string) {
	t.Helper()
	rig.Must(t, os.WriteFile(path, []byte(content), 0o644))
}
