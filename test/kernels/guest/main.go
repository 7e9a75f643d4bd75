// Command guest is /init of the virtual machines of package kernels. It makes the
// machine look like an ordinary host, takes away what its environment says, lets
// the agent diagnose the rest, has limits held, makes the attempts and the connections of
// netbench, and powers the machine off. It prints to the serial console.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// work is the argument of the process that does the work. Process 1 only reaps.
const work = "work"

func main() {
	if len(os.Args) == 2 && os.Args[1] == work {
		fmt.Println("guest: ended with", attempt())
		if os.Getenv("ONLY") != "" {
			fmt.Println("guest: connected with", connect())
		}
		return
	}
	if len(os.Args) > 1 && exceeders[os.Args[1]] != nil {
		exceeders[os.Args[1]]()
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is for a virtual machine, as its process 1")
		os.Exit(2)
	}
	if err := errors.Join(settle(), reap()); err != nil {
		fmt.Println("guest:", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// programs is the folder for the programs of the initramfs.
const programs = "/programs"

// settle moves from the initramfs, which pivot_root(2) cannot leave, to a tmpfs, and mounts the
// file systems that every host has.
func settle() error {
	const root = "/host"
	err := errors.Join(os.Mkdir(root, 0o755), unix.Mount("tmpfs", root, "tmpfs", 0, "mode=0755"), os.Mkdir(root+programs, 0o755))
	if err != nil {
		return fmt.Errorf("making the root: %w", err)
	}
	for _, name := range []string{"init", "agent", "escape", "e2e.test", "netbench"} {
		content, err := os.ReadFile("/" + name)
		if err == nil {
			err = errors.Join(os.WriteFile(filepath.Join(root, programs, name), content, 0o755), os.Remove("/"+name))
		}
		if err != nil {
			return fmt.Errorf("copying the programs: %w", err)
		}
	}
	if err := errors.Join(os.Chdir(root), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("entering the root: %w", err)
	}
	for _, dir := range []string{"bin", "usr", "usr/bin", "usr/lib", "etc", "home", "root", "run", "var", "proc", "sys", "dev"} {
		err = errors.Join(err, os.Mkdir("/"+dir, 0o755))
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		err = errors.Join(err, os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky))
	}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", "group": "root:x:0:\nnogroup:x:65534:\n",
		"hosts": "127.0.0.1 localhost\n",
	} {
		err = errors.Join(err, os.WriteFile("/etc/"+name, []byte(content), 0o644))
	}
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"devpts", "/dev/pts", "ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "mode=1777"}, {"cgroup2", "/sys/fs/cgroup", ""}, {"securityfs", "/sys/kernel/security", ""},
	} {
		if failed := os.MkdirAll(m.at, 0o755); failed != nil {
			err = errors.Join(err, failed)
		}
		if failed := unix.Mount(m.kind, m.at, m.kind, 0, m.options); failed != nil {
			err = errors.Join(err, fmt.Errorf("mounting %s: %w", m.kind, failed))
		}
	}
	for name, to := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		err = errors.Join(err, os.Symlink("/proc/self/fd"+to, "/dev/"+name))
	}
	return errors.Join(err, linux.RaiseLoopback(), unix.Sethostname([]byte("guest")))
}

// reap starts the process that does the work, and reaps all children until that process has ended.
func reap() error {
	worker, err := syscall.ForkExec(programs+"/init", []string{"init", work}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		if err != nil && err != syscall.EINTR || pid == worker {
			return err
		}
	}
}

// attempt calls take, and returns the result of the attempts.
func attempt() string {
	if err := take(); err != nil {
		return err.Error()
	}
	page, err := exec.Command(programs+"/agent", "doctor", "--json").Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err.Error()
	}
	var line bytes.Buffer
	if err := json.Compact(&line, page); err != nil {
		return err.Error()
	}
	fmt.Println("\nguest: doctor", line.String()) // the output of the firmware does not end with a newline
	if err := limited(); err != nil {
		return err.Error()
	}
	tests := exec.Command(programs+"/e2e.test", "-test.v", "-test.run="+os.Getenv("E2E_TESTS"), "-test.timeout="+time.Hour.String())
	tests.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=/root", "TESTS=nightly", "E2E_PROGRAMS=" + programs,
		"E2E_MEANS=" + os.Getenv("E2E_MEANS"),
	}
	tests.Stdout, tests.Stderr = os.Stdout, os.Stdout
	_ = tests.Run() // the exit code has the result
	return fmt.Sprint(tests.ProcessState.ExitCode())
}

