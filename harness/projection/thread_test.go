package projection_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/projection"
	"github.com/execagent/execagent/harness/projection/internal/fakemcp"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/test/rig"
)

// TestRuntime goes through client.md 6.2: what gives another runtime and what does not, told by
// how often the servers were started.
func TestRuntime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, projection.Config{}, []string{"a", "b"}, map[string]map[string]string{
		"a/one": w2("one"), "b/two": w2("two"), "a/plain": {"s/SKILL.md": "---\ndescription: d\n---\n"},
	})
	w.write("a/one/.mcp.json", declare(t, w.dir, "good", "one"))
	w.write("b/two/.mcp.json", declare(t, w.dir, "good", "two"))
	w.ready("a")
	w.ready("b")
	wants := func(s *projection.Step, one, two int, names ...string) {
		t.Helper()
		rig.Is(t, len(w.starts("one")), one, "starts of one")
		rig.Is(t, len(w.starts("two")), two, "starts of two")
		rig.Is(t, slices.Equal(tools(s), names), true, "the tools are %q, of %q", tools(s), names)
	}
	first := w.step("a")
	wants(first, 1, 0, "mcp__one.echo")
	wantSay(t, first, "one", "hello of one")
	w.wantTold("one ready, one starting")
	for range 3 { // the same
		wants(w.step("a"), 1, 0, "mcp__one.echo")
	}
	w.write("a/one/.mcp.json", "changed")
	wants(w.step("a"), 1, 0, "mcp__one.echo")
	w.cut("a") // lost and recovered
	cut := w.step("a")
	wants(cut, 1, 0, "mcp__one.echo")
	wantSay(t, cut, "one", "hello")
	w.wantTold("")

	both := w.step("a", "b") // a root appears
	wants(both, 2, 1, "mcp__one.echo", "mcp__two.echo")
	wantSay(t, cut, "one", "hello") // steps hold the one before
	none := w.step()                // all go
	wants(none, 2, 1)
	rig.Is(t, isUnknown(rig.Err(none.Call(t.Context(), "one", "echo", nil))), true, "the server is unknown")
	again := w.step("a") // and one returns
	wants(again, 3, 1, "mcp__one.echo")
	w.Invalidate()
	last := w.step("a")
	wants(last, 4, 1, "mcp__one.echo")
	wants(w.step("a"), 4, 1, "mcp__one.echo")

	w.Close()
	fakemcp.Gone(t, slices.Concat(w.starts("one"), w.starts("two"))...)
	captured, view := w.capture("a")
	defer captured.Release()
	rig.Is(t, rig.Err(w.Step(t.Context(), captured, view)), projection.ErrClosed, "after Close the error")
	_, ok := w.Current()
	rig.Is(t, ok, false, "after Close there is a projection")
	rig.Is(t, rig.Err(say(t, last, "one")), mcpserver.ErrClosed, "after Close the error")
}

// w2 are the files of a plugin whose servers are declared later.
func w2(name string) map[string]string {
	return map[string]string{".codex-plugin/plugin.json": fmt.Sprintf(`{"name":%q}`, name)}
}

func isUnknown(err error) bool {
	_, ok := errors.AsType[*projection.UnknownServerError](err)
	return ok
}

// TestRelease: the runtime before is shut down when the last step that holds it is released, and
// not earlier.
func TestRelease(t *testing.T) {
	t.Parallel()
	w := withOne(t, "good")
	first, second := w.step("a"), w.step("a")
	current, ok := w.Current()
	if !ok {
		t.Fatal("there is no projection")
	}
	w.Invalidate()
	w.step("a")
	old := w.starts("one")[:1]
	for _, s := range []*projection.Step{first, second, current} {
		wantSay(t, current, "one", "hello")
		s.Release()
		s.Release() // changes nothing
	}
	fakemcp.Gone(t, old...)
	wantSay(t, w.step("a"), "one", "hello")
}

