package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Attempts on what the kernel's file systems give away or let somebody do.
var procAttempts = []attempt{
	{"21 core_pattern", func(*places) error { return write("/proc/sys/kernel/core_pattern") }},
	{"22 sysrq-trigger", func(*places) error { return write("/proc/sysrq-trigger") }},
	{"23a /sys", func(*places) error { return write("/sys/kernel/mm/transparent_hugepage/enabled") }},
	{"23b a control group", func(*places) error {
		for _, path := range []string{"/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids/cgroup.procs"} {
			if err := write(path); err == nil {
				return nil
			}
		}
		return write("/sys/fs/cgroup/unified/cgroup.procs")
	}},
	{"23c make a control group", func(*places) error {
		if err := unix.Mkdir("/sys/fs/cgroup/escape", 0o755); err == nil {
			return nil
		}
		return unix.Mkdir("/sys/fs/cgroup/unified/escape", 0o755)
	}},
	{"24 outside through /proc/self/root", func(p *places) error { return create("/proc/self/root" + p.out + "/new") }},
	{"25a root of init", func(p *places) error { return list("/proc/1/root/") }},
	{"25b environment of init", func(*places) error { return read("/proc/1/environ") }},
	{"25c memory of init", func(*places) error { return open("/proc/1/mem", unix.O_RDONLY) }},
	{"25d descriptors of init", func(*places) error {
		for fd := range 64 {
			name := "/proc/1/fd/" + itoa(fd)
			if _, err := os.Readlink(name); err == nil {
				return nil
			}
			if err := open(name, unix.O_RDONLY); err == nil || err == syscall.ENXIO { // a socket
				return nil
			}
		}
		return open("/proc/1/fd/0", unix.O_RDONLY)
	}},
	{"25e maps of init", func(*places) error { return read("/proc/1/maps") }},
	{"25f directory of init", func(*places) error { return os.Chdir("/proc/1/cwd") }},
	{"25g program of init", func(*places) error { return open("/proc/1/exe", unix.O_RDONLY) }},
	{"25h create outside through the root of init", func(p *places) error { return create("/proc/1/root" + p.out + "/new") }},
	{"25i memory of init to write", func(*places) error { return open("/proc/1/mem", unix.O_RDWR) }},
	{"26 see processes of the host", func(p *places) error {
		for _, pid := range numbers() {
			line, _ := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
			if bytes.Contains(line, []byte(p.secret)) { // only who is outside has it
				return nil
			}
		}
		return syscall.ENOENT
	}},
	{"57 the agent's environment", func(p *places) error {
		for _, pid := range numbers() {
			env, _ := os.ReadFile("/proc/" + itoa(pid) + "/environ")
			if bytes.Contains(env, []byte("E2E_SECRET="+p.secret)) {
				return nil
			}
		}
		return syscall.ENOENT
	}},
	{"x57a memory of another process of the user", func(p *places) error { return open("/proc/"+itoa(p.pid)+"/mem", unix.O_RDONLY) }},
	{"x57b environment of another process of the user", func(p *places) error { return read("/proc/" + itoa(p.pid) + "/environ") }},
	{"x57c where a descriptor of another process of the user leads", func(p *places) error {
		_, err := unix.Readlink("/proc/"+itoa(p.pid)+"/fd/0", make([]byte, 64))
		return err
	}},
	{"x57d root of another process of the user", func(p *places) error { return list("/proc/" + itoa(p.pid) + "/root/") }},
	{"x57e oom score of another process of the user", func(p *places) error { return write("/proc/" + itoa(p.pid) + "/oom_score_adj") }},
	{"x57f name of a thread of another process of the user", func(p *places) error { return write("/proc/" + itoa(p.pid) + "/comm") }},
	{"x57g a descriptor of another process of the user", func(p *places) error { return open("/proc/"+itoa(p.pid)+"/fd/0", unix.O_RDONLY) }},
	{"x57h offset of a descriptor of another process of the user", func(p *places) error { return read("/proc/" + itoa(p.pid) + "/fdinfo/0") }},
	{"x20a binfmt_misc", func(*places) error { return write("/proc/sys/fs/binfmt_misc/register") }},
	{"x20b hostname by sysctl", func(*places) error { return write("/proc/sys/kernel/hostname") }},
	{"x20c modprobe by sysctl", func(*places) error { return write("/proc/sys/kernel/modprobe") }},
	{"x20d printk by sysctl", func(*places) error { return write("/proc/sys/kernel/printk") }},
	{"x20e sysctl through /proc/self/root", func(*places) error { return write("/proc/self/root/proc/sys/kernel/core_pattern") }},
	{"x20f sysctl through another task", func(*places) error { return write("/proc/thread-self/root/proc/sys/kernel/core_pattern") }},
	{"x21a /proc/kcore", func(*places) error { return read("/proc/kcore") }},
	{"x21b an address in /proc/kallsyms", func(*places) error {
		page, err := os.ReadFile("/proc/kallsyms")
		if err == nil && len(bytes.Trim(page[:min(16, len(page))], "0")) == 0 {
			return syscall.EIO
		}
		return err
	}},
	{"x21c /proc/keys", func(*places) error { return read("/proc/keys") }},
	{"x21d /proc/kmsg", func(*places) error { return read("/proc/kmsg") }},
	{"x21e /proc/timer_list", func(*places) error { return read("/proc/timer_list") }},
	{"x21f /proc/kpageflags", func(*places) error { return read("/proc/kpageflags") }},
	{"x21g /proc/kpagecount", func(*places) error { return read("/proc/kpagecount") }},
	{"x21h /proc/kpagecgroup", func(*places) error { return read("/proc/kpagecgroup") }},
	{"x21i /proc/irq", func(*places) error { return write("/proc/irq/default_smp_affinity") }},
	{"x21j /proc/bus", func(*places) error { return create("/proc/bus/new") }},
	{"x22a debugfs", func(*places) error { return list("/sys/kernel/debug") }},
	{"x22b firmware", func(*places) error { return list("/sys/firmware") }},
	{"x22c bpf file system", func(*places) error { return list("/sys/fs/bpf") }},
	{"x23a own uid_map", func(*places) error { return put("/proc/self/uid_map", "0 0 4294967295\n") }},
	{"x23b own setgroups", func(*places) error { return put("/proc/self/setgroups", "allow") }},
	{"x23c own oom score below the given one", func(*places) error { return put("/proc/self/oom_score_adj", "-1000") }},
	{"x23d own time offsets", func(*places) error { return put("/proc/self/timens_offsets", "monotonic 1000 0") }},
	{"x23e own loginuid", func(*places) error { return put("/proc/self/loginuid", "0") }},
	{"x24 interfaces of the host", func(*places) error {
		page, err := os.ReadFile("/proc/net/dev")
		if err != nil {
			return err
		}
		if bytes.Count(page, []byte("\n")) > 3 { // two of heading and lo
			return nil
		}
		return syscall.ENODEV
	}},
}

// put writes to a file of the kernel, which should be refused.
func put(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// numbers returns the PIDs that can be seen.
func numbers() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}
