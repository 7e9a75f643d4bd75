package probe

import (
	"maps"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// judge combines the reports of the children. A layer works if one report has it in
// Done and no report has it in Failed. judge calls facts at most once, and only if a
// layer has failed.
func judge(reports []report, facts func() hostFacts) sandbox.Host {
	all := newReport()
	for _, r := range reports {
		for layer := range r.Done {
			all.Done[layer] = true
		}
		maps.Copy(all.Failed, r.Failed)
		all.Landlock = max(all.Landlock, r.Landlock)
	}
	if _, failed := all.Failed[sandbox.UserNS]; !failed && !all.Done[sandbox.UserNS] {
		all.Failed[sandbox.UserNS] = failure{Step: stepCreate, Text: "not tried"}
	}
	_, noUser := all.Failed[sandbox.UserNS]
	if noUser { // the other namespaces need the user namespace
		for _, n := range sandbox.Namespaces()[1:] {
			all.Failed[n] = all.Failed[sandbox.UserNS]
		}
	}
	if f, failed := all.Failed[sandbox.PIDNS]; failed {
		all.Failed[sandbox.Procfs] = f
	}
	works := func(layer sandbox.Layer) bool { _, failed := all.Failed[layer]; return all.Done[layer] && !failed }
	host := sandbox.Host{Reasons: map[sandbox.Layer]sandbox.Reason{}}
	for _, layer := range sandbox.AllLayers() {
		switch {
		case !works(layer):
		case layer == sandbox.Landlock:
			host.Landlock = all.Landlock
		default:
			host.Layers = host.Layers.With(layer)
		}
	}
	if len(all.Failed) == 0 {
		return host
	}
	known := facts()
	for layer, failure := range all.Failed {
		host.Reasons[layer] = sandbox.Reason{
			Error:  failure.Step + ": " + failure.Text,
			Remedy: known.remedy(layer, failure),
		}
	}
	if noUser {
		reason := host.Reasons[sandbox.UserNS]
		reason.Error = "no user namespace: " + reason.Error
		for _, n := range append(sandbox.Namespaces()[1:], sandbox.Procfs) {
			host.Reasons[n] = reason
		}
	}
	return host
}

// hostFacts are facts from which remedy guesses the cause of a failure. They never decide
// whether a layer works. The text of a file that cannot be read is "".
type hostFacts struct {
	root            bool   // uid 0, as far as this process can see
	setFCap         bool   // CAP_SETFCAP is permitted to this process
	filtered        bool   // a seccomp filter is on this process
	maskedProc      bool   // something is mounted below /proc
	unprivilegedNS  string // kernel.unprivileged_userns_clone, which only Debian's kernels have
	maxUserNS       string // user.max_user_namespaces
	restrictedByAA  string // kernel.apparmor_restrict_unprivileged_userns
	securityModules string // /sys/kernel/security/lsm
	ptraceScope     string // kernel.yama.ptrace_scope
}

// readFacts reads the facts from /proc and /sys.
func readFacts() hostFacts {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	f := hostFacts{
		root:            os.Getuid() == 0,
		unprivilegedNS:  read("/proc/sys/kernel/unprivileged_userns_clone"),
		maxUserNS:       read("/proc/sys/user/max_user_namespaces"),
		restrictedByAA:  read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
		securityModules: read("/sys/kernel/security/lsm"),
		ptraceScope:     read("/proc/sys/kernel/yama/ptrace_scope"),
	}
	for line := range strings.Lines(read("/proc/self/status")) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Seccomp":
			f.filtered = value == strconv.Itoa(unix.SECCOMP_MODE_FILTER)
		case "CapPrm":
			caps, err := strconv.ParseUint(value, 16, 64)
			f.setFCap = err == nil && caps&(1<<unix.CAP_SETFCAP) != 0
		}
	}
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], "/proc/") {
			f.maskedProc = true
		}
	}
	return f
}

// remedy returns advice for the operator about a failure. If the facts point to
// one of several possible causes, the advice is about that cause. Otherwise it
// names all possible causes.
func (f hostFacts) remedy(layer sandbox.Layer, failure failure) string {
	switch layer {
	case sandbox.Landlock:
		return f.landlockRemedy(failure.Errno)
	case sandbox.Seccomp, sandbox.UserNotify:
		return f.seccompRemedy(layer, failure.Errno)
	case sandbox.Pidfd:
		return pidfdRemedy(failure.Errno)
	case sandbox.Supervised:
		return f.supervisedRemedy(failure)
	case sandbox.Procfs:
		if failure.Step == stepProc {
			return f.procRemedy(failure.Errno)
		}
	}
	return f.namespaceRemedy(failure)
}

func pidfdRemedy(errno syscall.Errno) string {
	if errno == unix.EPERM || errno == unix.EACCES || errno == unix.ENOSYS {
		return "run the container with a seccomp profile that allows pidfd_open and pidfd_getfd, such as deploy's seccomp-agent.json. A host without user " +
			"namespaces does not need them"
	}
	return "run agent doctor again; if it still fails, look into the kernel's log"
}

