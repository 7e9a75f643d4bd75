package e2e

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSupervisedProbe: where a supervisor could not trace its commands, or have a listener, the
// doctor says so and what to do, and a command that needs one is refused.
func TestSupervisedProbe(t *testing.T) {
	t.Parallel()
	launcher := rig.Launcher(t, t.TempDir())
	for _, tt := range []struct{ flag, failed, remedy string }{
		{"-no-trace", "tracing the caller: ptrace: operation not permitted", "allows process_vm_readv and ptrace"},
		{"-no-listener", "device or resource busy", "no other program holds a seccomp listener"},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			t.Parallel()
			r := launched(t, launcher, tt.flag, "doctor", "--json")
			var found doctorReport
			rig.Must(t, json.Unmarshal([]byte(r.stdout), &found))
			seen := false
			for _, l := range found.Layers {
				if l.Name == "supervised" {
					seen = true
					rig.Is(t, l.OK, false, "the layer is there")
					has(t, l.Error, tt.failed)
					has(t, l.Remedy, tt.remedy)
				}
			}
			rig.Is(t, seen, true, "the doctor lists the layer")
			r = launched(t, launcher, tt.flag, "sandbox", "--workspace", t.TempDir(), "--", "echo", "it runs")
			lacks(t, r.stdout, "it runs")
			has(t, r.stderr, "sandbox: ")
		})
	}
}

// launched runs the agent where its launcher forbids something.
func launched(t *testing.T, launcher, flag string, argv ...string) result {
	t.Helper()
	cmd := rig.Leash(rig.Command(t, launcher, append([]string{flag, "--", rig.Agent(t)}, argv...)...))
	cmd.Dir = "/"
	return finish(t, cmd)
}

// TestWithoutPidfd: where namespaces are allowed and pidfd_getfd is not, the doctor says so and
// what to do, and a command with the network is supervised: it reaches what it may. By the init
// of its namespaces each connect would fail.
func TestWithoutPidfd(t *testing.T) {
	t.Parallel()
	launcher := rig.Launcher(t, t.TempDir())
	run := func(argv ...string) string {
		t.Helper()
		r := launched(t, launcher, "-only-pidfd", argv...)
		if r.code != 0 {
			t.Fatalf("%q: %+v", argv, r)
		}
		return r.stdout
	}
	var found doctorReport
	rig.Must(t, json.Unmarshal([]byte(run("doctor", "--json")), &found))
	for _, l := range found.Layers {
		switch {
		case l.Name == "pidfd" && (l.Error != "taking a descriptor: operation not permitted" || !strings.Contains(l.Remedy, "allows pidfd_open and pidfd_getfd")):
			t.Errorf("%+v", l)
		case l.Name == "userns" && l.Error != "":
			t.Skipf("there are no user namespaces here: %s", l.Error)
		}
	}
	for _, p := range found.Policies {
		if supervised := strings.HasPrefix(p.Processes.Layers[0], "supervised:"); supervised != (p.Name == "workspace-write-network") && p.Name != "network-only" {
			t.Errorf("%s has the layers %q", p.Name, p.Processes.Layers)
		}
	}
	server := rig.Listen(t, "tcp", "127.0.0.1:0", rig.Echo)
	host, port, err := net.SplitHostPort(server.String())
	rig.Must(t, err)
	out := run("sandbox", "--workspace", t.TempDir(), "--network", "on", "--", "bash", "-c",
		"exec 3<>/dev/tcp/"+host+"/"+port+" && echo back >&3 && head -n 1 <&3")
	rig.Is(t, out, "back\n", "it says")
}
