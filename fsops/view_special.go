package fsops

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is a kind of file system, as far as it matters to a policy.
type Kind uint8

// The kinds. Those but Ordinary are the file systems of the kernel.
const (
	Ordinary Kind = iota
	// Pseudo file systems show the kernel: writing there changes the host.
	Pseudo
	// Procfs is a pseudo file system that also shows other processes.
	Procfs
)

// KindOf returns the kind of the file system that fd is on.
func KindOf(fd int) (Kind, error) {
	var st unix.Statfs_t
	for {
		err := unix.Fstatfs(fd, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Pseudo, err
		}
		break
	}
	switch uint32(st.Type) { // statfs(2)
	case unix.PROC_SUPER_MAGIC:
		return Procfs, nil
	case unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, configfsMagic, unix.BPF_FS_MAGIC, fusectlMagic,
		unix.BINFMTFS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC:
		return Pseudo, nil
	}
	return Ordinary, nil
}

// Numbers that x/sys does not have; fs/configfs/mount.c and fs/fuse/control.c.
const (
	configfsMagic = 0x62656570
	fusectlMagic  = 0x65735543
)

// devices is the directory of devices. A view shows only those names in it that
// every process may have.
const devices = "/dev/"

// stepped reports whether path lies where special must see each name: in /dev,
// or where the file systems of the kernel usually are. There jump must not skip
// steps.
func stepped(path string) bool {
	return strings.HasPrefix(path, devices) || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/")
}

var shownDevices = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm",
	"fd", "stdin", "stdout", "stderr",
}

// showsDevice reports whether path is outside /dev, or one of the names shown
// in it.
func showsDevice(path string) bool {
	name, ok := strings.CutPrefix(path, devices)
	return !ok || slices.Contains(shownDevices, name)
}

// viewReading is a view's [Reading] of /dev and the file systems of the kernel,
// whatever the policy says (sandbox.md 13).
type viewReading struct{ rules *Rules }

// Name hides the names of other devices, and denies the names in ofProcess and
// ofKernel.
func (v viewReading) Name(how Lookup, d Dir, name string) error {
	switch {
	case how&forWriting != 0:
		return unix.EROFS
	case !showsDevice(join(d.Path, name)):
		return errHidden{}
	case d.Kind == Procfs:
		return v.process(d, name)
	}
	return nil
}

// Object denies objects that only root can read on file systems of the kernel. It
// also denies single files of procfs that are mounted elsewhere, because nothing
// says which files they are.
func (v viewReading) Object(how Lookup, d Dir, p Place) (Place, error) {
	if how&forWriting != 0 {
		return p, nil
	}
	p.closed = p.rootOnly()
	if p.closed || p.Kind == Procfs && d.Kind != Procfs && p.fileType() != unix.DT_DIR {
		p.Access = min(p.Access, Denied)
	}
	return p, nil
}

// Follow reads the link.
func (v viewReading) Follow(_ Dir, link Place) (text string, object Dir, err error) {
	text, err = readLinkAt(link.FD, "")
	return text, Dir{FD: -1}, err
}

// rootOnly reports whether p is on a file system of the kernel and its mode
// excludes other users. The agent may be root, but its clients should not be: files
// that only root can read there hold keys, addresses and memory.
func (p *Place) rootOnly() bool {
	if p.Kind == Ordinary {
		return false
	}
	switch p.fileType() {
	case unix.DT_DIR:
		return p.Stat.Mode&unix.S_IXOTH == 0
	case unix.DT_REG:
		return p.Stat.Mode&unix.S_IROTH == 0
	}
	return false
}

// ofProcess are the names in a process's directory that reveal its memory,
// addresses, environment and files, or lead into its view of the file system.
// For most of them, the kernel itself requires the right to trace the process,
// whatever the mode of the file (proc(5)).
var ofProcess = []string{
	"environ", "mem", "maps", "auxv", "fd", "fdinfo", "map_files", "root", "cwd", "exe", "task",
	"stack", "syscall", "wchan", "numa_maps", "pagemap", "clear_refs", "personality", "timers", "timerslack_ns",
	"patch_state", "io", "mountstats", "ksm_stat", "ksm_merging_pages", "seccomp_cache",
}

// ofKernel are the names in the root of a procfs that reveal the memory, the
// addresses and the log of the kernel. Some are open to every user, but show
// less to users other than root.
var ofKernel = []string{
	"kcore", "vmcore", "kmsg", "keys", "key-users", "kallsyms", "modules", "timer_list", "sched_debug",
	"kpagecount", "kpageflags", "kpagecgroup", "pagetypeinfo", "allocinfo",
	"iomem", "ioports", "vmallocinfo", "slabinfo", "slab_allocators", "mtrr", "lockdep", "lockdep_chains", "lock_stat",
}

// process decides about a name in procfs. "self" depends on the reading
// process, and here there is none.
func (v viewReading) process(d Dir, name string) error {
	if slices.Contains(ofProcess, name) || strings.HasPrefix(name, "smaps") {
		return unix.EACCES
	}
	if d.procRoot && (name == "self" || name == "thread-self" || slices.Contains(ofKernel, name) || v.hiddenProcess(d, name)) {
		return unix.EACCES
	}
	return nil
}

// hiddenProcess reports whether name, in the root of a procfs, is a hidden
// process or a thread of one. Threads can be opened there by their ids, which
// are not listed.
func (v viewReading) hiddenProcess(d Dir, name string) bool {
	if _, err := strconv.Atoi(name); err != nil {
		return false
	}
	for _, pid := range v.rules.HiddenPIDs {
		process := strconv.Itoa(pid)
		var st unix.Stat_t
		if name == process || fstatAt(d.FD, process+"/task/"+name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return true
		}
	}
	return false
}
