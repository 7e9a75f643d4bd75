package fsops

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fsKind tells what of a file system matters to a view.
type fsKind uint8

const (
	ordinary fsKind = iota
	// pseudo file systems show the kernel: writing there changes the host.
	pseudo
	// procfs is a pseudo file system that also shows other processes.
	procfs
)

// fsKindOf returns the kind of the file system that fd is on.
func fsKindOf(fd int) (fsKind, error) {
	var st unix.Statfs_t
	for {
		err := unix.Fstatfs(fd, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return pseudo, err
		}
		break
	}
	switch uint32(st.Type) { // statfs(2)
	case unix.PROC_SUPER_MAGIC:
		return procfs, nil
	case unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, configfsMagic, unix.BPF_FS_MAGIC, fusectlMagic,
		unix.BINFMTFS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC:
		return pseudo, nil
	}
	return ordinary, nil
}

// Numbers that x/sys does not have; fs/configfs/mount.c and fs/fuse/control.c.
const (
	configfsMagic = 0x62656570
	fusectlMagic  = 0x65735543
)

// devices is the directory of devices. A view shows only those names in it that
// every process may have.
const devices = "/dev/"

// stepped tells whether path lies where special has to see each name, in /dev or
// where the file systems of the kernel usually are. There jump must not skip the
// single steps.
func stepped(path string) bool {
	return strings.HasPrefix(path, devices) || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/")
}

var shownDevices = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm",
	"fd", "stdin", "stdout", "stderr",
}

// showsDevice tells whether path is outside /dev, or one of the names that are
// shown in it.
func showsDevice(path string) bool {
	name, ok := strings.CutPrefix(path, devices)
	return !ok || slices.Contains(shownDevices, name)
}

// special applies the rules that hold on file systems of the kernel and in /dev,
// whatever the policy says (sandbox.md 13), to p, a name in the directory where the
// walk stands.
func (w *walk) special(p *place) error {
	switch {
	case w.how&forWriting != 0 && (strings.HasPrefix(p.path, devices) || w.at.kind != ordinary):
		return unix.EROFS
	case !showsDevice(p.path):
		return errHidden{}
	case w.at.kind == procfs:
		return w.process(p)
	}
	return nil
}

// closed tells whether p is on a file system of the kernel and its mode keeps
// other users out. The agent may be root, but its clients are not meant to be: what
// only root can read there is keys, addresses and memory.
func (w *walk) closed(p *place) bool {
	if p.kind == ordinary || w.how&forWriting != 0 {
		return false
	}
	switch p.fileType() {
	case unix.DT_DIR:
		return p.st.Mode&unix.S_IXOTH == 0
	case unix.DT_REG:
		return p.st.Mode&unix.S_IROTH == 0
	}
	return false
}

// ofProcess are the names in the directory of a process that give away its
// memory, addresses, environment and files, or lead into what the process sees.
// For most of them the kernel itself wants the right to trace the process,
// whatever the mode of the file (proc(5)).
var ofProcess = []string{
	"environ", "mem", "maps", "auxv", "fd", "fdinfo", "map_files", "root", "cwd", "exe", "task",
	"stack", "syscall", "wchan", "numa_maps", "pagemap", "clear_refs", "personality", "timers", "timerslack_ns",
	"patch_state", "io", "mountstats", "ksm_stat", "ksm_merging_pages", "seccomp_cache",
}

// ofKernel are the names in the root of a procfs that give away the memory, the
// addresses and the log of the kernel. Some are open to every user, but tell
// less to a user who is not root.
var ofKernel = []string{
	"kcore", "vmcore", "kmsg", "keys", "key-users", "kallsyms", "modules", "timer_list", "sched_debug",
	"kpagecount", "kpageflags", "kpagecgroup", "pagetypeinfo", "allocinfo",
	"iomem", "ioports", "vmallocinfo", "slabinfo", "slab_allocators", "mtrr", "lockdep", "lockdep_chains", "lock_stat",
}

// process decides about the name p in procfs.
func (w *walk) process(p *place) error {
	if slices.Contains(ofProcess, p.name) || strings.HasPrefix(p.name, "smaps") {
		return unix.EACCES
	}
	if !w.at.procRoot {
		return nil
	}
	if p.name == "self" || p.name == "thread-self" {
		if w.self == nil {
			return unix.EACCES
		}
		var err error
		p.target, err = w.self(p.name)
		return err
	}
	if slices.Contains(ofKernel, p.name) || w.hiddenProcess(p.name) {
		return unix.EACCES
	}
	return nil
}

// hiddenProcess tells whether name, in the root of a procfs, is a hidden
// process or a thread of one. Threads can be opened there by their ids, which
// are not listed.
func (w *walk) hiddenProcess(name string) bool {
	if _, err := strconv.Atoi(name); err != nil {
		return false
	}
	for _, pid := range w.rules.HiddenPIDs {
		process := strconv.Itoa(pid)
		var st unix.Stat_t
		if name == process || fstatAt(w.at.fd, process+"/task/"+name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return true
		}
	}
	return false
}
