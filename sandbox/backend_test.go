package sandbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// askedIn is asked for lines in one cell of a table.
func askedIn(cell string) Profile {
	if cell == "-" {
		return Profile{}
	}
	return asked(strings.Split(cell, "; "))
}

// hostOf returns a host of words: full, a layer, a layer that is missing after a minus, and the ABI of Landlock.
func hostOf(words string) (h Host) {
	for word := range strings.FieldsSeq(words) {
		name, missing := strings.CutPrefix(word, "-")
		if abi, ok := strings.CutPrefix(word, "landlock="); ok {
			h.Landlock = rig.Value(strconv.Atoi(abi))
		}
		for _, l := range AllLayers() {
			switch {
			case word == "full" && l != Supervised && l != Landlock:
				h.Layers, h.Landlock = h.Layers.With(l), 7
			case l.String() == name && missing:
				h.Layers = h.Layers.Without(l)
			case l.String() == name:
				h.Layers = h.Layers.With(l)
			}
		}
	}
	return h
}

func TestBackend(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/backend.txt", "backends", 5) {
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			p := rig.Value(askedIn(row[1]).Compile())
			b, err := p.Backend(hostOf(row[2]), Operator{RequireNamespaces: row[3] == "yes"})
			if missing, ok := strings.CutPrefix(row[4], "!"); ok {
				unenforceable, ok := errors.AsType[*UnenforceableError](err)
				if !ok || unenforceable.Layer != missing || unenforceable.Reason == "" || !strings.Contains(err.Error(), "sandbox") {
					t.Errorf("error %v, want one about %s", err, missing)
				}
				rig.Is(t, b, Backend{}, "with an error")
				return
			}
			rig.Must(t, err)
			rig.Same(t, "what came of it", strings.Fields(row[4]), b.Names())
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
