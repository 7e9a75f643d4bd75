package discovery

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// full has every member.
var full = Root{
	Failure: &Warning{Trouble: NoRoot, Path: "/r", Err: unix.ENOENT},
	Plugin:  &Plugin{Manifest: File{Path: "/r/.codex-plugin/plugin.json", Contents: "{}"}, MCP: &File{Path: "/r/.mcp.json", Contents: "m"}, Apps: &File{Path: "/r/a\xff", Contents: ""}},
	Skills: []Skill{
		{Instructions: File{Path: "/r/SKILL.md", Contents: "s"}, Metadata: &File{Path: "/r/agents/openai.yaml", Contents: "y"}},
		{Instructions: File{Path: "/r/t/SKILL.md", Contents: "t"}},
	},
	Namespaces: []File{{Path: "/r/.codex-plugin/plugin.json", Contents: "{}"}},
	Warnings: []Warning{
		{Trouble: NotScanned, Path: "/r/x", Err: fsops.ErrNotUTF8}, {Trouble: Outside, Path: "/r/p", Member: "apps"},
	},
}

func TestPack(t *testing.T) {
	t.Parallel()
	for _, want := range []*Root{{}, &full} {
		packed := want.Pack(nil)
		got, err := Unpack(packed)
		rig.Must(t, err)
		rig.Same(t, "changed on its way", want, got, cmpopts.EquateEmpty(), cmpopts.EquateErrors())
		for n := range packed {
			if _, err := Unpack(packed[:n]); err == nil {
				t.Errorf("the first %d of %d bytes are taken for a root", n, len(packed))
			}
		}
	}
}

// FuzzUnpack: what a helper sends is taken only as Pack would have made it.
func FuzzUnpack(f *testing.F) {
	f.Add(full.Pack(nil))
	f.Add((&Root{}).Pack(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Unpack(b)
		if err != nil {
			return
		}
		if again := r.Pack(nil); string(again) != string(b) {
			t.Fatalf("%q became %q", b, again)
		}
	})
}