// TestLostSession: a root whose environment has failed loses its servers, and has them again when
// that is back in a new session. So it is when this happens between two steps, and when another
// handle takes the place of the environment's.
func TestLostSession(t *testing.T) {
	t.Parallel()
	w := withOne(t, "good")
	w.write("a/one/s/SKILL.md", "---\nname: s\ndescription: d\n---\n")
	c := w.ready("a")
	s := w.step("a")
	message, ok := s.SkillsMessage()
	rig.Is(t, ok && strings.Contains(message, "- one:s: d (executor package: e0/s)\n"), true, "told: %q", message)
	w.die("a")
	<-c.Done()
	gone := w.step("a")
	if message, ok := gone.SkillsMessage(); !ok || !strings.Contains(message, "No skills") || len(gone.Statuses()) != 0 {
		t.Errorf("told: %q, servers %v", message, gone.Statuses())
	}
	w.come("a")
	c = w.ready("a")
	back := w.step("a")
	message, ok = back.SkillsMessage()
	rig.Is(t, ok && strings.Contains(message, "available again"), true, "told: %q", message)
	wantStates(t, back, mcpserver.Ready)
	rig.Is(t, len(w.starts("one")), 2, "starts")

	w.die("a")
	<-c.Done()
	w.come("a")
	w.ready("a")
	between := w.step("a")
	wantStates(t, between, mcpserver.Ready)
	_, told := between.SkillsMessage()
	rig.Is(t, told, false, "skills are told of")
	rig.Is(t, len(w.starts("one")), 3, "starts")

	rig.Must(t, rig.Err(w.set.Upsert(environment.Entry{ID: "a", Transport: w.transport("a")})))
	w.ready("a")
	replaced := w.step("a")
	wantStates(t, replaced, mcpserver.Ready)
	rig.Is(t, len(w.starts("one")), 4, "starts")
	for _, s := range []*projection.Step{s, gone, back, between} {
		s.Release()
	}
	fakemcp.Gone(t, w.starts("one")[:3]...)
}

// TestNames: of two servers with one name the first one counts, by the order of the selection; the
// user's policies come before.
func TestNames(t *testing.T) {
	t.Parallel()
	cfg := projection.Config{Allow: func(s *mcpserver.Spec) bool { return s.Name != "refused" }}
	w := newWorld(t, cfg, []string{"a"}, map[string]map[string]string{
		"a/1": {".codex-plugin/plugin.json": `{}`, ".app.json": `{"apps":{"x":{"id":"c1"},"y":{"id":"c2"}}}`},
		"a/2": {".codex-plugin/plugin.json": `{}`, ".app.json": `{"apps":{"x":{"id":"c3"},"y":{"id":"c2"}}}`},
	})
	w.write("a/1/.mcp.json", declare(t, w.dir, "good", "same", "refused"))
	w.write("a/2/.mcp.json", declare(t, w.dir, "good", "same", "other"))
	w.ready("a")
	s := w.step("a")
	rig.Same(t, "tools", []string{"mcp__same.echo", "mcp__other.echo"}, tools(s))
	wantSay(t, s, "same", "hello of 1")
	rig.Same(t, "connectors", []string{"c1", "c2", "c3"}, s.Connectors())
	wantWarning(t, s, "another MCP server same")
}

// TestTakingNames: an executor cannot take the name of a server that is in a selected root of
// another one, by declaring one of that name itself.
func TestTakingNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, projection.Config{}, []string{"evil", "good"}, map[string]map[string]string{"good/1": {".codex-plugin/plugin.json": `{}`}})
	w.write("good/1/.mcp.json", declare(t, w.dir, "good", "search"))
	w.write(filepath.Join("evil.home", ".codex", "config.toml"), "[mcp_servers.search]\nurl='http://127.0.0.1:1/'\n[mcp_servers.other]\nurl='http://127.0.0.1:1/'\n")
	w.ready("evil")
	w.ready("good")
	s := w.step("evil", "good")
	wantSay(t, s, "search", "hello of 1")
	got := s.Statuses()
	rig.Is(t, len(got) == 2 && got[1].Name == "other", true, "the servers are %+v", got)
	wantWarning(t, s, "another MCP server search")
}

