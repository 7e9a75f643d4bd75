package projection_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing/fstest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/projection"
	"github.com/execagent/execagent/harness/projection/internal/fakemcp"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// The loop of a harness: each step of a model has what the thread's plugins declare. The executor
// here is an agent in the process, and the MCP server of the plugin a mode of this test binary.
func Example() {
	ctx := context.Background()
	home, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(home)
	self, _ := os.Executable()
	server, _ := json.Marshal(map[string]any{"command": self, "env": fakemcp.Env("good", filepath.Join(home, "pids"))})
	files := fstest.MapFS{
		"demo/.codex-plugin/plugin.json": {Data: []byte(`{"name":"demo"}`)},
		"demo/.mcp.json":                 {Data: []byte(`{"mcpServers":{"search":` + string(server) + `}}`)},
		"demo/.app.json":                 {Data: []byte(`{"apps":{"mail":{"id":"connector_mail"}}}`)},
		"demo/skills/deploy/SKILL.md":    {Data: []byte("---\nname: deploy\ndescription: how to deploy\n---\nPress the button.\n")},
	}
	if err := os.CopyFS(home, files); err != nil {
		fmt.Println(err)
		return
	}
	a := agent.New(agent.Config{Environ: []string{"HOME=" + home}})
	defer a.Close()
	var served sync.WaitGroup
	defer served.Wait()
	local := func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		served.Go(func() { _ = a.ServeConn(ctx, theirs) })
		return ours, nil
	}
	set, err := environment.New(environment.Config{Local: local}, environment.FromURL(""))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()

	// What belongs to a thread, for as long as it is open here.
	roots, err := capability.New(capability.Config{Roots: []capability.Root{
		{ID: "demo@1", EnvironmentID: "local", Path: protocol.NewPathURI(filepath.Join(home, "demo"))},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	thread := projection.New(projection.Config{Notify: func(s projection.Status) { fmt.Println(s.Name, "is", s.State) }})
	defer thread.Close()

	for i := range 3 {
		step := set.Step(fmt.Sprint(i), []environment.Selection{{ID: "local", Cwd: protocol.NewPathURI(home)}}, roots.Environments()...)
		view, err := roots.Discover(ctx, step)
		if err != nil {
			fmt.Println(err)
			return
		}
		p, err := thread.Step(ctx, step, view)
		if err != nil {
			fmt.Println(err) // a required skill is missing, for instance
			return
		}
		if err := p.Wait(ctx); err != nil { // or let the model begin without servers that are starting
			fmt.Println(err)
			return
		}
		_, news := p.SkillsMessage()
		fmt.Println("step", i, "news:", news, "connectors:", p.Connectors())
		for _, tool := range p.Tools() {
			fmt.Println("offer", tool.Namespace, tool.Name)
		}

		// What the model asked for:
		result, err := p.Call(ctx, "search", "echo", map[string]any{"text": "needle"})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(result.Content[0].(*mcp.TextContent).Text)
		page, err := p.Skills().Read(ctx, projection.SkillReadRequest{Package: "e0/skills/deploy"})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(len(page.Contents), "bytes of instructions")

		p.Release()
		step.Release()
	}
	// Output:
	// search is starting
	// search is ready
	// step 0 news: true connectors: [connector_mail]
	// offer mcp__search echo
	// needle of demo@1
	// 66 bytes of instructions
	// step 1 news: false connectors: [connector_mail]
	// offer mcp__search echo
	// needle of demo@1
	// 66 bytes of instructions
	// step 2 news: false connectors: [connector_mail]
	// offer mcp__search echo
	// needle of demo@1
	// 66 bytes of instructions
}
