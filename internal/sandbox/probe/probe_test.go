package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// probeChild makes the test binary run Host and print the result. A test starts
// it by way of a command that takes something away from its surroundings.
const probeChild = "helper-test-probe"

func probeChildMain() int {
	host, err := Host(context.Background(), os.Args[0])
	if err != nil {
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(host); err != nil {
		return 1
	}
	return 0
}

// probeIn runs Host in a child. The command around starts the child after it has
// taken something away from the child's surroundings.
func probeIn(t *testing.T, around ...string) sandbox.Host {
	t.Helper()
	if _, err := exec.LookPath(around[0]); err != nil {
		t.Skip(err)
	}
	self := rig.Value(os.Executable())
	out, err := exec.CommandContext(t.Context(), around[0], append(slices.Clone(around[1:]), self, probeChild)...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("%s: %v\n%s", around, err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var host sandbox.Host
	if err := json.Unmarshal(out, &host); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return host
}

// TestProbe: on the machines that run the tests every layer works.
func TestProbe(t *testing.T) {
	start := time.Now()
	host := rig.Value(Host(t.Context(), os.Args[0]))
	t.Logf("%v: %+v", time.Since(start), host)
	for layer, reason := range host.Reasons {
		t.Errorf("%s is missing: %+v", layer, reason)
	}
	for _, layer := range sandbox.AllLayers() {
		rig.Is(t, host.Has(layer) || layer == sandbox.Landlock, true, "%s is there or has a reason: %+v", layer, host)
	}
	rig.Is(t, host.Landlock, enforce.LandlockABI(), "Landlock")
}

// TestProbeEnded: when the context has ended Host returns its cause, and no
// layer.
func TestProbeEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the agent ends")
	cancel(cause)
	host, err := Host(ctx, os.Args[0])
	rig.Is(t, err, cause, "error")
	rig.Is(t, host.Has(sandbox.UserNS) || host.Landlock != 0 || host.Has(sandbox.Seccomp), false, "%+v may be relied on", host)
}

// TestProbeMissing: when layers are taken away, Host finds the others all the
// same, and says what to do about the missing ones.
func TestProbeMissing(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("what is taken away is root's")
	}
	for _, tt := range []struct {
		name    string
		around  []string
		missing []sandbox.Layer
		remedy  string // is in the remedy of each of them
	}{
		{
			"no user namespaces", []string{"unshare", "-Ur", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"`, "sh"},
			[]sandbox.Layer{sandbox.UserNS, sandbox.MountNS, sandbox.PIDNS, sandbox.Procfs, sandbox.IPCNS, sandbox.NetNS}, "user.max_user_namespaces",
		},
		{
			"no pid namespaces", []string{"unshare", "-Ur", "sh", "-c", `echo 0 >/proc/sys/user/max_pid_namespaces; exec "$@"`, "sh"},
			[]sandbox.Layer{sandbox.PIDNS, sandbox.Procfs}, "max_*_namespaces",
		},
		{
			"no network namespaces", []string{"unshare", "-Ur", "sh", "-c", `echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"`, "sh"},
			[]sandbox.Layer{sandbox.NetNS}, "max_*_namespaces",
		},
		{
			"root that cannot map itself", []string{"setpriv", "--bounding-set", "-setfcap,-sys_admin"},
			[]sandbox.Layer{sandbox.UserNS, sandbox.MountNS, sandbox.PIDNS, sandbox.Procfs, sandbox.IPCNS, sandbox.NetNS}, "SETFCAP",
		},
		{
			"masked proc", []string{"unshare", "-m", "sh", "-c", `mount --bind /dev/null /proc/cmdline && exec unshare -Ur "$@"`, "sh"},
			[]sandbox.Layer{sandbox.Procfs}, "unmask=ALL",
		},
		{
			"an ordinary user", []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"},
			nil, "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			host := probeIn(t, tt.around...)
			for _, layer := range sandbox.AllLayers() {
				have := host.Has(layer)
				reason, ok := host.Reasons[layer]
				switch want := !slices.Contains(tt.missing, layer); {
				case have != want:
					t.Errorf("%s: %v, want %v: %+v", layer, have, want, reason)
				case have == ok:
					t.Errorf("%s: %v with reason %+v", layer, have, reason)
				case !have && (reason.Error == "" || reason.Remedy == ""):
					t.Errorf("%s has no reason: %+v", layer, reason)
				}
			}
			for _, layer := range tt.missing {
				remedy := host.Reasons[layer].Remedy
				rig.Is(t, strings.Contains(remedy, tt.remedy), true, "%q is in the remedy for %s: %q", tt.remedy, layer, remedy)
			}
		})
	}
}

// TestCloneFlags: package sandbox writes the flags of clone(2) as numbers,
// since it is also built for systems where they have no names. The numbers are
// right.
func TestCloneFlags(t *testing.T) {
	t.Parallel()
	flags := map[sandbox.Layer]uintptr{
		sandbox.UserNS: unix.CLONE_NEWUSER, sandbox.MountNS: unix.CLONE_NEWNS, sandbox.PIDNS: unix.CLONE_NEWPID,
		sandbox.IPCNS: unix.CLONE_NEWIPC, sandbox.NetNS: unix.CLONE_NEWNET,
	}
	for _, layer := range sandbox.AllLayers() {
		rig.Is(t, layer.CloneFlag(), flags[layer], "%s", layer)
	}
}

// TestJudge: a layer works only if a child said so, and no child said that it
// failed.
func TestJudge(t *testing.T) {
	t.Parallel()
	everything := func() report {
		r := newReport()
		for _, n := range sandbox.Namespaces() {
			r.note(n, "", nil)
		}
		r.note(sandbox.Procfs, "", nil)
		r.note(sandbox.Landlock, "", nil)
		r.note(sandbox.Seccomp, "", nil)
		r.note(sandbox.UserNotify, "", nil)
		r.note(sandbox.Pidfd, "", nil)
		r.Landlock = 7
		return r
	}
	noFacts := func() hostFacts { return hostFacts{} }

	host := judge([]report{everything()}, func() hostFacts { t.Error("asked without need"); return hostFacts{} })
	rig.Is(t, len(host.Reasons), 0, "reasons of %+v", host)
	host = judge([]report{newReport()}, noFacts)
	rig.Is(t, fmt.Sprint(host.Layers, host.Landlock), fmt.Sprint(sandbox.Host{}.Layers, 0), "where nothing was tried")
	alone := everything()
	delete(alone.Done, sandbox.UserNS)
	if host := judge([]report{alone}, noFacts); host.Has(sandbox.MountNS) || host.Has(sandbox.NetNS) || host.Reasons[sandbox.MountNS].Error == "" {
		t.Errorf("without a user namespace: %+v", host)
	}
	reached := newReport()
	reached.note(sandbox.PIDNS, "reading mem of a process outside", errNotRefused)
	if host := judge([]report{everything(), reached}, noFacts); host.Has(sandbox.PIDNS) || host.Has(sandbox.Procfs) || host.Reasons[sandbox.Procfs].Error == "" {
		t.Errorf("a pid namespace that shields nobody: %+v", host)
	}
	both := everything()
	both.Failed[sandbox.Landlock] = failure{Step: "reading", Text: errNotRefused.Error()}
	if host := judge([]report{both}, noFacts); host.Landlock != 0 || !strings.Contains(host.Reasons[sandbox.Landlock].Error, "reading") {
		t.Errorf("Landlock that refuses nothing: %+v", host)
	}
}

// TestNote: the first failure of a layer stays, whatever is noted afterwards.
func TestNote(t *testing.T) {
	t.Parallel()
	r := newReport()
	rig.Is(t, r.note(sandbox.Landlock, "one", nil) && r.Done[sandbox.Landlock], true, "a step that was done: %+v", r)
	rig.Is(t, r.note(sandbox.Landlock, "two", unix.EPERM) || r.Done[sandbox.Landlock], false, "a step that failed: %+v", r)
	rig.Is(t, r.note(sandbox.Landlock, "three", nil) || r.Done[sandbox.Landlock], false, "a step after a failed one: %+v", r)
	rig.Is(t, r.Failed[sandbox.Landlock].Step, "two", "the step that failed")
	rig.Is(t, r.Failed[sandbox.Landlock].Errno, unix.EPERM, "errno")
}

// TestRemedy has a row for each cause that is told apart.
func TestRemedy(t *testing.T) {
	t.Parallel()
	clone := func(errno unix.Errno) failure { return failure{Step: stepCreate, Errno: errno} }
	for _, tt := range []struct {
		name    string
		facts   hostFacts
		layer   sandbox.Layer
		failure failure
		want    string
	}{
		{"Debian's sysctl", hostFacts{unprivilegedNS: "0"}, sandbox.UserNS, clone(unix.EPERM), "kernel.unprivileged_userns_clone=1"},
		{"Debian's sysctl does not bind root", hostFacts{unprivilegedNS: "0", root: true, filtered: true}, sandbox.UserNS, clone(unix.EPERM), "seccomp profile"},
		{"no user namespaces at all", hostFacts{maxUserNS: "0"}, sandbox.UserNS, clone(unix.ENOSPC), "user.max_user_namespaces="},
		{"nested too deep", hostFacts{maxUserNS: "1000"}, sandbox.UserNS, clone(unix.ENOSPC), "nest fewer"},
		{"AppArmor", hostFacts{restrictedByAA: "1"}, sandbox.UserNS, failure{Step: stepMaps, Errno: unix.EACCES}, "kernel.apparmor_restrict_unprivileged_userns=0"},
		{"AppArmor does not bind root", hostFacts{restrictedByAA: "1", root: true, setFCap: true, filtered: true}, sandbox.MountNS, clone(unix.EPERM), "seccomp profile"},
		{"the engine's filter", hostFacts{filtered: true, unprivilegedNS: "1"}, sandbox.UserNS, clone(unix.EPERM), "--security-opt seccomp="},
		{"the engine's filter says ENOSYS", hostFacts{filtered: true}, sandbox.MountNS, clone(unix.ENOSYS), "--security-opt seccomp="},
		{"old kernel", hostFacts{}, sandbox.MountNS, clone(unix.ENOSYS), "version 5.12"},
		{"kernel without", hostFacts{}, sandbox.UserNS, clone(unix.EINVAL), "CONFIG_USER_NS"},
		{"root without SETFCAP", hostFacts{root: true, filtered: true}, sandbox.UserNS, failure{Step: stepMaps, Errno: unix.EPERM}, "SETFCAP"},
		{"nothing known", hostFacts{}, sandbox.UserNS, clone(unix.EPERM), "chroot"},
		{"masked proc", hostFacts{maskedProc: true, filtered: true}, sandbox.Procfs, failure{Step: stepProc, Errno: unix.EPERM}, "systempaths=unconfined"},
		{"proc refused", hostFacts{}, sandbox.Procfs, failure{Step: stepProc, Errno: unix.EPERM}, "hides parts of /proc"},
		{"no pid namespace", hostFacts{maskedProc: true, filtered: true}, sandbox.PIDNS, clone(unix.EPERM), "--security-opt seccomp="},
		{"Landlock not in the kernel", hostFacts{}, sandbox.Landlock, failure{Errno: unix.ENOSYS}, "5.13"},
		{"Landlock behind a filter", hostFacts{filtered: true}, sandbox.Landlock, failure{Errno: unix.ENOSYS}, "20.10.23"},
		{"Landlock certainly behind a filter", hostFacts{filtered: true, securityModules: "capability,landlock"}, sandbox.Landlock, failure{Errno: unix.ENOSYS}, "seccomp profile"},
		{"Landlock forbidden", hostFacts{}, sandbox.Landlock, failure{Errno: unix.EPERM}, "seccomp profile"},
		{"Landlock not booted", hostFacts{securityModules: "capability,yama"}, sandbox.Landlock, failure{Errno: unix.EOPNOTSUPP}, "lsm=landlock,capability,yama"},
		{"Landlock not booted, list unknown", hostFacts{}, sandbox.Landlock, failure{Errno: unix.EOPNOTSUPP}, "lsm="},
		{"no seccomp", hostFacts{}, sandbox.Seccomp, failure{Errno: unix.EINVAL}, "CONFIG_SECCOMP_FILTER"},
		{"seccomp forbidden", hostFacts{}, sandbox.Seccomp, failure{Errno: unix.EPERM}, "allows seccomp"},
		{"listener taken", hostFacts{}, sandbox.UserNotify, failure{Errno: unix.EBUSY}, "SCMP_ACT_NOTIFY"},
		{"no descriptors", hostFacts{}, sandbox.Pidfd, failure{Errno: unix.EPERM}, "allows pidfd_open and pidfd_getfd"},
		{"listener unknown", hostFacts{}, sandbox.UserNotify, failure{Errno: unix.EINVAL}, "5.19"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := tt.facts.remedy(tt.layer, tt.failure)
			rig.Is(t, strings.Contains(got, tt.want), true, "%q is in %q", tt.want, got)
		})
	}
	// There is a remedy for failures that nobody has foreseen too.
	for _, n := range []sandbox.Layer{sandbox.UserNS, sandbox.PIDNS, sandbox.Landlock, sandbox.Seccomp, sandbox.UserNotify, sandbox.Pidfd} {
		rig.Is(t, (hostFacts{}).remedy(n, failure{Step: "waiting for an answer"}) != "", true, "there is a remedy for %s", n)
	}
}

func BenchmarkProbe(b *testing.B) {
	for b.Loop() {
		rig.Must(b, rig.Err(Host(b.Context(), os.Args[0])))
	}
}