// wantWarning fails unless a step has one warning, with this text.
func wantWarning(t *testing.T, s *projection.Step, text string) {
	t.Helper()
	got := s.Warnings()
	rig.Is(t, len(got) == 1 && strings.Contains(got[0], text), true, "the warnings are %q", got)
}

// TestFailing: a server that dies tells so, and takes its tools along; nothing starts it again but
// who asks for it.
func TestFailing(t *testing.T) {
	t.Parallel()
	w := withOne(t, "tools/call")
	s := w.step("a")
	rig.Is(t, len(tools(s)), 1, "tools")
	rig.Is(t, fmt.Sprint(s.Restart("one")), "false <nil>", "a restart of a server that is ready")
	rig.Is(t, isUnknown(rig.Err(s.Restart("two"))), true, "the server is unknown")
	for n := 1; n <= 3; n++ {
		rig.Is(t, rig.Err(say(t, s, "one")) != nil, true, "the server dies")
		w.failed(s)
		again := w.step("a")
		wantStates(t, again, mcpserver.Failed)
		w.wantTold("one failed, one ready, one starting")
		rig.Is(t, len(tools(again)), 0, "tools")
		rig.Is(t, len(w.starts("one")), n, "starts")
		rig.Is(t, fmt.Sprint(again.Restart("one")), "true <nil>", "a restart")
		rig.Must(t, s.Wait(rig.Context(t))) // it has the same runtime
		wantStates(t, s, mcpserver.Ready)
		rig.Is(t, len(tools(s)), 1, "tools")
		fakemcp.Gone(t, w.starts("one")[:n]...)
	}
}

// failed waits until the only server of a step has, and that was told.
func (w *world) failed(s *projection.Step) {
	w.t.Helper()
	rig.Until(w.t, "the server has failed, and that is told", func() bool {
		failed := s.Statuses()[0].State == mcpserver.Failed
		w.mu.Lock()
		defer w.mu.Unlock()
		return failed && slices.Contains(w.statuses, "one failed")
	})
}

// TestRestarts: where the harness wants that, a server that dies is started again by itself, so
// often and no more, and the calls that killed it are not made again.
func TestRestarts(t *testing.T) {
	t.Parallel()
	settled := make(chan projection.Status, 16)
	w := newWorld(t, projection.Config{Restarts: 1, Notify: func(s projection.Status) {
		if s.State != mcpserver.Starting {
			settled <- s
		}
	}}, []string{"a"}, map[string]map[string]string{"a/one": w2("one")})
	w.write("a/one/.mcp.json", declare(t, w.dir, "tools/call", "one"))
	w.ready("a")
	s := w.step("a")
	for n := 1; n <= 2; n++ {
		rig.Is(t, (<-settled).State, mcpserver.Ready, "the server is")
		rig.Is(t, rig.Err(say(t, s, "one")) != nil, true, "the server dies")
		rig.Is(t, (<-settled).State, mcpserver.Failed, "the server is")
	}
	w.Close()
	w.wantTold("one failed, one failed, one ready, one ready, one starting, one starting")
	rig.Is(t, len(w.starts("one")), 2, "starts")
	fakemcp.Gone(t, w.starts("one")...)
}

// TestRequired: a skill that has to be there keeps a step from being made.
func TestRequired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, projection.Config{}, []string{"a"}, map[string]map[string]string{"a/one": {"s/SKILL.md": "---\nname: here\ndescription: d\n---\n"}})
	for name, want := range map[string]string{"here": "", "zzz": `Required skill "zzz" from environment "a" is unavailable`} {
		skills := environment.Skills{Required: []string{name}}
		rig.Must(t, rig.Err(w.set.Upsert(environment.Entry{ID: "a", Transport: w.transport("a"), Skills: skills})))
		w.ready("a")
		captured, view := w.capture("a")
		s, err := w.Step(t.Context(), captured, view)
		if want == "" && err == nil {
			s.Release()
		} else if err == nil || err.Error() != want {
			t.Errorf("%s: the error is %v", name, err)
		}
		captured.Release()
	}
}

