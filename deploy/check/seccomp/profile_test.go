package seccomp_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	docker "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/execagent/execagent/deploy/check/seccomp"
)

var update = flag.Bool("update", false, "write the profile to deploy/seccomp-agent.json")

const committed = "../../seccomp-agent.json"

func profile(t *testing.T) *specs.LinuxSeccomp {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatal(err)
	}
	p, err := seccomp.Profile(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCommitted: the profile in deploy is the one that is made here.
func TestCommitted(t *testing.T) {
	t.Parallel()
	made, err := json.MarshalIndent(profile(t), "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	made = append(made, '\n')
	if *update {
		if err := os.WriteFile(committed, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	there, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, there) {
		t.Error("deploy/seccomp-agent.json is not what is made: go test ./seccomp -update in deploy/check writes it")
	}
}

// TestBeyondDocker: what the profile lets through and Docker's does not, for programs without
// capabilities, is what makes namespaces and fills them, and calls that are newer than Docker's.
func TestBeyondDocker(t *testing.T) {
	t.Parallel()
	theirs, err := docker.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	if err != nil {
		t.Fatal(err)
	}
	// Each lets a process find out or ask for something of its own, or is an older form of what is
	// let through, or of arm, which Docker's profile for this machine leaves out.
	more := strings.Fields("getxattrat setxattrat listxattrat removexattrat file_getattr file_setattr rseq_slice_yield lsm_get_self_attr " +
		"nice readdir sigaction signal sigpending sigsuspend " +
		"arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls")
	ours, docks := allowed(profile(t)), allowed(theirs)
	var beyond, less []string
	for name := range ours {
		if !docks[name] && !slices.Contains(seccomp.Namespaces, name) && !slices.Contains(more, name) {
			beyond = append(beyond, name)
		}
	}
	for name := range docks {
		if !ours[name] {
			less = append(less, name)
		}
	}
	slices.Sort(beyond)
	slices.Sort(less)
	if len(beyond) > 0 {
		t.Errorf("let through beyond Docker's profile: %q", beyond)
	}
	t.Logf("Docker's profile lets through and this one does not: %q", less)
	for _, name := range seccomp.Namespaces {
		if !ours[name] {
			t.Errorf("%s is not let through", name)
		}
	}
}

// allowed are the calls that the profile lets through, at least with some arguments.
func allowed(p *specs.LinuxSeccomp) map[string]bool {
	names := map[string]bool{}
	for _, rule := range p.Syscalls {
		for _, name := range rule.Names {
			if rule.Action == specs.ActAllow {
				names[name] = true
			}
		}
	}
	return names
}
