package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

const containerUser = 1000

// containerKind is a way in which engines and operators confine a container.
type containerKind struct {
	name  string
	uid   int      // of the programs in it
	flags []string // of podman run
	means means
}

// means are what an agent has to confine commands with.
type means int

const (
	namespaces      means = iota // of every kind
	sharedPIDs                   // the same, but no procfs of their own: they see the container's processes
	noLandlock                   // namespaces of every kind, and no Landlock, or one before ABI 6
	sharedUnguarded              // neither a procfs of their own nor such a Landlock
	oldSupervisor                // as supervisor, with a Landlock before ABI 6
	supervisor                   // no namespaces: a supervisor, Landlock and filters
	landlockOnly                 // no namespaces and no listener for a supervisor: Landlock and filters
	nothing                      // neither namespaces nor Landlock
)

// Flags of podman, and capabilities that Docker gives a container.
var (
	ordinary     = []string{fmt.Sprintf("--user=%d:%d", containerUser, containerUser)}
	hard         = append([]string{"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"}, ordinary...)
	capabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}
)

// containerKinds returns the kinds of containers.
func containerKinds(t *testing.T) []containerKind {
	t.Helper()
	with := func(flags []string, more ...string) []string { return slices.Concat(flags, more) }
	docker := seccompFlag(t, dockerProfile(t, nil, nil))
	dockerPlain := []string{seccompFlag(t, dockerProfile(t, capabilities, nil)), "--cap-drop=ALL"}
	for _, c := range capabilities {
		dockerPlain = append(dockerPlain, "--cap-add="+c)
	}
	unmasked, unguarded := "--security-opt=unmask=ALL", seccompFlag(t, withoutLandlock(t))
	own := "--security-opt=seccomp=" + ownProfile(t)
	return []containerKind{
		// The engine of the tests as it is: its profile allows user namespaces.
		{"hardened", containerUser, hard, sharedPIDs},
		{"unmasked", containerUser, with(hard, unmasked), namespaces}, // a fresh procfs may be mounted
		{"root", 0, nil, sharedPIDs},
		{"root without capabilities", 0, []string{"--cap-drop=ALL"}, supervisor}, // it cannot map itself
		{"privileged", 0, []string{"--privileged"}, namespaces},
		// Docker's own profile.
		{"docker root", 0, dockerPlain, supervisor}, // docker run, without any flag
		{"docker root without capabilities", 0, []string{docker, "--cap-drop=ALL"}, supervisor},
		{"docker user", containerUser, with(ordinary, dockerPlain...), supervisor},
		{"docker hardened", containerUser, with(hard, docker), supervisor}, // and a restricted pod with RuntimeDefault
		// Our own profile, for where an operator allows user namespaces.
		{"own profile", containerUser, with(hard, own), sharedPIDs},
		{"own profile, unmasked", containerUser, with(hard, unmasked, own), namespaces}, // and procMount: Unmasked
		// Another filter above, that has a listener or lets none be made.
		{"docker without listeners", containerUser, with(hard, seccompFlag(t, withoutListeners(dockerProfile(t, nil, []string{"seccomp"})))), landlockOnly},
		// Older kernels.
		{"without Landlock", containerUser, with(hard, unmasked, unguarded), noLandlock},
		{"masked, without Landlock", containerUser, with(hard, unguarded), sharedUnguarded},
		{"docker without Landlock", containerUser, with(hard, seccompFlag(t, dockerProfile(t, nil, landlockCalls))), nothing},
	}
}

// ownProfile is the path of the seccomp profile that is there for operators.
func ownProfile(t *testing.T) string {
	t.Helper()
	path := rig.Value(filepath.Abs("../../deploy/seccomp-agent.json"))
	return path
}

// triedKinds returns the kinds of containers that tests run in: all of them each night, else that of
// a restricted pod, in which most agents run.
func triedKinds(t *testing.T) []containerKind {
	t.Helper()
	if rig.Runs(rig.Nightly) {
		return containerKinds(t)
	}
	return kindsNamed(t, "docker hardened")
}

// kindsNamed returns some kinds of containers.
func kindsNamed(t *testing.T, names ...string) []containerKind {
	t.Helper()
	found := slices.DeleteFunc(containerKinds(t), func(k containerKind) bool { return !slices.Contains(names, k.name) })
	if len(found) != len(names) {
		t.Fatalf("of the kinds of containers %q there are %v", names, found)
	}
	return found
}

// layers are those that confine a command of each of the doctor's policies, by what there is to
// confine it with. What is not there is refused.
var layers = map[means]map[string]string{
	namespaces: everywhere("userns mountns pidns netns landlock:N seccomp", "userns mountns pidns landlock:N seccomp", "landlock:N seccomp"),
	sharedPIDs: everywhere("userns mountns netns landlock:N seccomp", "userns mountns landlock:N seccomp", "landlock:N seccomp"),
	noLandlock: everywhere("userns mountns pidns netns seccomp", "", ""),
	// A PID namespace keeps the container's processes out of reach, though they are listed.
	sharedUnguarded: everywhere("userns mountns pidns:shared netns seccomp", "", ""),
	supervisor: {
		"read-only": "supervised:W landlock:N seccomp", "workspace-write": "supervised:W landlock:N seccomp",
		"deny": "supervised:S landlock:N seccomp", "view-only": "supervised:S landlock:N seccomp",
		"workspace-write-network": "supervised:W landlock:N seccomp", "network-only": "landlock:N seccomp",
	},
	oldSupervisor: {
		"read-only": "supervised:R landlock:N seccomp", "workspace-write": "supervised:R landlock:N seccomp",
		"deny": "supervised:S landlock:N seccomp", "view-only": "supervised:S landlock:N seccomp",
		"network-only": "landlock:N seccomp",
	},
	landlockOnly: {"read-only": "landlock:N seccomp", "view-only": "landlock:N seccomp", "network-only": "landlock:N seccomp"},
}

