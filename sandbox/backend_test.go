package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestBackend(t *testing.T) {
	t.Parallel()
	full := Host{Layers: LayersOf(UserNS, MountNS, PIDNS, Procfs, IPCNS, NetNS, Seccomp, UserNotify, Pidfd), Landlock: 7}
	without := func(change func(*Host)) Host {
		h := full
		change(&h)
		return h
	}
	container := without(func(h *Host) { h.Layers = h.Layers.Without(Procfs) })
	docker := Host{Layers: LayersOf(Seccomp), Landlock: 7, Reasons: map[Layer]Reason{UserNS: {"operation not permitted", "allow user namespaces"}}}
	supervised := func(abi int) Host { return Host{Layers: LayersOf(Seccomp, UserNotify, Supervised), Landlock: abi} }

	supervisor := docker
	supervisor.Layers = docker.Layers.With(Supervised)

	root := entry(PlaceRoot, Read)
	readOnly := Profile{Entries: []Entry{root}}
	workspace := Profile{Entries: []Entry{root, entry(PlacePath, Write, "/repo")}}
	enabled := Profile{Entries: []Entry{root}, Network: NetworkEnabled}
	managed := Profile{Entries: []Entry{root}, Network: NetworkManaged}
	sockets := Profile{Entries: []Entry{root}, Sockets: []string{"/run/s"}}
	view := Profile{Entries: []Entry{entry(PlaceMinimal, Read), entry(PlacePath, Read, "/repo"), entry(PlacePath, Denied, "/opt")}}

	for _, tt := range []struct {
		name    string
		profile Profile
		host    Host
		full    bool
		want    string // layers, or the one that is missing
	}{
		{"disabled", Profile{Kind: Disabled}, Host{}, true, ""},
		{"external, network enabled", Profile{Kind: External, Network: NetworkEnabled}, full, true, ""},
		{"external", Profile{Kind: External}, full, true, "landlock:7 seccomp"},
		{"unrestricted", Profile{Unrestricted: true}, docker, true, "landlock:7 seccomp"},
		{"unrestricted, old Landlock", Profile{Unrestricted: true}, Host{Layers: LayersOf(Seccomp), Landlock: 2}, true, "landlock:2 seccomp"},
		{"unrestricted, older Landlock", Profile{Unrestricted: true}, Host{Layers: LayersOf(Seccomp), Landlock: 1}, true, "!landlock"},
		{"unrestricted, no Landlock", Profile{Unrestricted: true}, Host{Layers: LayersOf(Seccomp)}, true, "!landlock"},
		{"unrestricted, no filter", Profile{Unrestricted: true}, Host{Landlock: 7}, false, "!seccomp"},

		{"workspace", workspace, full, true, "userns mountns pidns netns landlock:7 seccomp"},
		{"read only", readOnly, full, false, "userns mountns pidns netns landlock:7 seccomp"},
		{"enabled", enabled, full, false, "userns mountns pidns landlock:7 seccomp"},
		{"old Landlock", workspace, without(func(h *Host) { h.Landlock = 3 }), true, "userns mountns pidns netns landlock:3 seccomp"},
		{"no Landlock", workspace, without(func(h *Host) { h.Landlock = 0 }), true, "userns mountns pidns netns seccomp"},
		{"no network namespace", workspace, without(func(h *Host) { h.Layers = h.Layers.Without(NetNS) }), true, "userns mountns pidns landlock:7 seccomp"},
		{"enabled, no descriptors of others", enabled, without(func(h *Host) { h.Layers = h.Layers.Without(Pidfd) }), false, "!seccomp"},
		{"enabled, no notifications", enabled, without(func(h *Host) { h.Layers = h.Layers.Without(UserNotify) }), false, "!seccomp"},
		{"enabled, old Landlock", enabled, without(func(h *Host) { h.Landlock = 5 }), false, "!landlock"},
		{"enabled, no Landlock", enabled, without(func(h *Host) { h.Landlock = 0 }), false, "!landlock"},
		{"container", workspace, container, true, "userns mountns netns landlock:7 seccomp"},
		{"container, old Landlock", workspace, Host{Layers: container.Layers, Landlock: 5}, true, "userns mountns pidns:shared netns landlock:5 seccomp"},
		{"container, no Landlock", workspace, Host{Layers: container.Layers}, true, "userns mountns pidns:shared netns seccomp"},
		{"container, no Landlock, enabled", enabled, Host{Layers: container.Layers}, false, "!landlock"},
		{"container, old Landlock, no pid namespace", workspace, Host{Layers: container.Layers.Without(PIDNS), Landlock: 5}, false, "!pidns"},
		{"no pid namespace", workspace, without(func(h *Host) { h.Layers = h.Layers.Without(PIDNS, Procfs) }), true, "userns mountns netns landlock:7 seccomp"},
		{"procfs of no namespace", workspace, Host{Layers: full.Layers.Without(PIDNS), Landlock: 5}, false, "!pidns"},
		{"no filter", workspace, without(func(h *Host) { h.Layers = h.Layers.Without(Seccomp) }), false, "!seccomp"},
		{"no ipc namespace", workspace, without(func(h *Host) { h.Layers = h.Layers.Without(IPCNS) }), false, "!ipcns"},
		{"no mount namespace", workspace, without(func(h *Host) { h.Layers = h.Layers.Without(MountNS) }), false, "!mountns"},
		{"nothing", readOnly, Host{}, false, "!userns"},

		{"supervisor, enabled", enabled, supervised(6), false, "supervised:W landlock:6 seccomp"},
		{"supervisor, enabled, older Landlock", enabled, supervised(5), false, "!userns"},
		{"supervisor, read only, Landlock keeps signals inside", readOnly, supervised(6), false, "supervised:W landlock:6 seccomp"},
		{"supervisor, read only, older Landlock", readOnly, supervised(5), false, "supervised:R landlock:5 seccomp"},
		{"supervisor, workspace, older Landlock", workspace, supervised(2), false, "supervised:R landlock:2 seccomp"},
		{"supervisor, view, older Landlock", view, supervised(2), false, "supervised:S landlock:2 seccomp"},
		{"supervisor, workspace, Landlock that moves no files", workspace, supervised(1), false, "!userns"},

		{"docker, read only", readOnly, docker, false, "landlock:7 seccomp"},
		{"docker, read only, full", readOnly, docker, true, "!userns"},
		{"docker, view", view, docker, false, "landlock:7 seccomp"},
		{"docker, nothing to see", Profile{}, docker, false, "landlock:7 seccomp"},
		{"docker, old Landlock", readOnly, Host{Layers: LayersOf(Seccomp), Landlock: 5}, false, "!userns"},
		{"docker, no filter", readOnly, Host{Landlock: 7}, false, "!userns"},
		{"docker, enabled", enabled, docker, false, "!userns"},
		{"docker, workspace", workspace, docker, false, "!userns"},
		{"docker, denied", Profile{Entries: []Entry{root, entry(PlacePath, Denied, "/repo")}}, docker, false, "!userns"},
		{"docker, denied if it is there", Profile{Entries: []Entry{root, skip(entry(PlacePath, Denied, "/repo"))}}, docker, false, "!userns"},
		{"docker, denied root", Profile{Entries: []Entry{entry(PlaceRoot, Denied), entry(PlacePath, Read, "/repo")}}, docker, false, "landlock:7 seccomp"},
		{"docker, glob", Profile{Entries: []Entry{root, entry(PlaceGlob, Denied, "/repo/*")}}, docker, false, "!userns"},
		{"docker, glob above", Profile{Entries: []Entry{entry(PlacePath, Read, "/repo/a"), entry(PlaceGlob, Denied, "/repo/**")}}, docker, false, "!userns"},
		{"docker, glob elsewhere", Profile{Entries: []Entry{entry(PlacePath, Read, "/repo"), entry(PlaceGlob, Denied, "/opt/**")}}, docker, false, "landlock:7 seccomp"},
		{"docker, private in view", Profile{Entries: []Entry{root}, Private: []string{"/run/agent"}}, docker, false, "landlock:7 seccomp"},

		{"supervisor, workspace", workspace, supervisor, false, "supervised:W landlock:7 seccomp"},
		{"supervisor, enabled", enabled, supervisor, false, "supervised:W landlock:7 seccomp"},
		{"supervisor, view", view, supervisor, false, "supervised:S landlock:7 seccomp"},
		{"supervisor, enabled, full", enabled, supervisor, true, "!userns"},
		{"supervisor, enabled, old Landlock", enabled, Host{Layers: supervisor.Layers, Landlock: 5}, false, "!userns"},
		{"supervisor beside namespaces", enabled, without(func(h *Host) { h.Layers = h.Layers.With(Supervised) }), false, "userns mountns pidns landlock:7 seccomp"},

		{"managed", managed, full, true, "userns mountns pidns netns landlock:7 seccomp"},
		{"managed, disabled", Profile{Kind: Disabled, Network: NetworkManaged}, full, true, "userns mountns pidns netns landlock:7 seccomp"},
		{"managed, external", Profile{Kind: External, Network: NetworkManaged}, supervisor, false, "supervised:W landlock:7 seccomp"},
		{"managed, container, no Landlock", managed, Host{Layers: container.Layers}, true, "userns mountns pidns:shared netns seccomp"},
		{"managed, no notifications", managed, without(func(h *Host) { h.Layers = h.Layers.Without(UserNotify) }), true, "userns mountns pidns netns landlock:7 seccomp"},
		{"managed, no network namespace", managed, without(func(h *Host) { h.Layers = h.Layers.Without(NetNS) }), false, "!netns"},
		{"managed, no network namespace, supervisor", managed, without(func(h *Host) { h.Layers = h.Layers.Without(NetNS).With(Supervised) }), false, "supervised:W landlock:7 seccomp"},
		{"managed, no network namespace, full", managed, without(func(h *Host) { h.Layers = h.Layers.Without(NetNS).With(Supervised) }), true, "!netns"},
		{"managed, supervisor", managed, supervisor, false, "supervised:W landlock:7 seccomp"},
		{"managed, supervisor, old Landlock", managed, supervised(5), false, "!userns"},
		{"managed, docker", managed, docker, false, "!userns"},

		{"sockets", sockets, full, true, "userns mountns pidns netns landlock:7 seccomp"},
		{"sockets, no network namespace", sockets, without(func(h *Host) { h.Layers = h.Layers.Without(NetNS) }), true, "userns mountns pidns landlock:7 seccomp"},
		{"sockets, everything writable", Profile{Kind: External, Sockets: []string{"/run/s"}}, full, true, "userns mountns pidns netns landlock:7 seccomp"},
		{"sockets, everything allowed", Profile{Kind: External, Network: NetworkEnabled, Sockets: []string{"/run/s"}}, full, true, ""},
		{"sockets, no notifications", sockets, without(func(h *Host) { h.Layers = h.Layers.Without(UserNotify) }), false, "!seccomp"},
		{"sockets, no descriptors of others", sockets, without(func(h *Host) { h.Layers = h.Layers.Without(Pidfd) }), false, "!seccomp"},
		{"sockets, container, no Landlock", sockets, Host{Layers: container.Layers}, false, "!procfs"},
		{"sockets, docker", sockets, docker, false, "!userns"},
		{"sockets, supervisor", sockets, supervisor, false, "supervised:W landlock:7 seccomp"},
		{"sockets, supervisor, old Landlock", sockets, supervised(5), false, "!userns"},
		{"devices, docker", Profile{Entries: []Entry{root}, Devices: []string{"/dev/x"}}, docker, false, "landlock:7 seccomp"},

		{"docker, private out of view", Profile{Entries: []Entry{entry(PlacePath, Read, "/repo")}, Private: []string{"/run/agent"}}, docker, false, "landlock:7 seccomp"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := rig.Value(tt.profile.Compile())
			b, err := p.Backend(tt.host, Operator{RequireNamespaces: tt.full})
			if missing, ok := strings.CutPrefix(tt.want, "!"); ok {
				unenforceable, ok := errors.AsType[*UnenforceableError](err)
				if !ok || unenforceable.Layer != missing || unenforceable.Reason == "" || !strings.Contains(err.Error(), "sandbox") {
					t.Errorf("error %v, want one about %s", err, missing)
				}
				rig.Is(t, b, Backend{}, "with an error")
				return
			}
			rig.Must(t, err)
			rig.Same(t, "what came of it", strings.Fields(tt.want), b.Names())
			rig.Is(t, b.Has(MountNS), b.Has(IPCNS), "mount namespace, as IPC namespace")
		})
	}
}

