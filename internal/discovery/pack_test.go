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
	Missing: true,
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
			rig.Is(t, rig.Err(Unpack(packed[:n])) != nil, true, "the first %d of %d bytes are refused", n, len(packed))
		}
	}
}

// FuzzUnpack: what a helper sends is taken only as Pack would have made it.
func FuzzUnpack(f *testing.F) {
	f.Add(full.Pack(nil))
	f.Add((&Root{}).Pack(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := Unpack(b); err == nil {
			rig.Is(t, string(r.Pack(nil)), string(b), "packed again")
		}
	})
}