// everywhere are layers that do not depend on which files a policy shows.
func everywhere(files, network, networkOnly string) map[string]string {
	return map[string]string{
		"read-only": files, "workspace-write": files, "deny": files, "view-only": files,
		"workspace-write-network": network, "network-only": networkOnly,
	}
}

// lacking says which layers are missing there, the first one in the error of what is refused, and
// what is in its remedy, as a pattern. A policy that restricts no files needs Landlock only.
var lacking = map[means]struct{ layers, first, remedy string }{
	namespaces:      {},
	sharedPIDs:      {"procfs", "procfs", "unmask"},
	noLandlock:      {"supervised landlock", "landlock", landlockRemedy},
	sharedUnguarded: {"procfs supervised landlock", "landlock", landlockRemedy},
	supervisor:      {"userns mountns pidns procfs ipcns netns", "userns", "seccomp profile that allows unshare|SETFCAP"},
	oldSupervisor:   {"userns mountns pidns procfs ipcns netns", "userns", "user.max_user_namespaces"},
	// The profile answers calls of Landlock with EPERM there, so the kernel is not to blame.
	landlockOnly: {"userns mountns pidns procfs ipcns netns supervised usernotify", "userns", "seccomp profile that allows unshare"},
	nothing:      {"userns mountns pidns procfs ipcns netns supervised landlock", "userns", "seccomp profile that allows unshare"},
}

// landlockRemedy is in the remedy for Landlock, whether an engine or the kernel does not have it.
const landlockRemedy = "run a kernel of version"

// dockerProfile is the filter that Docker puts on a container with these capabilities, on this
// kernel. Kubernetes' RuntimeDefault is the same. Calls named in refused are taken out of it: they
// get the error of calls that the profile does not know.
func dockerProfile(t *testing.T, capabilities, refused []string) *specs.LinuxSeccomp {
	t.Helper()
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}})
	rig.Must(t, err)
	rig.Is(t, profile.DefaultAction, specs.ActErrno, "it is another profile than it was: what it does not know has the action")
	for i, rule := range profile.Syscalls {
		if rule.Action == specs.ActAllow {
			profile.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(refused, name) })
		}
	}
	return profile
}

// landlockCalls are refused where an engine or a kernel does not know Landlock.
var landlockCalls = []string{"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}

// withoutLandlock is a filter that allows all but Landlock, as a kernel without it does. It has
// the architectures of Docker's: of others the engine's library would kill the calling thread.
func withoutLandlock(t *testing.T) *specs.LinuxSeccomp {
	t.Helper()
	unknown := uint(38) // ENOSYS
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: dockerProfile(t, nil, nil).Architectures,
		Syscalls:      []specs.LinuxSyscall{{Names: landlockCalls, Action: specs.ActErrno, ErrnoRet: &unknown}},
	}
}

// withoutListeners lets no filter with a listener be made under a profile that allows no filters.
func withoutListeners(profile *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
		Names: []string{"seccomp"}, Action: specs.ActAllow,
		Args: []specs.LinuxSeccompArg{{Index: 1, Value: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, ValueTwo: 0, Op: specs.OpMaskedEqual}},
	})
	return profile
}

// seccompFlag writes a filter as engines read it, and returns the flag for it.
func seccompFlag(t *testing.T, filter *specs.LinuxSeccomp) string {
	t.Helper()
	encoded := rig.Value(json.Marshal(filter))
	path := filepath.Join(t.TempDir(), "seccomp.json")
	rig.Must(t, os.WriteFile(path, encoded, 0o644))
	return "--security-opt=seccomp=" + path
}

// TestDockerProfile: under the profile that the other tests take for Docker's, a container is
// what they take it for: no namespaces and mounts can be made, and a supervisor has what it
// needs.
func TestDockerProfile(t *testing.T) {
	t.Parallel()
	allowed := map[string]bool{}
	for _, rule := range dockerProfile(t, nil, nil).Syscalls {
		for _, name := range rule.Names {
			if rule.Action == specs.ActAllow && len(rule.Args) == 0 {
				allowed[name] = true
			}
		}
	}
	for names, want := range map[string]bool{
		"unshare setns mount umount2 pivot_root chroot open_tree move_mount fsopen clone clone3 pidfd_getfd kcmp": false,
		"seccomp landlock_restrict_self process_vm_readv ptrace pidfd_open openat2":                               true,
	} {
		for name := range strings.FieldsSeq(names) {
			rig.Is(t, allowed[name], want, "%s is allowed", name)
		}
	}
	lacks(t, fmt.Sprint(dockerProfile(t, nil, landlockCalls).Syscalls), "landlock")
}