func TestBackendReason(t *testing.T) {
	t.Parallel()
	p := &Policy{Confined: true, Rules: rulesOf("write /repo")}
	spaces := Reason{"unshare: operation not permitted", "set user.max_user_namespaces"}
	supervisor := Reason{"tracing the caller: operation not permitted", "allow ptrace"}
	for _, tt := range []struct {
		reasons  map[Layer]Reason
		operator Operator
		want     string
	}{
		{map[Layer]Reason{UserNS: spaces}, Operator{}, "; set"},
		{map[Layer]Reason{UserNS: spaces, Supervised: supervisor}, Operator{}, "; a supervisor does not work either: " + supervisor.Error + "; set"},
		{map[Layer]Reason{UserNS: spaces, Supervised: supervisor}, Operator{RequireNamespaces: true}, "; set"},
	} {
		_, err := p.Backend(Host{Reasons: tt.reasons}, tt.operator)
		want := "this host cannot enforce the sandbox: userns is missing: unshare: operation not permitted" + tt.want + " user.max_user_namespaces"
		rig.Is(t, fmt.Sprint(err), want, "error")
	}
}

// TestCheckBackend: a backend that lacks what the policy relies on is refused,
// however it came about.
func TestCheckBackend(t *testing.T) {
	t.Parallel()
	restricted := &Policy{Confined: true, FullRead: true, Rules: rulesOf("read /", "write /repo")}
	enabled := &Policy{Confined: true, FullRead: true, Rules: restricted.Rules, Network: NetworkEnabled}
	managed := &Policy{Confined: true, FullRead: true, Rules: restricted.Rules, Network: NetworkManaged}
	spaces := LayersOf(UserNS, MountNS, IPCNS, Seccomp)
	for _, tt := range []struct {
		name    string
		policy  *Policy
		backend Backend
		want    string // in the error; "" none
	}{
		{"full", restricted, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 7}, ""},
		{"full, enabled", enabled, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 7}, ""},
		{"no Landlock", restricted, Backend{Layers: spaces.With(PIDNS, Procfs)}, ""},
		{"no Landlock, enabled", enabled, Backend{Layers: spaces.With(PIDNS, Procfs)}, "abstract sockets"},
		{"old Landlock, enabled", enabled, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 5}, "abstract sockets"},
		{"managed", managed, Backend{Layers: spaces.With(PIDNS, Procfs, NetNS)}, ""},
		{"managed, no network namespace", managed, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 7}, "other ways out"},
		{"managed, supervisor", managed, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 6, Level: LevelWrites}, ""},
		{"managed, supervisor, old Landlock", managed, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 5, Level: LevelReads}, "abstract sockets"},
		{"managed, Landlock alone", managed, Backend{Layers: LayersOf(Seccomp), Landlock: 7}, "other ways out"},
		{"managed, files of no concern", &Policy{Network: NetworkManaged}, Backend{Layers: LayersOf(Seccomp), Landlock: 7}, "other ways out"},
		{"no pid namespace", restricted, Backend{Layers: spaces, Landlock: 6}, ""},
		{"no pid namespace, enabled", enabled, Backend{Layers: spaces, Landlock: 6}, ""},
		{"no pid namespace, old Landlock", restricted, Backend{Layers: spaces, Landlock: 5}, "processes outside"},
		{"shared", restricted, Backend{Layers: spaces.With(PIDNS)}, ""},
		{"shared, enabled", enabled, Backend{Layers: spaces.With(PIDNS), Landlock: 7}, "wrong numbers"},
		{"procfs of no namespace", restricted, Backend{Layers: spaces.With(Procfs), Landlock: 7}, "without a pid namespace"},
		{"no user namespace", restricted, Backend{Layers: spaces.With(PIDNS, Procfs).Without(UserNS), Landlock: 7}, "without a user namespace"},
		{"no filter", restricted, Backend{Layers: spaces.Without(Seccomp), Landlock: 7}, "no system call filter"},
		{"nothing", restricted, Backend{Layers: LayersOf(Seccomp)}, "confines no files"},
		{"Landlock alone", restricted, Backend{Layers: LayersOf(Seccomp), Landlock: 7}, ""},
		{"old Landlock alone", restricted, Backend{Layers: LayersOf(Seccomp), Landlock: 5}, "processes outside"},
		{"supervisor", restricted, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 6, Level: LevelWrites}, ""},
		{"supervisor, old Landlock", restricted, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 5, Level: LevelReads}, ""},
		{"supervisor, old Landlock, low level", restricted, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 5, Level: LevelWrites}, "too low a level"},
		{"supervisor, old Landlock, enabled", enabled, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 5, Level: LevelReads}, "abstract sockets"},
		{"supervisor, oldest Landlock", restricted, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 1, Level: LevelReads}, "move files"},
		{"files of no concern", &Policy{}, Backend{Layers: LayersOf(Seccomp), Landlock: 7}, ""},
		{"files of no concern, supervisor", &Policy{}, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 7, Level: LevelWrites}, "layers for files"},
		{"files of no concern, level", &Policy{}, Backend{Layers: LayersOf(Seccomp), Landlock: 7, Level: LevelWrites}, "layers for files"},
		{"files of no concern, view", &Policy{}, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 7}, "layers for files"},
		{"restricted, all UNIX sockets", &Policy{Confined: true, AllUnixSockets: true}, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 7}, "all UNIX sockets"},
		{"enabled, all UNIX sockets", &Policy{Confined: true, Network: NetworkEnabled, AllUnixSockets: true}, Backend{Layers: spaces.With(PIDNS, Procfs), Landlock: 7}, "all UNIX sockets"},
		{"managed, all UNIX sockets", &Policy{Confined: true, Network: NetworkManaged, AllUnixSockets: true}, Backend{Layers: spaces.With(PIDNS, Procfs, NetNS)}, ""},
		{"Landlock alone, sockets", &Policy{Confined: true, Rules: restricted.Rules, Sockets: []string{"/s"}}, Backend{Layers: LayersOf(Seccomp), Landlock: 7}, "hides the sockets"},
		{"supervisor, old Landlock, sockets", &Policy{Confined: true, FullRead: true, Rules: restricted.Rules, Sockets: []string{"/s"}}, Backend{Layers: LayersOf(Supervised, Seccomp), Landlock: 5, Level: LevelReads}, "abstract sockets"},
		{"Landlock alone, enabled", enabled, Backend{Layers: LayersOf(Seccomp), Landlock: 7}, "hides the sockets"},
	} {
		err := tt.policy.CheckBackend(tt.backend)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