// web is an MCP server by the SDK, behind HTTP. It notes what it is shown.
type web struct {
	*httptest.Server
	mu     sync.Mutex
	bearer []string
}

func newWeb(t testing.TB) *web {
	w := &web{}
	server := mcp.NewServer(&mcp.Implementation{Name: "web"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		Text string `json:"text"`
	}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "web says " + in.Text}}}, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.bearer = append(w.bearer, r.Header.Get("Authorization"))
		w.mu.Unlock()
		handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// TestConfigured: the HTTP servers of an executor's own configuration, with a credential that only
// the executor knows; and those of a root. The configuration is read again with another runtime.
func TestConfigured(t *testing.T) {
	t.Parallel()
	site := newWeb(t)
	w := newWorld(t, projection.Config{}, []string{"a"}, map[string]map[string]string{
		"a/one": {".codex-plugin/plugin.json": `{}`, ".mcp.json": fmt.Sprintf(`{"mcpServers":{"rooted":{"type":"http","url":%q},"web":{"type":"http","url":"http://127.0.0.1:1/"}}}`, site.URL)},
	})
	config := filepath.Join("a.home", ".codex", "config.toml")
	w.write(config, fmt.Sprintf("[mcp_servers.web]\nurl=%q\nbearer_token_env_var='EXEC_TOKEN'\n[mcp_servers.program]\ncommand='false'\n", site.URL))
	w.ready("a")
	s := w.step("a")
	if got := tools(s); !slices.Equal(got, []string{"mcp__web.echo", "mcp__rooted.echo"}) {
		t.Fatalf("the tools are %q: %+v, %q", got, s.Statuses(), s.Warnings())
	}
	for _, server := range []string{"web", "rooted"} {
		wantSay(t, s, server, "web says hello")
	}
	site.mu.Lock()
	shown := slices.Clone(site.bearer)
	site.mu.Unlock()
	rig.Is(t, slices.Contains(shown, "Bearer of-a") && slices.Contains(shown, ""), true, "the server was shown %q", shown)

	w.write(config, "")
	rig.Is(t, len(tools(w.step("a"))), 2, "tools")
	w.Invalidate()
	got := w.step("a")
	rig.Is(t, len(tools(got)) == 1 && got.Statuses()[0].Name == "rooted", true, "the servers are %+v", got.Statuses())
	w.write(config, "[mcp_servers")
	w.Invalidate()
	warnings := w.step("a").Warnings()
	rig.Is(t, len(warnings) != 0 && strings.Contains(warnings[0], "environment a"), true, "the warnings are %q", warnings)
}

// TestConfigurationsAtOnce: all executors of a step are asked for their configuration before one
// has answered, so that several which do not answer hold a step up no longer than one does.
func TestConfigurationsAtOnce(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "b", "c"}
	w := newWorld(t, projection.Config{}, ids, nil)
	for _, id := range ids {
		w.write(filepath.Join(id+".home", ".codex", "config.toml"), fmt.Sprintf("[mcp_servers.%s]\nurl='http://127.0.0.1:1/'\n", id))
		w.ready(id)
	}
	var together sync.WaitGroup
	together.Add(len(ids))
	w.mu.Lock()
	w.together = &together
	w.mu.Unlock()
	s := w.step(ids...)
	rig.Is(t, len(s.Statuses()), len(ids), "servers")
	rig.Is(t, len(s.Warnings()), 0, "warnings %q", s.Warnings())
}

