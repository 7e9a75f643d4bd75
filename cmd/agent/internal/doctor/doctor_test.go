package doctor

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// everything is a host on which nothing is missing.
func everything() sandbox.Host {
	return sandbox.Host{
		Layers: sandbox.LayersOf(sandbox.AllLayers()...).Without(sandbox.Landlock), Landlock: 7,
		Reasons: map[sandbox.Layer]sandbox.Reason{},
	}
}

// TestProcessEnforcement: on hosts where one thing or another is missing, exactly
// the examples are enforced that can be.
func TestProcessEnforcement(t *testing.T) {
	t.Parallel()
	const all = "read-only workspace-write workspace-write-network deny view-only network-only"
	for _, tt := range []struct {
		name     string
		take     func(h *sandbox.Host)
		enforced string
	}{
		{"everything", func(*sandbox.Host) {}, all},
		{"no pid namespace", func(h *sandbox.Host) { h.Layers = h.Layers.Without(sandbox.PIDNS, sandbox.Procfs) }, all},
		{"no procfs", func(h *sandbox.Host) { h.Layers = h.Layers.Without(sandbox.Procfs) }, all},
		{"neither procfs nor Landlock", func(h *sandbox.Host) {
			h.Layers, h.Landlock = h.Layers.Without(sandbox.Procfs, sandbox.Supervised), 0
		}, "read-only workspace-write deny view-only"},
		{"no user namespace", func(h *sandbox.Host) {
			h.Layers = h.Layers.Without(append(sandbox.Namespaces(), sandbox.Procfs, sandbox.Supervised)...)
			h.Reasons[sandbox.UserNS] = sandbox.Reason{Error: "no", Remedy: "ask for it"}
		}, "read-only view-only network-only"},
		{"no descriptors of others", func(h *sandbox.Host) { h.Layers = h.Layers.Without(sandbox.Pidfd, sandbox.Supervised) }, "read-only workspace-write deny view-only network-only"},
		{"no listener", func(h *sandbox.Host) { h.Layers = h.Layers.Without(sandbox.UserNotify, sandbox.Supervised) }, "read-only workspace-write deny view-only network-only"},
		{"no filter", func(h *sandbox.Host) { h.Layers = h.Layers.Without(sandbox.Seccomp) }, ""},
		{"nothing", func(h *sandbox.Host) { *h = sandbox.Host{} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			host := everything()
			tt.take(&host)
			var enforced []string
			for _, e := range examples() {
				got := processEnforcement(rig.Value(e.profile.Compile()), host, Config{})
				if got.OK {
					enforced = append(enforced, e.name)
				}
				rig.Is(t, got.OK == (got.Error == "") && got.OK == (len(got.Layers) > 0), true, "%s: %+v", e.name, got)
				if reason, ok := host.Reasons[sandbox.UserNS]; ok && !got.OK && (!strings.Contains(got.Error, "userns") || got.Remedy != reason.Remedy) {
					t.Errorf("%s: %+v, want the layer and the remedy", e.name, got)
				}
			}
			rig.Is(t, strings.Join(enforced, " "), tt.enforced, "enforced")
		})
	}
}

// TestDiagnosisKeys pins the names that scripts rely on.
func TestDiagnosisKeys(t *testing.T) {
	t.Parallel()
	d := Diagnosis{Layers: layersOf(everything()), Policies: []Row{{}}, Proxies: []Proxy{{}}, Notes: []Note{{}}}
	var top map[string]any
	rig.Must(t, json.Unmarshal(rig.Value(json.Marshal(d)), &top))
	keys := func(v any) string { return strings.Join(slices.Sorted(maps.Keys(v.(map[string]any))), " ") }
	first := func(name string) any { return top[name].([]any)[0] }
	for _, tt := range []struct {
		of   any
		want string
	}{
		{top, "enforceable layers notes policies proxies"},
		{first("proxies"), "error name ok remedy tried"},
		{first("layers"), "abi error name ok remedy tried"},
		{first("policies"), "description files name processes"},
		{first("policies").(map[string]any)["files"], "error layers ok remedy"},
		{first("policies").(map[string]any)["processes"], "error layers ok remedy"},
		{first("notes"), "name ok text"},
	} {
		rig.Is(t, keys(tt.of), tt.want, "keys")
	}
	var names []string
	for _, l := range d.Layers {
		names = append(names, l.Name)
	}
	rig.Is(t, strings.Join(names, " "), "userns mountns pidns procfs ipcns netns supervised landlock seccomp usernotify pidfd", "layers")
}

// TestDiagnosisPage: each remedy stands on the page once, below all layers that it
// would bring.
func TestDiagnosisPage(t *testing.T) {
	t.Parallel()
	host := everything()
	host.Layers, host.Landlock = host.Layers.Without(sandbox.UserNS, sandbox.MountNS), 0
	host.Reasons = map[sandbox.Layer]sandbox.Reason{
		sandbox.UserNS:   {Error: "clone: refused", Remedy: "allow it"},
		sandbox.MountNS:  {Error: "no user namespace", Remedy: "allow it"},
		sandbox.Landlock: {Error: "not there", Remedy: "boot it"},
	}
	d := Diagnosis{
		Layers: layersOf(host),
		Policies: []Row{
			{Name: "first", Processes: Enforcement{OK: true, Layers: []string{"seccomp"}}, Files: Enforcement{Error: "no helper"}},
			{Name: "second", Processes: Enforcement{Error: "userns is missing"}, Files: Enforcement{OK: true}},
		},
		Proxies: []Proxy{
			{Name: "proxy:netns", Error: "a connection to another port was made", Remedy: "allow it"},
			{Name: "proxy:supervised", Error: "landlock is missing: too old", Remedy: "run a later kernel"},
		},
		Notes: []Note{{Name: "cgroups", Text: "none"}},
	}
	var page strings.Builder
	rig.Must(t, d.Print(&page))
	for _, want := range []string{
		"userns: clone: refused\nmountns: no user namespace\nTo get that: allow it.\n", "landlock: not there\nTo get that: boot it.\n",
		"second is refused for processes: userns is missing\n", "first is refused for file requests: no helper\n",
		"proxy:netns does not work: a connection to another port was made\n",
		"proxy:supervised does not work: landlock is missing: too old\nTo get that: run a later kernel.\n", "cgroups: none\n",
	} {
		rig.Is(t, strings.Count(page.String(), want), 1, "%q is on the page\n%s", want, page.String())
	}
}

func TestLandlockNote(t *testing.T) {
	t.Parallel()
	for abi, ok := range map[int]bool{0: false, 1: false, 5: false, 6: true, 7: true} {
		got := landlockNote(sandbox.Host{Landlock: abi})
		rig.Is(t, got.OK == ok && got.Text != "", true, "ABI %d: %+v, want %v", abi, got, ok)
	}
}
