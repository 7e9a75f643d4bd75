package layout_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/discovery/layout"
	"github.com/execagent/execagent/test/rig"
)

func TestDeclare(t *testing.T) {
	t.Parallel()
	dots := func(member string) []layout.Ignored { return []layout.Ignored{{Member: member}} }
	outside := func(member string) []layout.Ignored { return []layout.Ignored{{Member: member, Outside: true}} }
	for manifest, want := range map[string]layout.Declared{
		``:                                  {MCP: "/r/.mcp.json", Apps: "/r/.app.json"},
		`[]`:                                {MCP: "/r/.mcp.json", Apps: "/r/.app.json"},
		`{"apps":1,"apps":2}`:               {MCP: "/r/.mcp.json", Apps: "/r/.app.json"},
		`{"mcpServers":{},"apps":{}}`:       {Apps: "/r/.app.json"},
		`{"mcpServers":["./x"],"apps":1}`:   {MCP: "/r/.mcp.json", Apps: "/r/.app.json"},
		`{"mcpServers":{"a":1,"a":2}}`:      {Apps: "/r/.app.json"},
		`{"mcpServers":"./a/%41 b.json"}`:   {MCP: "/r/a/%41 b.json", Apps: "/r/.app.json", NamesMCP: true},
		`{"mcpServers":"./a//./b"}`:         {MCP: "/r/a/b", Apps: "/r/.app.json", NamesMCP: true},
		`{"apps":"./.app.json"}`:            {MCP: "/r/.mcp.json", Apps: "/r/.app.json", NamesApps: true},
		`{"mcpServers":"a"}`:                {MCP: "/r/.mcp.json", Apps: "/r/.app.json", Ignored: dots("mcpServers")},
		`{"apps":"/etc/passwd"}`:            {MCP: "/r/.mcp.json", Apps: "/r/.app.json", Ignored: dots("apps")},
		`{"apps":""}`:                       {MCP: "/r/.mcp.json", Apps: "/r/.app.json", Ignored: dots("apps")},
		`{"apps":"./"}`:                     {MCP: "/r/.mcp.json", Apps: "/r/.app.json", Ignored: outside("apps")},
		`{"apps":"./a/../b"}`:               {MCP: "/r/.mcp.json", Apps: "/r/.app.json", Ignored: outside("apps")},
		`{"mcpServers":"./a\\..\\..\\etc"}`: {MCP: "/r/.mcp.json", Apps: "/r/.app.json", Ignored: outside("mcpServers")},
	} {
		rig.Same(t, manifest, want, layout.Declare("/r", manifest))
	}
}

func TestSort(t *testing.T) {
	t.Parallel()
	files := strings.Fields(`/r/é/SKILL.md /r/A/SKILL.md /r/SKILL.md /r/skill.md /r/SKILL.md/x /r/plugin.json /r/.cursor-plugin/plugin.json
		/r/b/.cursor-plugin/plugin.json /r/b/.claude-plugin/plugin.json /r/a/.codex-plugin/plugin.json`)
	want := layout.Tree{
		Skills:    []string{"/r/é/SKILL.md", "/r/A/SKILL.md", "/r/SKILL.md"},
		Manifests: []string{"/r/a/.codex-plugin/plugin.json", "/r/b/.claude-plugin/plugin.json"},
	}
	rig.Same(t, "Sort", want, layout.Sort("/r", slices.Values(files)))
	rig.Same(t, "Above", []string{"/a/b", "/a", "/"}, slices.Collect(layout.Above("/a/b/c")))
	rig.Is(t, layout.Metadata("/r/a/SKILL.md"), "/r/a/agents/openai.yaml", "Metadata")
}

func FuzzDeclare(f *testing.F) {
	for _, seed := range []string{``, `{"mcpServers":"./a/../../b"}`, `{"apps":"./..\\x","mcpServers":{}}`, `{"apps":"./\u0000"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, manifest string) {
		d := layout.Declare("/r", manifest)
		for _, file := range []string{d.MCP, d.Apps} {
			rig.Is(t, file == "" || strings.HasPrefix(file, "/r/") && !strings.Contains(file, "/../"), true, "%q declares %q", manifest, file)
		}
	})
}