// TestInstalled: what is installed counts when it is enabled.
func TestInstalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, projection.Config{Enabled: func(plugin string) bool { return plugin == "on@mk" }}, []string{"a"}, nil)
	for _, name := range []string{"on", "off"} {
		folder := filepath.Join("a.home", ".codex", "plugins", "cache", "mk", name, "1.0.0")
		w.write(filepath.Join(folder, ".codex-plugin", "plugin.json"), fmt.Sprintf(`{"name":%q}`, name))
		w.write(filepath.Join(folder, ".mcp.json"), declare(t, w.dir, "good", name))
		w.write(filepath.Join(folder, "s", "SKILL.md"), "---\nname: s\ndescription: d\n---\n")
	}
	w.write(filepath.Join("a.home", ".codex", "skills", "k", "SKILL.md"), "---\nname: k\ndescription: d\n---\n")
	w.ready("a")
	s := w.step("a")
	wantSay(t, s, "on", "hello of on@mk")
	rig.Is(t, len(s.Statuses()), 1, "servers")
	message, _ := s.SkillsMessage()
	if !strings.Contains(message, "- on:s: d") || !strings.Contains(message, "- k: d") || strings.Contains(message, "off") {
		t.Errorf("told: %s", message)
	}
}

// TestFork: two threads with the same roots and the same client have servers of their own.
func TestFork(t *testing.T) {
	t.Parallel()
	w := withOne(t, "good")
	w.step("a")
	fork := w.thread(projection.Config{})
	captured, view := w.capture("a")
	defer captured.Release()
	s := rig.Value(fork.Step(t.Context(), captured, view))
	defer s.Release()
	wantSay(t, s, "one", "hello")
	rig.Is(t, len(w.starts("one")), 2, "starts")
	fork.Close()
	wantSay(t, w.step("a"), "one", "hello")
}

// TestAtOnce: steps, calls, changes and the end, all at once.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, projection.Config{}, []string{"a", "b"}, map[string]map[string]string{"a/one": w2("one"), "b/two": w2("two")})
	w.write("a/one/.mcp.json", declare(t, w.dir, "good", "one"))
	w.write("b/two/.mcp.json", declare(t, w.dir, "good", "two"))
	w.ready("a")
	w.ready("b")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 8 {
				captured, view := w.capture([][]string{{"a"}, {"b"}, {"a", "b"}}[(i+j)%3]...)
				s, err := w.Step(t.Context(), captured, view)
				if err != nil {
					captured.Release()
					rig.Is(t, err, projection.ErrClosed, "")
					continue
				}
				for _, status := range s.Statuses() {
					if _, err := s.Call(t.Context(), status.Name, "echo", map[string]any{"text": "x"}); err != nil && !errors.Is(err, mcpserver.ErrClosed) {
						t.Error(err)
					}
				}
				if i == 0 && j%3 == 0 {
					w.Invalidate()
				}
				if i == 1 && j == 7 {
					w.Close()
				}
				s.Release()
				captured.Release()
			}
		})
	}
	all.Wait()
	w.Close()
	fakemcp.Gone(t, slices.Concat(w.starts("one"), w.starts("two"))...)
}

// BenchmarkUnchanged is a step in which nothing has changed: 8 roots with a server and 25 skills
// each, of which no server is started, as it is not allowed.
func BenchmarkUnchanged(b *testing.B) {
	roots := map[string]map[string]string{}
	for i := range 8 {
		files := map[string]string{".codex-plugin/plugin.json": `{"name":"demo"}`, ".mcp.json": `{"mcpServers":{"s":{"command":"true"}}}`}
		for j := range 25 {
			files[fmt.Sprintf("s%d/SKILL.md", j)] = fmt.Sprintf("---\nname: s%d\ndescription: %s\n---\n", j, strings.Repeat("x", 200))
		}
		roots[fmt.Sprintf("a/r%d", i)] = files
	}
	w := newWorld(b, projection.Config{Allow: func(*mcpserver.Spec) bool { return false }}, []string{"a"}, roots)
	w.ready("a")
	w.step("a")
	captured, view := w.capture("a")
	defer captured.Release()
	b.ReportAllocs()
	for b.Loop() {
		s := rig.Value(w.Step(b.Context(), captured, view))
		if _, told := s.SkillsMessage(); told {
			b.Fatal("something has changed")
		}
		s.Release()
	}
}
