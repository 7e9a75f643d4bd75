package capability_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing/fstest"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// A thread selects a plugin, and its log keeps the selection. What the plugin has is known in each
// step in which its environment is ready. The environment here is an agent in the process.
func Example() {
	ctx := context.Background()
	home, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(home)
	files := fstest.MapFS{
		"demo/.codex-plugin/plugin.json": {Data: []byte(`{"name":"demo"}`)},
		"demo/.mcp.json":                 {Data: []byte(`{"mcpServers":{}}`)},
		"demo/skills/deploy/SKILL.md":    {Data: []byte("---\nname: deploy\ndescription: how to deploy\n---\n")},
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

	store, err := threadlog.OpenStore(filepath.Join(home, "threads"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	selection, err := capability.Format([]capability.Root{
		{ID: "demo", EnvironmentID: "local", Path: protocol.NewPathURI(filepath.Join(home, "demo"))},
		{ID: "other", EnvironmentID: "worker", Path: protocol.NewPathURI("/plugins/other")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	log, err := store.Create(threadlog.Meta{SelectedCapabilityRoots: selection})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer log.Close()

	// So for a new thread, one that is resumed, and a fork.
	roots, err := capability.Parse(log.Meta().SelectedCapabilityRoots)
	if err != nil {
		fmt.Println(err)
		return
	}
	thread, err := capability.New(capability.Config{Roots: roots})
	if err != nil {
		fmt.Println(err)
		return
	}

	step := set.Step("1", []environment.Selection{{ID: "local", Cwd: protocol.NewPathURI("/")}}, thread.Environments()...)
	defer step.Release()
	view, err := thread.Discover(ctx, step)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range view.Roots {
		fmt.Println(r.ID, r.Err, r.Plugin.MCPConfig.Contents)
		for _, s := range r.Skills {
			path, err := s.Instructions.Path.Native()
			fmt.Println(filepath.Base(filepath.Dir(path)), err)
		}
	}
	_, warnings := capability.Inspect(set, thread.Roots())
	fmt.Println(warnings)
	// Output:
	// demo <nil> {"mcpServers":{}}
	// deploy <nil>
	// [selected capability root `other` references unavailable environment `worker`]
}