// limited has the agent run this program with limits, and returns what was not held.
func limited() error {
	for _, l := range []struct {
		command string // its last word is of exceeders
		code    int
		says    string
	}{
		{"agent exec --memory 64m -- init memory", 128 + int(unix.SIGKILL), "(limits.memoryBytes), so a process was ended"},
		{"agent exec --cpus 0.2 -- init cpus", 0, "throttled"},
		{"agent exec --pids 60 -- init pids", 0, "refused"},
		{"agent exec --file-size 4k -- init file-size", 0, "lifting it: operation not permitted"}, // root has all capabilities here
		{"init no-setpcap agent exec --file-size 4k -- init file-size", 125, "limits.fileSizeBytes: "},
	} {
		words := strings.Fields(l.command)
		cmd := exec.Command(programs+"/"+words[0], words[1:]...)
		cmd.Env = []string{"PATH=" + programs, "HOME=/root"}
		said, _ := cmd.CombinedOutput() // the exit code has the result
		if code := cmd.ProcessState.ExitCode(); code != l.code || !bytes.Contains(said, []byte(l.says)) {
			return fmt.Errorf("%s: exit code %d, want %d and %q: %s", l.command, code, l.code, l.says, said)
		}
	}
	return nil
}

// exceeders exceed a limit, and print that it holds. no-setpcap executes a program that may not change its bounding
// set.
var exceeders = map[string]func(){
	"memory": func() { // it is killed
		var all [][]byte
		for range 256 {
			all = append(all, bytes.Repeat([]byte{1}, 1<<20))
		}
		fmt.Println("not held:", len(all), "MiB")
	},
	"cpus": func() {
		for {
			own, err := os.ReadFile("/proc/self/cgroup")
			stat, err2 := os.ReadFile("/sys/fs/cgroup" + strings.TrimPrefix(strings.TrimSpace(string(own)), "0::") + "/cpu.stat")
			_, rest, found := strings.Cut(string(stat), "nr_throttled ")
			switch {
			case err != nil || err2 != nil || !found:
				fmt.Println(errors.Join(err, err2), string(stat))
				return
			case !strings.HasPrefix(rest, "0\n"):
				fmt.Println("throttled")
				return
			}
		}
	},
	"pids": func() { // the control group kills what it has started
		for n := range 100 {
			if err := exec.Command(programs+"/init", "wait").Start(); err != nil {
				fmt.Println("refused:", n, err)
				return
			}
		}
		fmt.Println("not held")
	},
	"file-size": func() {
		none := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		fmt.Println("lifting it:", unix.Setrlimit(unix.RLIMIT_FSIZE, &none))
	},
	"no-setpcap": func() {
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SETPCAP, 0, 0, 0)
		if err == nil {
			err = syscall.Exec(programs+"/"+os.Args[2], os.Args[2:], os.Environ())
		}
		fmt.Println(err)
	},
	"wait": func() { time.Sleep(time.Hour) },
}

// connect has commands connect to a server through a managed network, and returns the result.
func connect() string {
	bench := exec.Command(programs+"/netbench", "-in-own-network", "-agent", programs+"/agent", "-nouserns", "",
		"-rounds", "0", "-connects", os.Getenv("CONNECTS"), "-only", os.Getenv("ONLY"))
	bench.Env = []string{"PATH=/usr/bin:/bin", "HOME=/root"}
	said, _ := bench.CombinedOutput() // a pipe, because a view has no console; the exit code has the result
	fmt.Printf("%s", said)
	return fmt.Sprint(bench.ProcessState.ExitCode())
}

// take takes from this process, and from the processes that it will start, the features that the
// environment names.
func take() error {
	if os.Getenv("MASK_PROC") != "" {
		// Container engines do this too. The kernel mounts no new procfs if a part of the existing
		// one is hidden.
		if err := unix.Mount("/dev/null", "/proc/cmdline", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("masking a part of /proc: %w", err)
		}
	}
	if os.Getenv("NO_USERNS") != "" {
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}
