package seccomp

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Namespaces are the calls that the sandbox makes in a user namespace of its own or for those in
// it, and that Docker's default profile forbids without CAP_SYS_ADMIN: this profile is there for
// their sake.
var Namespaces = []string{
	"clone", "clone3", "unshare", "setns", // clone and clone3 with any flags
	"mount", "umount", "umount2", "pivot_root", "chroot",
	"open_tree", "open_tree_attr", "move_mount", "mount_setattr", "fsopen", "fsconfig", "fsmount", "fspick",
	"statmount", "listmount",
	"sethostname", "setdomainname", // in a UTS namespace of its own
	"pidfd_getfd", // by which init takes the socket that it connects for a command
}

// refused are the calls that no program in the container may make, with the reason. They fail with
// EPERM.
var refused = []struct {
	why   string
	calls []string
}{
	{"the kernel's own code and its end", []string{"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"}},
	{"the machine's clock, swap, quotas, accounting and log", []string{
		"settimeofday", "stime", "clock_settime", "clock_settime64",
		"swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "syslog", "vhangup", "lsm_set_self_attr",
	}},
	{"programs in the kernel, and what has often led into it", []string{
		"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
	}},
	{"keyrings and handles of files, which belong to no namespace", []string{"add_key", "keyctl", "request_key", "open_by_handle_at", "fanotify_init"}},
	{"what other processes have, beyond what ptrace gives", []string{"kcmp", "process_madvise"}},
	{"ports of the processor", []string{"ioperm", "iopl", "vm86", "vm86old", "modify_ldt"}},
	{"where memory lies, of others too", []string{"move_pages", "migrate_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node", "get_mempolicy"}},
}

// obsolete are known and let nothing through: no kernel of today has them, or nobody needs them.
var obsolete = []string{
	"_sysctl", "afs_syscall", "arch_specific_syscall", "bdflush", "break", "create_module", "ftime", "get_kernel_syms", "getpmsg", "gtty",
	"idle", "lock", "lookup_dcookie", "lsm_list_modules", "mpx", "nfsservctl", "oldfstat", "oldlstat", "oldolduname", "oldstat", "olduname", "pciconfig_iobase",
	"pciconfig_read", "pciconfig_write", "prof", "profil", "putpmsg", "query_module", "security", "sgetmask", "ssetmask", "stty", "sysfs",
	"tuxcall", "ulimit", "uprobe", "uretprobe", "uselib", "ustat", "vserver", "syscall_mask", "epoll_ctl_old", "epoll_wait_old", "listns",
}

// Values of arguments.
const (
	vsock = 40 // AF_VSOCK: the hypervisor and other machines on it
	alg   = 38 // AF_ALG: the kernel's cryptography, which programs have in libraries
)

// personalities are those of personality(2) that programs are run with: Linux, 32 bits, without
// random addresses, both; and the question which one it is.
var personalities = []uint64{0, 0x8, 0x20000, 0x20008, 0x40000, 0xffffffff}

// Profile makes the profile from the constants of unix, the folder of golang.org/x/sys/unix.
func Profile(unixDir string) (*specs.LinuxSeccomp, error) {
	known := map[string]bool{"set_tls": true, "cacheflush": true, "breakpoint": true, "sync_file_range2": true} // of arm
	for _, arch := range []string{"amd64", "arm64", "386", "arm"} {
		if err := constants(filepath.Join(unixDir, "zsysnum_linux_"+arch+".go"), known); err != nil {
			return nil, err
		}
	}
	profile := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: new(uint(unix.ENOSYS)),
		Architectures:   []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchAARCH64, specs.ArchARM},
	}
	var denied []string
	for _, group := range refused {
		denied = append(denied, group.calls...)
	}
	for _, name := range slices.Concat(denied, obsolete, Namespaces) {
		if !known[name] {
			return nil, fmt.Errorf("no architecture has %s", name)
		}
	}
	var allowed []string
	for name := range known {
		if !slices.Contains(denied, name) && !slices.Contains(obsolete, name) && name != "personality" && name != "socket" {
			allowed = append(allowed, name)
		}
	}
	profile.Syscalls = []specs.LinuxSyscall{
		{Names: slices.Sorted(slices.Values(allowed)), Action: specs.ActAllow},
		{Names: slices.Sorted(slices.Values(denied)), Action: specs.ActErrno, ErrnoRet: new(uint(unix.EPERM))},
		// Families below, between and above those that are refused.
		{Names: []string{"socket"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: alg, Op: specs.OpLessThan}}},
		{Names: []string{"socket"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: alg + 1, Op: specs.OpEqualTo}}},
		{Names: []string{"socket"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: vsock, Op: specs.OpGreaterThan}}},
	}
	for _, p := range personalities {
		profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
			Names: []string{"personality"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: p, Op: specs.OpEqualTo}},
		})
	}
	return profile, nil
}

// constants adds the names of the calls of one architecture: those of the constants SYS_*.
func constants(file string, known map[string]bool) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if name, ok := strings.CutPrefix(id.Name, "SYS_"); ok {
				// arm's own constants have the architecture in front, and one name is older.
				name = strings.ToLower(name)
				known[cmp.Or(map[string]string{"fstatat": "newfstatat"}[name], name)] = true
			}
		}
		return true
	})
	return nil
}
