package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// nobody is the ordinary user of these tests.
const nobody = 65534

// metadataVisible is a flag of the agent that has it take level R for S.
const metadataVisible = "--sandbox-metadata=visible"

// escapeSite is where the attempts are made: on this machine, or in a kind of container.
type escapeSite struct {
	name       string
	uid        int
	containers *containers // nil: on this machine
	kind       containerKind
	flags      []string // of the agent
	through    []string // a command that executes the agent
}

// machineSites are this machine, as root and as an ordinary user. E2E_MEANS says which of the means
// a virtual machine with another kernel has (test/kernels).
func machineSites() []escapeSite {
	kind := containerKind{means: machineMeans[os.Getenv("E2E_MEANS")]}
	if uid := os.Geteuid(); uid != 0 {
		return inEveryLevel([]escapeSite{{name: fmt.Sprint("uid ", uid), uid: uid, kind: kind}})
	}
	return inEveryLevel([]escapeSite{{name: "uid 0", kind: kind}, {name: fmt.Sprint("uid ", nobody), uid: nobody, kind: kind}})
}

// inEveryLevel returns the sites, and each where a supervisor confines commands a second time, with
// an operator who lets metadata be seen: level R takes the place of S.
func inEveryLevel(sites []escapeSite) []escapeSite {
	var all []escapeSite
	for _, site := range sites {
		all = append(all, site)
		if supervised(site, "") {
			site.name += ", metadata visible"
			site.flags = []string{metadataVisible}
			all = append(all, site)
		}
	}
	return all
}

// machineMeans are the values of E2E_MEANS. An ordinary machine has everything.
var machineMeans = map[string]means{
	"": namespaces, "unguarded": noLandlock, "shared": sharedPIDs, "shared-unguarded": sharedUnguarded,
	"supervisor": supervisor, "old-supervisor": oldSupervisor,
}

// containerSites are containers of those kinds.
func containerSites(t *testing.T, kinds []containerKind) []escapeSite {
	t.Helper()
	c := newContainers(t)
	var sites []escapeSite
	for _, kind := range kinds {
		sites = append(sites, escapeSite{name: kind.name, uid: kind.uid, containers: c, kind: kind})
	}
	return inEveryLevel(sites)
}

// modes returns the policies that the site can enforce for processes, and those that it refuses.
func (s escapeSite) modes() (enforced, refused []string) {
	for _, mode := range []string{"ro", "ww", "net", "tty", "plain", "work", "view"} {
		// Which of the doctor's policies a mode is like. The first four deny paths.
		policy := map[string]string{"net": "workspace-write-network", "plain": "read-only", "work": "workspace-write", "view": "view-only"}[mode]
		if layers[s.kind.means][cmp.Or(policy, "deny")] != "" {
			enforced = append(enforced, mode)
		} else {
			refused = append(refused, mode)
		}
	}
	return enforced, refused
}

// agent is the agent of a rig there.
func (s escapeSite) agent(t *testing.T, r *escapeRig, listen string) *exec.Cmd {
	t.Helper()
	argv := slices.Concat(s.through, []string{r.base + "/agent", "--listen", listen, "--log-level", "warn"}, s.flags)
	env := []string{"PATH=/usr/bin:/bin", "E2E_SECRET=" + r.secret, "E2E_MARK=" + r.secret}
	if s.containers != nil {
		options := []string{"--volume=" + r.base + ":" + r.base}
		for _, variable := range env {
			options = append(options, "--env="+variable)
		}
		return s.containers.command(t, s.kind, options, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(s.uid)}
	return cmd
}

// credential is that of a user who is in no other group than their own.
func credential(uid int) *syscall.Credential {
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: os.Geteuid() != 0}
}

// agentPID returns the PID of the agent as processes beside it see it.
func (r *escapeRig) agentPID() int {
	if r.site.containers != nil {
		return 1
	}
	return r.agent.Process.Pid
}

// killAgent kills the agent, and with it the container.
func (r *escapeRig) killAgent(t *testing.T) {
	t.Helper()
	pids := []string{strconv.Itoa(r.agent.Process.Pid)}
	if r.site.containers != nil {
		pids = marked(r.secret)
	}
	if len(pids) == 0 {
		t.Fatal("there is no agent")
	}
	for _, pid := range pids {
		if n, err := strconv.Atoi(strings.TrimPrefix(pid, "/proc/")); err != nil || syscall.Kill(n, syscall.SIGKILL) == syscall.EPERM {
			t.Fatalf("process %s cannot be killed: %v", pid, err)
		}
	}
}
