package sandbox

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestCompileManaged: with a managed network files are always confined, since other ways
// to the network lead through them; what the profile lets be written stays so.
func TestCompileManaged(t *testing.T) {
	t.Parallel()
	private := []string{"/run/agent"}
	for name, profile := range map[string]Profile{
		"disabled":     {Kind: Disabled},
		"external":     {Kind: External},
		"unrestricted": {Unrestricted: true},
		"full write":   {Entries: []Entry{entry(PlaceRoot, Write), entry(PlacePath, Write, "/repo")}},
	} {
		profile.Network, profile.Private, profile.AllUnixSockets = NetworkManaged, private, true
		p := rig.Value(profile.Compile())
		if !p.Confined || !p.FullRead || !p.WritesEverything() || !p.AllUnixSockets || p.RestrictsNothing() || p.Network.String() != "managed" {
			t.Errorf("%s: %+v", name, p)
		}
		for path, want := range map[string]Access{"/": Write, "/etc/x": Write, "/repo/.git": Write, "/run/agent/key": Denied} {
			rig.Is(t, p.Access(path), want, "%s: %s", name, path)
		}
	}
	narrower, err := Profile{Network: NetworkManaged, Entries: []Entry{entry(PlaceRoot, Write), entry(PlacePath, Read, "/etc")}}.Compile()
	rig.Must(t, err)
	rig.Is(t, narrower.WritesEverything(), false, "%v writes everything", narrower)
	if text, err := narrower.MarshalText(); err != nil {
		t.Error(err)
	} else if again := new(Policy); again.UnmarshalText(text) != nil || again.Network != NetworkManaged {
		t.Errorf("%+v", again)
	}
}