const filterRemedy = `run the container with a seccomp profile that allows unshare, clone and clone3 with namespace flags, mount, umount2, pivot_root, ` +
	`open_tree, move_mount, mount_setattr, fsopen, fsconfig and fsmount: podman's default profile does; for Docker write a profile and pass it with ` +
	`--security-opt seccomp=FILE; in Kubernetes set seccompProfile to Localhost with such a file`

func (f hostFacts) namespaceRemedy(failure failure) string {
	switch failure.Errno {
	case unix.ENOSPC, unix.EUSERS:
		if f.maxUserNS == "0" {
			return "sysctl -w user.max_user_namespaces=10000"
		}
		return "raise the limits /proc/sys/user/max_*_namespaces, or nest fewer containers"
	case unix.EINVAL:
		return "run a kernel that is built with CONFIG_USER_NS, CONFIG_PID_NS, CONFIG_IPC_NS and CONFIG_NET_NS"
	case unix.ENOSYS:
		if f.filtered {
			return filterRemedy
		}
		return "run a kernel of version 5.12 or later"
	case unix.EPERM, unix.EACCES:
		switch {
		case f.unprivilegedNS == "0" && !f.root:
			return "sysctl -w kernel.unprivileged_userns_clone=1"
		case f.maxUserNS == "0":
			return "sysctl -w user.max_user_namespaces=10000"
		case failure.Step == stepMaps && f.root && !f.setFCap:
			return "run the agent as an ordinary user, or add the capability SETFCAP (--cap-add=SETFCAP), because uid 0 cannot map itself without it"
		case f.restrictedByAA == "1" && !f.root:
			return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give the agent an AppArmor profile that has the rule userns"
		case f.filtered:
			return filterRemedy
		}
		return "allow the agent to create user namespaces and to mount in them: a seccomp or AppArmor profile or SELinux refuses that, or " +
			"the agent runs in a chroot"
	}
	return "run agent doctor again; if it still fails, look into the kernel's log"
}

func (f hostFacts) procRemedy(errno syscall.Errno) string {
	if errno != unix.EPERM && errno != unix.EACCES {
		return f.namespaceRemedy(failure{Step: stepProc, Errno: errno})
	}
	if f.maskedProc {
		return "unmask /proc in the container: --security-opt unmask=ALL for podman, --security-opt systempaths=unconfined for Docker, " +
			"procMount: Unmasked with hostUsers: false in Kubernetes"
	}
	return "let the agent mount procfs in its own pid namespace: the container hides parts of /proc, or its seccomp or AppArmor profile forbids mounts"
}

func (f hostFacts) landlockRemedy(errno syscall.Errno) string {
	switch errno {
	case unix.EOPNOTSUPP:
		return "boot the kernel with landlock in the parameter lsm=, such as lsm=landlock" + f.otherModules()
	case unix.ENOSYS:
		if strings.Contains(f.securityModules, "landlock") {
			return "run the container with a seccomp profile that allows landlock_create_ruleset, landlock_add_rule and landlock_restrict_self: the kernel has Landlock"
		}
		if f.filtered {
			return "run a kernel of version 5.13 or later with CONFIG_SECURITY_LANDLOCK, and a container engine whose seccomp profile allows Landlock's calls " +
				"(Docker 20.10.23 or later)"
		}
		return "run a kernel of version 5.13 or later that is built with CONFIG_SECURITY_LANDLOCK"
	case unix.EPERM, unix.EACCES:
		return "run the container with a seccomp profile that allows landlock_create_ruleset, landlock_add_rule and landlock_restrict_self"
	}
	return "run agent doctor again; if it still fails, run a kernel of version 5.13 or later"
}

// otherModules continues the text lsm=landlock with the modules that are loaded
// now, because the parameter replaces the whole list.
func (f hostFacts) otherModules() string {
	if f.securityModules == "" {
		return " followed by the modules that it has now"
	}
	return "," + f.securityModules
}

func (f hostFacts) supervisedRemedy(failure failure) string {
	if (failure.Step == stepMemory || failure.Step == stepTrace) && (failure.Errno == unix.EPERM || failure.Errno == unix.EACCES) {
		if f.ptraceScope == "2" || f.ptraceScope == "3" {
			return "sysctl -w kernel.yama.ptrace_scope=1, because a supervisor reads the memory of its commands (if it is 3 now, reboot first)"
		}
		return "run the container with a seccomp profile that allows process_vm_readv and ptrace, as Docker's does on Linux 4.8 and later"
	}
	if failure.Step == stepRestrict {
		return f.landlockRemedy(failure.Errno)
	}
	return f.seccompRemedy(sandbox.UserNotify, failure.Errno)
}

func (f hostFacts) seccompRemedy(layer sandbox.Layer, errno syscall.Errno) string {
	switch {
	case layer == sandbox.UserNotify && errno == unix.EBUSY:
		return "run the agent where no other program holds a seccomp listener: the container engine's profile must not use SCMP_ACT_NOTIFY"
	case layer == sandbox.UserNotify && errno == unix.EINVAL:
		return "run a kernel of version 5.19 or later"
	case errno == unix.EINVAL || errno == unix.ENOSYS:
		return "run a kernel that is built with CONFIG_SECCOMP_FILTER"
	case errno == unix.EPERM || errno == unix.EACCES:
		return "run the container with a seccomp profile that allows seccomp and prctl"
	}
	return "run agent doctor again; if it still fails, look into the kernel's log"
}
