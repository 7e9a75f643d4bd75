package interop_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/projection"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestProjection runs a thread of a harness against our agent and against the reference: a plugin
// with skills and an MCP server of another hand, and a server of the executor's configuration, over
// connections that are cut.
func TestProjection(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	t.Run("agent", func(t *testing.T) {
		t.Parallel()
		home := t.TempDir()
		cmd := exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0")
		testProjection(t, python, home, cmd)
	})
	t.Run("reference", func(t *testing.T) {
		t.Parallel()
		codex := codexCLI(t)
		testProjection(t, python, codexHome(t), exec.Command(codex, "exec-server", "--listen", "ws://127.0.0.1:0"))
	})
}

func testProjection(t *testing.T, python, home string, cmd *exec.Cmd) {
	server := mcp.NewServer(&mcp.Implementation{Name: "web"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "shout"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: r.Extra.Header.Get("Authorization")}}}, nil, nil
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(web.Close)
	echo, err := filepath.Abs("mcp_echo.py")
	rig.Must(t, err)
	root := t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(home, "config.toml"):                         fmt.Sprintf("[mcp_servers.web]\nurl=%q\nbearer_token_env_var='EXEC_TOKEN'\n", web.URL),
		filepath.Join(root, ".codex-plugin", "plugin.json"):        `{"name":"demo"}`,
		filepath.Join(root, ".mcp.json"):                           fmt.Sprintf(`{"mcpServers":{"where":{"command":%q,"args":[%q],"env":{"EXECUTOR_MARK":"m"}}}}`, python, echo),
		filepath.Join(root, "skills", "s1", "SKILL.md"):            "---\nname: s1\ndescription: D\n---\nBody.\n",
		filepath.Join(root, "skills", "s1", "references", "a.txt"): strings.Repeat("é", 100<<10),
	} {
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CODEX_HOME=" + home, "EXEC_TOKEN=secret"}
	proxy := rig.NewProxy(t, strings.TrimPrefix(rig.Start(t, cmd).Line(t), "ws://"))

	set, err := environment.New(environment.Config{Connect: func(to environment.Transport) (client.Config, error) {
		return client.URL(to.(environment.URL).URL), nil
	}}, environment.Plan{Entries: []environment.Entry{{ID: "e", Transport: environment.URL{URL: "ws://" + proxy.Address()}}}, Default: "e"})
	rig.Must(t, err)
	defer set.Close()
	e, _ := set.Default()
	rig.Must(t, rig.Err(e.Client(t.Context())))
	roots, err := capability.New(capability.Config{Roots: []capability.Root{{ID: "demo@1", EnvironmentID: "e", Path: protocol.NewPathURI(root)}}, Timeout: patience})
	rig.Must(t, err)
	thread := projection.New(projection.Config{StartTimeout: patience})
	defer thread.Close()
	for i := range 3 {
		step := set.Step("s", []environment.Selection{{ID: "e", Cwd: protocol.NewPathURI(root)}})
		view, err := roots.Discover(t.Context(), step)
		rig.Must(t, err)
		p, err := thread.Step(t.Context(), step, view)
		rig.Must(t, err)
		rig.Must(t, p.Wait(t.Context()))
		var names []string
		for _, tool := range p.Tools() {
			names = append(names, tool.Namespace+"."+tool.Name)
		}
		if !slices.Equal(names, []string{"mcp__web.shout", "mcp__where.where"}) {
			t.Fatalf("step %d: the tools are %q; %+v, %q", i, names, p.Statuses(), p.Warnings())
		}
		if message, ok := p.SkillsMessage(); ok != (i == 0) || ok && !strings.Contains(message, "- demo:s1: D (executor package: e0/skills/s1)\n") {
			t.Errorf("step %d: the model is told %q", i, message)
		}
		for server, want := range map[string]string{"where": "hello on ", "web": "Bearer secret"} {
			tool := map[string]string{"where": "where", "web": "shout"}[server]
			arguments := map[string]any{}
			if server == "where" {
				arguments["text"] = "hello"
			}
			r, err := p.Call(t.Context(), server, tool, arguments)
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if text := r.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(text, want) {
				t.Errorf("step %d: %s says %q", i, server, text)
			}
		}
		text, request := "", projection.SkillReadRequest{Package: "e0/skills/s1", Resource: "references/a.txt"}
		for request.Cursor == "" || text != "" && len(text) < 200<<10 {
			page, err := p.Skills().Read(t.Context(), request)
			rig.Must(t, err)
			text += page.Contents
			if page.NextCursor == nil {
				break
			}
			request.Cursor = *page.NextCursor
		}
		if text != strings.Repeat("é", 100<<10) {
			t.Errorf("step %d: the resource has %d bytes", i, len(text))
		}
		p.Release()
		step.Release()
		proxy.Cut()
		// What only reads is asked again, so afterwards the connection is there for calls of HTTP
		// servers, which are not.
		rig.Must(t, rig.Err(must(t, e).FS(nil).Stat(t.Context(), root)))
	}
	list, err := must(t, e).Processes(t.Context())
	if err == nil && (len(list) != 1 || !strings.HasPrefix(list[0].ProcessID, "mcp-stdio-")) { // the reference has no list
		t.Errorf("the processes are %+v", list)
	}
}

func must(t *testing.T, e *environment.Environment) *client.Client {
	t.Helper()
	c, err := e.Client(t.Context())
	rig.Must(t, err)
	return c
}
