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

// dockerProfile is the filter that Docker puts on a container with these capabilities, on this
// kernel. Kubernetes' RuntimeDefault is the same. Calls named in refused are taken out of it: they
// get the error of calls that the profile does not know.
func dockerProfile(t *testing.T, capabilities, refused []string) *specs.LinuxSeccomp {
	t.Helper()
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}})
	rig.Must(t, err)
	if profile.DefaultAction != specs.ActErrno {
		t.Fatalf("what the profile does not know has the action %s: it is another profile than it was", profile.DefaultAction)
	}
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
	if less := fmt.Sprint(dockerProfile(t, nil, landlockCalls).Syscalls); strings.Contains(less, "landlock") {
		t.Error("Landlock's calls are still in the profile without them")
	}
}
