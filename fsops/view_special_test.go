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
	const ok = unix.Errno(0)
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	rig.Must(t, sleeper.Start())
	defer func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	}()
	pid, own := strconv.Itoa(sleeper.Process.Pid), strconv.Itoa(os.Getpid())
	thread := strconv.Itoa(unix.Gettid())
	ops := map[string]error{
		"read /proc/version": ok, "read /proc/meminfo": ok, "list /proc": ok, "stat /proc/meminfo": ok, "list /proc/1": ok,
		"read /proc/sys/kernel/ostype": ok, "list /proc/sys/kernel": ok, "stat /proc/sys/kernel/keys": ok,
		"read /proc/self/status": unix.EACCES, "read /proc/self/environ": unix.EACCES, "stat /proc/self": unix.EACCES,
		"read /proc/thread-self/comm": unix.EACCES, "read /proc/mounts": unix.EACCES, "list /proc/net": unix.EACCES,
		"read link": unix.EACCES, "read /dev/stdin": unix.EACCES, "list /dev/fd": unix.EACCES,

		"read /proc/" + pid + "/status":  ok,
		"list /proc/" + pid:              ok,
		"read /proc/" + pid + "/environ": unix.EACCES, "stat /proc/" + pid + "/environ": unix.EACCES,
		"read /proc/" + pid + "/mem": unix.EACCES, "read /proc/" + pid + "/maps": unix.EACCES,
		"read /proc/" + pid + "/smaps": unix.EACCES, "read /proc/" + pid + "/smaps_rollup": unix.EACCES,
		"read /proc/" + pid + "/auxv": unix.EACCES, "list /proc/" + pid + "/fd": unix.EACCES,
		"read /proc/" + pid + "/fd/0": unix.EACCES, "read /proc/" + pid + "/fdinfo/0": unix.EACCES,
		"list /proc/" + pid + "/map_files": unix.EACCES, "list /proc/" + pid + "/root": unix.EACCES,
		"read /proc/" + pid + "/root/proc/version": unix.EACCES, "list /proc/" + pid + "/cwd": unix.EACCES,
		"read /proc/" + pid + "/exe": unix.EACCES, "real /proc/" + pid + "/exe": unix.EACCES,
		"read /proc/" + pid + "/task/" + pid + "/comm": unix.EACCES,
		"read /proc/" + pid + "/ns/net":                unix.ENOENT,

		"read /proc/" + pid + "/stat": ok, "read /proc/" + pid + "/comm": ok, "read /proc/" + pid + "/cmdline": ok,
		"read /proc/" + pid + "/statm": ok, "read /proc/" + pid + "/limits": ok, "read /proc/" + pid + "/mountinfo": ok,
		"read /proc/" + pid + "/stack": unix.EACCES, "stat /proc/" + pid + "/stack": unix.EACCES,
		"read /proc/" + pid + "/syscall": unix.EACCES, "read /proc/" + pid + "/wchan": unix.EACCES,
		"read /proc/" + pid + "/numa_maps": unix.EACCES, "read /proc/" + pid + "/pagemap": unix.EACCES,
		"read /proc/" + pid + "/personality": unix.EACCES, "read /proc/" + pid + "/timers": unix.EACCES,
		"read /proc/" + pid + "/io": unix.EACCES, "read /proc/" + pid + "/mountstats": unix.EACCES,
		"cp /proc/" + pid + "/stack copied": unix.EACCES,
		"read /proc/iomem":                  unix.EACCES, "read /proc/ioports": unix.EACCES, "read /proc/vmallocinfo": unix.EACCES,
		"read /proc/slabinfo": unix.EACCES, "read /proc/pagetypeinfo": unix.EACCES, "read /proc/timer_list": unix.EACCES,
		"read /proc/cpuinfo": ok, "read /proc/mounts2": unix.ENOENT, "read /proc/sys/net/ipv4/ip_forward": ok,
		"read /proc/sys/vm/mmap_rnd_bits": unix.EACCES, "stat /proc/sys/vm/mmap_rnd_bits": ok,
		"list /proc/tty/driver": unix.EACCES, "read /proc/tty/driver/none": unix.EACCES,
		"list /proc/tty": ok, "read /proc/tty/drivers": ok,
		"read /proc/kcore": unix.EACCES, "read /proc/kmsg": unix.EACCES, "read /proc/keys": unix.EACCES,
		"read /proc/key-users": unix.EACCES, "read /proc/kallsyms": unix.EACCES,

		"read /proc/" + own + "/status": unix.EACCES, "list /proc/" + own: unix.EACCES,
		"read /proc/" + thread + "/status": unix.EACCES,

		"write /proc/self/comm": unix.EROFS, "write /proc/" + pid + "/comm": unix.EROFS,
		"write /proc/sys/kernel/printk": unix.EROFS, "write /proc/sysrq-trigger": unix.EROFS, "write /proc/new": unix.EROFS,
		"mkdir /proc/x": unix.EROFS, "mkdirs /proc/sys/x": unix.EROFS, "rm /proc/version": unix.EROFS, "rmr /proc/sys": unix.EROFS,
		"mv /proc/version x": unix.EROFS, "mv f /proc/x": unix.EROFS, "cp f /proc/sys/kernel/printk": unix.EROFS,
		"cp link /proc/link": unix.EROFS, "cpr d /proc/d": unix.EROFS, "cp /proc/version copy": ok, "mkdirs /proc": ok,
		"write /sys/kernel/profiling": unix.EROFS, "mkdir /sys/x": unix.EROFS, "mkdir /sys/fs/cgroup/x": unix.EROFS,
		"cpr /proc/" + pid + " d2": unix.EACCES,

		"read /dev/null": invalid, "read /dev/zero": invalid, "stat /dev/null": ok, "list /dev": ok,
		"write /dev/null": unix.EROFS, "write /dev/shm/x": unix.EROFS, "mkdirs /dev/shm/x/y": unix.EROFS, "rm /dev/null": unix.EROFS,
		"write /dev/new": unix.EROFS, "mv f /dev/f": unix.EROFS,
		"stat /dev/kmsg": unix.ENOENT, "read /dev/kmsg": unix.ENOENT, "read /dev/mem": unix.ENOENT, "stat /dev/shm": ok,
		"list /dev/shm": ok, "stat /dev/pts/0": unix.ENOENT, "stat /dev/pts/ptmx": unix.ENOENT, "stat todev": unix.ENOENT,
		"read /dev/shm/nothing": unix.ENOENT,
	}
	for line, want := range ops {
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
	shm := must(os.CreateTemp("/dev/shm", "view-test"))
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
	for line, want := range map[string]error{
		"read p/1/environ": unix.EACCES, "read p/self/status": unix.EACCES, "read p/1/status": unix.EACCES, "read p/kcore": unix.EACCES,
		"read one": unix.EACCES, "read up": unix.EACCES, "cp one two": unix.EACCES,
		"write p/sys/kernel/hostname": unix.EROFS, "write s/x": unix.EROFS, "mkdir s/fs/x": unix.EROFS, "rmr p": unix.EROFS,
		"write one": unix.EROFS, "cp f p/1/comm": unix.EROFS, "mv f s/f": unix.EROFS,
	} {
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
	open := func() int { return len(must(os.ReadDir("/proc/self/fd"))) }
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
