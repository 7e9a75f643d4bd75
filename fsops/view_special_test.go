package fsops_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// everything lets all be written but one file, so that only a file system can
// be the reason for a refusal.
var everything = policy{rules: []rule{{"/", fsops.Write}, {"/nonexistent", fsops.Denied}}}

// TestViewSpecial: file systems of the kernel and /dev have rules that hold
// whatever the policy says.
func TestViewSpecial(t *testing.T) {
	t.Parallel()
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	rig.Must(t, sleeper.Start())
	defer func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	}()
	ids := strings.NewReplacer("$PID", strconv.Itoa(sleeper.Process.Pid), "$OWN", strconv.Itoa(os.Getpid()), "$THREAD", strconv.Itoa(unix.Gettid()))
	for line, want := range outcomes(t, "special") {
		line = ids.Replace(line)
		t.Run(line, func(t *testing.T) {
			root := tree(t, "f =f", "d/x =x", "link -> /proc/self/environ", "todev -> /dev/pts/ptmx")
			_, err := operation(t.Context(), everything.view(t, root, os.Getpid()), root, line)
			if want != ok {
				checkErr(t, err, want)
			} else if err != nil {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestViewListsDevices(t *testing.T) {
	t.Parallel()
	shm := rig.Value(os.CreateTemp("/dev/shm", "view-test"))
	defer os.Remove(shm.Name())
	defer shm.Close()
	v := everything.view(t, "/")
	for dir, absent := range map[string]string{"/dev": "kmsg", "/dev/shm": filepath.Base(shm.Name()), "/dev/pts": "ptmx"} {
		got := rig.Value(operation(t.Context(), v, "/", "list "+dir))
		words := " " + strings.NewReplacer("?", "", "/", "").Replace(got) + " "
		if strings.Contains(words, " "+absent+" ") || dir == "/dev" && !strings.Contains(words, " null ") || dir != "/dev" && got != "" {
			t.Errorf("%s lists %q", dir, got)
		}
	}
	// The names in procfs are listed without their types, which nobody may see.
	got, err := operation(t.Context(), v, "/", "list /proc")
	if err != nil || !strings.Contains(" "+got+" ", " self? ") || !strings.Contains(" "+got+" ", " version ") {
		t.Errorf("/proc lists %q, %v", got, err)
	}
	got, err = operation(t.Context(), v, "/", "walk /proc/1")
	for _, want := range []string{"fd/", "fd: permission denied", "status", "task: permission denied"} {
		rig.Check(t, err)
		rig.Is(t, strings.Contains("\n"+got+"\n", "\n"+want+"\n"), true, "/proc/1 holds %q: %s", want, got)
	}
}

// TestViewNeverBlocks: neither a fifo that nobody writes nor a device makes an
// operation wait.
func TestViewNeverBlocks(t *testing.T) {
	t.Parallel()
	root := tree(t, "fifo |", "d/fifo |", "link -> fifo")
	v := everything.view(t, root)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, line := range []string{"read fifo", "write fifo", "read link", "write link", "cp fifo x", "cpr d d2", "list fifo", "walk .", "read /dev/tty"} {
			rig.Is(t, errors.Is(rig.Err(operation(t.Context(), v, root, line)), unix.ENXIO), false, "%s opened it", line)
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("an operation hangs")
	}
}

// TestViewMountedElsewhere: procfs and sysfs are known by what they are,
// wherever they are mounted.
func TestViewMountedElsewhere(t *testing.T) {
	const marker = "FSOPS_TEST_MOUNTS"
	root := os.Getenv(marker)
	if root == "" {
		t.Parallel()
		root = tree(t, "p/", "s/", "one", "f =f", "up -> p/self/environ")
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
		cmd.Env = append(os.Environ(), marker+"="+root, "GORACE=atexit_sleep_ms=0")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, unix.EPERM) {
			t.Skip("no user namespaces here")
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("in namespaces of its own: %v\n%s", err, out)
		}
		return
	}

	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", filepath.Join(root, "p"), "proc", 0},
		{"/sys", filepath.Join(root, "s"), "", unix.MS_BIND | unix.MS_REC},
		{filepath.Join(root, "p/1/environ"), filepath.Join(root, "one"), "", unix.MS_BIND},
	} {
		rig.Must(t, unix.Mount(m.source, m.target, m.kind, m.flags, ""))
	}
	v := everything.view(t, root, 1)
	for line, want := range outcomes(t, "mounted elsewhere") {
		rig.Is(t, rig.Err(operation(t.Context(), v, root, line)), want, "%s: error", line)
	}
	rig.Is(t, strings.HasPrefix(rig.Value(operation(t.Context(), v, root, "read p/version")), "Linux"), true, "version")
}

// TestViewDescriptors: no descriptor is left open, whatever the outcome.
func TestViewDescriptors(t *testing.T) {
	if os.Getenv("FSOPS_TEST_ALONE") == "" {
		t.Parallel()
		// In a process of its own, since other tests open files meanwhile.
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
		cmd.Env = append(os.Environ(), "FSOPS_TEST_ALONE=1", "GORACE=atexit_sleep_ms=0")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	open := func() int { return len(rig.Value(os.ReadDir("/proc/self/fd"))) }
	root := tree(t, viewTree...)
	before := open()
	views := []*fsops.View{workspace.view(t, root), readOnly.view(t, root), partial.view(t, root)}
	during := open()
	ops := []string{
		"read repo/f.txt", "read repo/vault/x", "read repo/up", "read repo/loop", "read repo/toself", "read! repo/tofile", "read repo/nope",
		"read repo/fifo", "write repo/new", "write repo/.git/x", "write repo/a/x", "write repo/out", "stat /", "stat repo/up", "real repo/up",
		"list repo", "walk repo", "follow repo", "mkdirs repo/x/y/z", "rmr repo/x", "rmr repo/a", "cpr repo/ro repo/n/m", "cpr repo/sub repo/m",
		"rmrf repo/n", "mv repo/new repo/new2", "mvr repo/new2 repo/new", "mv repo/sub repo/sub2", "cp repo/f.txt repo/f.txt", "cp repo/out repo/g",
		"rm! repo/out", "mkdir repo/gone", "mkdirs repo/gone", "list /dev", "read /proc/1/environ", "rmr /", "list repo/f.txt",
	}
	const rounds = 5
	for range rounds {
		for _, v := range views {
			for _, line := range ops {
				_, _ = operation(t.Context(), v, root, line)
			}
		}
	}
	rig.Is(t, open(), during, "descriptors after %d operations", rounds*len(views)*len(ops))
	for _, v := range views {
		rig.Check(t, v.Close(), v.Close())
	}
	rig.Is(t, open(), before, "descriptors after the views are closed")
}

// TestViewBounds: a link that goes up and down, a chain of links, and a tree as
// deep as paths can be come to an end.
func TestViewBounds(t *testing.T) {
	t.Parallel()
	root := tree(t, "a/b/c/f =f", "zigzag -> "+strings.Repeat("a/../", 200)+"a/b/c/f", "zig -> "+strings.Repeat("a/../", 20)+"a/b/c/f",
		"zag -> a/b/c/../../../a/b/c/./f")
	for i := range 60 {
		grow(t, root, fmt.Sprintf("l%d -> l%d", i+1, i))
	}
	grow(t, root, "l0 -> a/b/c/f")
	v := everything.view(t, root)
	for line, want := range map[string]error{
		"read zig": nil, "read zag": nil, "read l39": nil, "read l40": unix.ELOOP, "read zigzag": unix.ELOOP,
		"read " + strings.Repeat("x/", 2048): unix.ENAMETOOLONG, "read " + strings.Repeat("x", 256): unix.ENAMETOOLONG,
	} {
		rig.Is(t, rig.Err(operation(t.Context(), v, root, line)), want, "%.40s: error", line)
	}
	// Deeper than the descriptors that a removal holds open at once.
	deep := "deep" + strings.Repeat("/d", 150)
	grow(t, root, deep+"/f =f")
	for _, line := range []string{"cpr deep copied", "rmr deep", "read copied" + strings.Repeat("/d", 150) + "/f"} {
		rig.Is(t, rig.Err(operation(t.Context(), v, root, line)), nil, "%.20s", line)
	}
}
