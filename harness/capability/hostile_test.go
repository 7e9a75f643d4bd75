package capability_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// raw answers with a text.
func raw(text string) func(json.RawMessage) any {
	return func(json.RawMessage) any { return json.RawMessage(text) }
}

// empty is what an agent says of the root 1 at /1, in which nothing is.
const empty = `{"id":"1","path":"file:///1","plugin":null,"skills":[],"namespaceManifests":[],"warnings":[],"error":null}`

// TestHostileAnswers: whatever an agent answers, it becomes an error of the roots that it is about,
// and nothing is asked again.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	const prefix = "exec-server protocol error: capabilityRoots/discoverV1: "
	other := `,` + strings.ReplaceAll(strings.ReplaceAll(empty, `"1"`, `"2"`), "///1", "///2")
	for answer, want := range map[string]string{
		`{"roots":[` + empty + other + `]}`: "",
		// Members that are missing are as good as empty ones.
		`{"roots":[{"id":"1","path":"file:///1"}` + other + `]}`: "",
		`{"roots":[` + empty + `]}`:                              "1 roots are answered, 2 were asked for",
		`{"roots":[` + empty + other + other + `]}`:              "3 roots are answered, 2 were asked for",
		`{"roots":[` + strings.Repeat("{},", 200_000) + `{}]}`:   "200001 roots are answered, 2 were asked for",
		`{}`:          "0 roots are answered",
		`{"roots":5}`: "decoding the result",
		`[]`:          "decoding the result",
		`{"roots":[{"id":"x","path":"file:///1"}` + other + `]}`:     "root `1` at \"file:///1\" is answered with `x`",
		`{"roots":[{"id":"1","path":"file:///other"}` + other + `]}`: "is answered with `1` at \"file:///other\"",
		`{"roots":[null` + other + `]}`:                              "is answered with `` at \"\"",
		`{"roots":[7` + other + `]}`:                                 "cannot unmarshal",
	} {
		f := newFake(t)
		f.answer(protocol.MethodDiscoverRoots, raw(answer))
		_, set := newNetwork(t, map[string]executor{"a": f})
		thread := newThread(t, root("1", "a", "/1"), root("2", "a", "/2"))
		v := discover(t, set, thread, "a")
		discover(t, set, thread, "a")
		rig.Is(t, len(f.takeSeen(protocol.MethodDiscoverRoots)), 1, "%.100s: times asked", answer)
		wantError(t, answer, v.Roots[0].Err, want)
		all := strings.Contains(want, "roots are answered") || strings.HasPrefix(want, "decoding")
		rig.Is(t, v.Roots[1].Err != nil, all, "%.100s: the other root has error %v", answer, v.Roots[1].Err)
		if want != "" && !strings.HasPrefix(want, "decoding") && !strings.HasPrefix(text(v.Roots[0].Err), prefix) {
			t.Errorf("%.100s: the error is %.300q", answer, text(v.Roots[0].Err))
		}
	}
}

// wantError fails unless an answer has made an error with this text, or none for "".
func wantError(t *testing.T, answer string, err error, want string) {
	t.Helper()
	if got := text(err); (got == "") != (want == "") || !strings.Contains(got, want) || len(got) > 2000 {
		t.Errorf("%.100s: the error is %.300q, want %s", answer, got, want)
	}
}

// TestHostileFiles: paths and contents that nobody should be told to use.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	file := func(path, contents string) string {
		text, _ := json.Marshal(contents)
		return fmt.Sprintf(`{"path":"%s","contents":%s}`, path, text)
	}
	skills := func(files ...string) string {
		for i, f := range files {
			files[i] = `{"instructions":` + f + `}`
		}
		return `{"id":"1","path":"file:///1","skills":[` + strings.Join(files, ",") + `]}`
	}
	odd := []string{"file:///1/%2e%2e/%2e%2e/etc/SKILL.md", "file:///1/a%2fb/SKILL.md", "file:///1/%zz", "file://h/1/SKILL.md", "file:///C:/SKILL.md", `FILE:\\\\\\1\\SKILL.md`}
	for answer, want := range map[string]string{
		skills(file("file:///1/SKILL.md", "x")):                                     "",
		skills(file(odd[0], ""), file(odd[1], ""), file(odd[2], "")):                "",
		skills(file(odd[3], ""), file(odd[4], ""), file(odd[5], "")):                "",
		skills(file("http://h/x", "")):                                              `scheme "http" is not file`,
		skills(file("rel", "")):                                                     "relative",
		skills(file("file:///a?b", "")):                                             "query",
		skills(file("file:///%00", "")):                                             "nul",
		skills(`{"path":5,"contents":""}`):                                          "cannot unmarshal",
		skills(`{"contents":"x"}`):                                                  "a file has no path",
		`{"id":"1","path":"file:///1","plugin":{}}`:                                 "a file has no path",
		`{"id":"1","path":"file:///1","skills":[{"metadata":{}}]}`:                  "a file has no path",
		`{"id":"1","path":"file:///1","error":"` + strings.Repeat("é", 5000) + `"}`: "éé",
		skills(file("file:///1/SKILL.md", strings.Repeat("x", 25<<20))):             "26214546 bytes, 25165824 are allowed",
	} {
		f := newFake(t)
		f.answer(protocol.MethodDiscoverRoots, raw(`{"roots":[`+answer+`]}`))
		_, set := newNetwork(t, map[string]executor{"a": f})
		v := discover(t, set, newThread(t, root("1", "a", "/1")), "a")
		wantError(t, answer, v.Roots[0].Err, want)
		if found := v.Roots[0].Found; found.Err != nil && (found.Skills != nil || found.Plugin != nil) {
			t.Errorf("%.100s: there is something beside the error", answer)
		}
	}
}

// TestHostileInstalled is the same for what is installed.
func TestHostileInstalled(t *testing.T) {
	t.Parallel()
	const plugin = `{"id":"p@m","root":"file:///p","files":{"manifest":{"path":"file:///p/x","contents":"{}"}},"skills":[%s]}`
	for answer, want := range map[string]string{
		`{}`: "", `{"plugins":[` + fmt.Sprintf(plugin, "") + `],"skills":[{"name":"n","path":"file:///s"}]}`: "",
		`{"plugins":[{}]}`: "plugins[0] has no id, root or manifest", `{"skills":[{"name":"n"}]}`: "a skill has no name or path",
		`{"plugins":[` + fmt.Sprintf(plugin, `{"path":"file:///s"}`) + `]}`: "a skill has no name or path",
		`{"skills":[{"name":"n","path":"s"}]}`:                              "relative", `[]`: "cannot unmarshal",
		`{"warnings":["` + strings.Repeat("x", 9<<20) + `"]}`: "bytes of what is installed",
	} {
		f := newFake(t)
		f.capabilities.CapabilityDiscoveryV2 = true
		f.answer(protocol.MethodDiscoverInstalled, raw(answer))
		_, set := newNetwork(t, map[string]executor{"a": f})
		thread := newThread(t)
		v := discover(t, set, thread, "a")
		if len(v.Environments) != 1 {
			t.Fatalf("%.100s: the environments are %+v", answer, v.Environments)
		}
		wantError(t, answer, v.Environments[0].Err, want)
		again := discover(t, set, thread, "a")
		rig.Is(t, again.Environments[0].Installed, v.Environments[0].Installed, "%.100s: found out again", answer)
	}
}

// TestManyInstalled: an answer of many plugins and many skills is checked once, and not each skill
// for each plugin.
func TestManyInstalled(t *testing.T) {
	const number = 15_000
	many := func(one string) string { return strings.TrimSuffix(strings.Repeat(one+",", number), ",") }
	f := newFake(t)
	f.capabilities.CapabilityDiscoveryV2 = true
	f.answer(protocol.MethodDiscoverInstalled, raw(`{"plugins":[`+many(`{"id":"a","root":"file:///","files":{"manifest":{"path":"file:///"}}}`)+
		`],"skills":[`+many(`{"name":"a","path":"file:///"}`)+`]}`))
	_, set := newNetwork(t, map[string]executor{"a": f})
	thread := newThread(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	v := discover(t, set, thread, "a")
	runtime.ReadMemStats(&after)
	if len(v.Environments) != 1 || v.Environments[0].Err != nil || len(v.Environments[0].Skills) != number {
		t.Fatalf("installed are %.300q", fmt.Sprint(v.Environments[0].Err))
	}
	// A copy of the skills for each plugin is 20 GB.
	allocated := after.TotalAlloc - before.TotalAlloc
	rig.Is(t, allocated <= 4<<30, true, "%d MiB are allocated", allocated>>20)
}

// TestOneBadRoot: where an agent refuses a request for one of its roots, the others do not suffer.
func TestOneBadRoot(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answer(protocol.MethodDiscoverRoots, func(params json.RawMessage) any {
		if strings.Contains(string(params), "file:///2") {
			return protocol.InvalidParams("no such path")
		}
		return f.discover(params)
	})
	_, set := newNetwork(t, map[string]executor{"a": f})
	v := discover(t, set, newThread(t, root("1", "a", "/1"), root("2", "a", "/2"), root("3", "a", "/3")), "a")
	if v.Roots[0].Err != nil || v.Roots[2].Err != nil || text(v.Roots[1].Err) != "exec-server rejected request (-32602): no such path" {
		t.Errorf("found are %v, %v, %v", v.Roots[0].Err, v.Roots[1].Err, v.Roots[2].Err)
	}
}

// TestSlowRoots: agents that do not answer, or refuse to answer about several roots and take their
// time for each, hold a step up for as long as the harness allows, and no longer. What was told
// counts, and the next step asks for the rest.
func TestSlowRoots(t *testing.T) {
	t.Parallel()
	for allowed, want := range map[time.Duration]time.Duration{0: 30 * time.Second, 5 * time.Second: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			slow, silent, good := newFake(t), newFake(t), newFake(t)
			slow.answer(protocol.MethodDiscoverRoots, func(params json.RawMessage) any {
				switch roots := asked(t, params); {
				case len(roots) > 1:
					return protocol.InvalidParams("one at a time")
				case roots[0].ID == "0":
					return slow.discover(params)
				}
				return nil
			})
			silent.capabilities.CapabilityDiscoveryV2 = true
			silent.answer(protocol.MethodDiscoverInstalled, func(json.RawMessage) any { return nil })
			silent.answer(protocol.MethodDiscoverRoots, func(json.RawMessage) any { return nil })
			_, set := newNetwork(t, map[string]executor{"slow": slow, "silent": silent, "good": good})
			var roots []capability.Root
			for i := range 20 {
				roots = append(roots, root(fmt.Sprint(i), "slow", fmt.Sprintf("/%d", i)))
			}
			roots = append(roots, root("silent", "silent", "/silent"), root("good", "good", "/good"))
			thread := rig.Value(capability.New(capability.Config{Roots: roots, Timeout: allowed}))
			begin := time.Now()
			v := discover(t, set, thread, "slow", "silent", "good")
			rig.Is(t, time.Since(begin), want, "it takes")
			for _, r := range v.Roots {
				told := r.ID == "0" || r.ID == "good"
				late, ok := errors.AsType[*client.TimeoutError](r.Err)
				if told && r.Err != nil || !told && (!ok || late.After != want || !errors.Is(r.Err, context.DeadlineExceeded)) {
					t.Errorf("root %s: %v", r.ID, r.Err)
				}
			}
			if len(v.Environments) != 1 || !errors.Is(v.Environments[0].Err, context.DeadlineExceeded) {
				t.Errorf("the environments are %+v", v.Environments)
			}

			slow.answer(protocol.MethodDiscoverRoots, slow.discover)
			silent.answer(protocol.MethodDiscoverRoots, silent.discover)
			silent.answer(protocol.MethodDiscoverInstalled, raw(`{}`))
			good.takeSeen(protocol.MethodDiscoverRoots)
			v = discover(t, set, thread, "slow", "silent", "good")
			for _, r := range v.Roots {
				rig.Is(t, r.Err, nil, "root %s", r.ID)
			}
			if !v.Recovered || v.Environments[0].Err != nil || good.takeSeen(protocol.MethodDiscoverRoots) != nil {
				t.Errorf("recovered is %v, the environments are %+v", v.Recovered, v.Environments)
			}
		})
	}
}

// large answers with n bytes for each of the first three roots, and has no room for others; with
// fewer bytes for one that is asked for alone.
func large(t *testing.T, n, alone int) func(json.RawMessage) any {
	return func(params json.RawMessage) any {
		var all []string
		roots := asked(t, params)
		contents := strings.Repeat("x", n)
		if len(roots) == 1 {
			contents = contents[:alone]
		}
		for i, a := range roots {
			members := `"error":"no room"`
			if i < 3 {
				members = `"namespaceManifests":[{"path":"file:///x","contents":"` + contents + `"}]`
			}
			all = append(all, fmt.Sprintf(`{"id":%q,"path":%q,%s}`, a.ID, a.Path, members))
		}
		return json.RawMessage(`{"roots":[` + strings.Join(all, ",") + `]}`)
	}
}

// TestRoom: a root that found no room in an answer is asked for alone; and a thread keeps no
// more than it may.
func TestRoom(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answer(protocol.MethodDiscoverRoots, large(t, 6<<20, 1<<10))
	_, set := newNetwork(t, map[string]executor{"a": f})
	var roots []capability.Root
	for i := range 9 {
		roots = append(roots, root(fmt.Sprint(i), "a", fmt.Sprintf("/%d", i)))
	}
	thread := newThread(t, roots...)
	const room = 3*6<<20 + 5<<10 // three of an answer, and four that were asked for alone
	thread.Room(room)
	v := discover(t, set, thread, "a")
	rig.Is(t, len(f.takeSeen(protocol.MethodDiscoverRoots)), 1+6, "requests")
	kept := 0
	for i, r := range v.Roots {
		for _, m := range r.Namespaces {
			kept += len(m.Contents)
		}
		if full := i >= 7; full != (r.Err != nil) || full && !strings.Contains(r.Err.Error(), "do not fit") {
			t.Errorf("root %d has error %v", i, r.Err)
		}
	}
	rig.Is(t, kept <= room, true, "%d bytes are kept, and there is room for %d", kept, room)
	if again := discover(t, set, thread, "a"); again.Roots[8].Found != v.Roots[8].Found || f.takeSeen(protocol.MethodDiscoverRoots) != nil {
		t.Error("it was found out again")
	}
}

// TestSandbox: what was found under one sandbox is not taken for what can be read under another,
// and an agent that would ignore a sandbox is not sent one.
func TestSandbox(t *testing.T) {
	t.Parallel()
	knows, ignores := newFake(t), newFake(t)
	knows.capabilities.CapabilityDiscoverySandbox, knows.capabilities.CapabilityDiscoveryV2 = true, true
	knows.answer(protocol.MethodDiscoverInstalled, raw(`{}`))
	ignores.answer(protocol.MethodFSGetMetadata, func(params json.RawMessage) any {
		isRoot := strings.Contains(string(params), `"file:///2"`)
		return &protocol.FileMetadata{IsDirectory: isRoot, IsFile: !isRoot, Size: 2}
	})
	ignores.answer(protocol.MethodFSReadFile, func(json.RawMessage) any { return &protocol.ReadFileResult{Data: []byte("{}")} })
	ignores.answer(protocol.MethodFSWalk, func(json.RawMessage) any { return &protocol.WalkResult{} })
	_, set := newNetwork(t, map[string]executor{"k": knows, "i": ignores})
	var now *protocol.Sandbox
	thread, err := capability.New(capability.Config{
		Roots:   []capability.Root{root("1", "k", "/1"), root("2", "i", "/2")},
		Sandbox: func(string) *protocol.Sandbox { return now },
		Timeout: patience,
	})
	rig.Must(t, err)
	count := func(sandbox *protocol.Sandbox, want int) {
		t.Helper()
		now = sandbox
		discover(t, set, thread, "k", "i")
		for _, method := range []string{protocol.MethodDiscoverRoots, protocol.MethodDiscoverInstalled} {
			seen := knows.takeSeen(method)
			rig.Is(t, len(seen), want, "calls of %s", method)
			for _, params := range seen {
				has := strings.Contains(string(params), `"sandbox":{`)
				rig.Is(t, has, sandbox != nil && !sandbox.UnrestrictedFiles(), "%s: a sandbox is in %s", method, params)
			}
		}
	}
	count(nil, 1)
	rig.Is(t, len(ignores.takeSeen(protocol.MethodDiscoverRoots)), 1, "times asked without a sandbox")
	count(without("/a"), 1)
	count(without("/b"), 1)
	count(nil, 0)
	count(without("/a"), 0)
	count(&protocol.Sandbox{Permissions: protocol.Permissions{Type: protocol.PermissionsDisabled}, WindowsSandboxLevel: "disabled"}, 0)
	rig.Is(t, len(ignores.takeSeen(protocol.MethodDiscoverRoots)), 0, "times that it was sent a sandbox which it ignores")
	for _, method := range []string{protocol.MethodFSGetMetadata, protocol.MethodFSReadFile, protocol.MethodFSWalk} {
		seen := ignores.takeSeen(method)
		if len(seen) < 2 || slices.ContainsFunc(seen, func(p json.RawMessage) bool { return !strings.Contains(string(p), `"sandbox":{`) }) {
			t.Errorf("%s: %s", method, seen)
		}
	}
}

// TestHostileFileCalls: an agent without discovery that lies about its files.
func TestHostileFileCalls(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answer(protocol.MethodDiscoverRoots, nil)
	path := func(params json.RawMessage) string {
		var p protocol.PathParams
		rig.Check(t, json.Unmarshal(params, &p))
		native, err := p.Path.Native()
		rig.Check(t, err)
		return native
	}
	cut := true
	f.answer(protocol.MethodFSGetMetadata, func(params json.RawMessage) any {
		switch name := path(params); {
		case name == "/r":
			return &protocol.FileMetadata{IsDirectory: true}
		case strings.Contains(name, "huge"):
			return &protocol.FileMetadata{IsFile: true, Size: 1 << 62}
		case strings.Contains(name, "denied"), strings.Contains(name, ".claude-plugin"):
			return protocol.InvalidRequest("Permission denied (os error 13)")
		case strings.HasSuffix(name, "SKILL.md"):
			return &protocol.FileMetadata{IsFile: true, Size: 3}
		}
		return protocol.Errorf(protocol.CodeNotFound, "No such file or directory (os error 2)")
	})
	f.answer(protocol.MethodFSReadFile, func(params json.RawMessage) any {
		if cut {
			cut = false
			f.cut()
			return nil
		}
		switch name := path(params); {
		case strings.Contains(name, "grown"):
			return &protocol.ReadFileResult{Data: make([]byte, 2<<20)}
		case strings.Contains(name, "gone"):
			return protocol.Errorf(protocol.CodeNotFound, "No such file or directory (os error 2)")
		case strings.Contains(name, "broken"):
			return protocol.Errorf(protocol.CodeInternal, "Input/output error (os error 5)")
		}
		return &protocol.ReadFileResult{Data: []byte("abc")}
	})
	walk := &protocol.WalkResult{Truncated: true, Errors: []protocol.WalkError{{Path: "/r/x", Message: strings.Repeat("e", 1<<20)}}}
	for _, name := range []string{"/r/a", "/r/grown", "/r/huge", "/r/gone", "/r/broken", "/r/denied", "/etc", "/rr", "/r/z"} {
		walk.Entries = append(walk.Entries, protocol.WalkEntry{Path: name + "/SKILL.md"})
	}
	f.answer(protocol.MethodFSWalk, func(json.RawMessage) any { return walk })
	_, set := newNetwork(t, map[string]executor{"a": f})
	found := discover(t, set, newThread(t, root("1", "a", "/r")), "a").Roots[0]
	var skills []string
	for _, s := range found.Skills {
		skills = append(skills, s.Instructions.Path.String()+s.Instructions.Contents)
	}
	rig.Same(t, "skills", []string{"file:///r/a/SKILL.mdabc", "file:///r/z/SKILL.mdabc"}, skills)
	want := []string{
		"failed to inspect capability file file:///r/.claude-plugin/plugin.json: Permission denied (os error 13)",
		"failed to scan capability path file:///r/x: eee",
		"capability scan reached its traversal limit (root: file:///r)",
		"failed to inspect capability file file:///r/denied/SKILL.md: Permission denied (os error 13)",
		"failed to read capability file file:///r/broken/SKILL.md: Input/output error (os error 5)",
		"capability file file:///r/grown/SKILL.md exceeds the 1048576-byte limit",
		"capability file file:///r/huge/SKILL.md exceeds the 1048576-byte limit",
		"failed to inspect capability file file:///.claude-plugin/plugin.json: Permission denied (os error 13)",
	}
	for i, w := range found.Warnings {
		rig.Is(t, i < len(want) && strings.HasPrefix(w, want[i]) && len(w) <= 2000, true, "warning %.200q", w)
	}
	rig.Is(t, len(found.Warnings) == len(want) && found.Err == nil, true, "%d warnings, %v", len(found.Warnings), found.Err)

	// More skills than are read, and a walk that is no walk.
	walk = &protocol.WalkResult{}
	for i := range 5000 {
		walk.Entries = append(walk.Entries, protocol.WalkEntry{Path: fmt.Sprintf("/r/%d/SKILL.md", i)})
	}
	found = discover(t, set, newThread(t, root("1", "a", "/r")), "a").Roots[0]
	if len(found.Skills) != 2048 || len(found.Warnings) != 3 {
		t.Errorf("%d skills, warnings %q", len(found.Skills), found.Warnings)
	}
	f.answer(protocol.MethodFSWalk, raw(`{"entries":[{"path":"file://h/x","kind":"file"}],"errors":[],"truncated":false}`))
	found = discover(t, set, newThread(t, root("1", "a", "/r")), "a").Roots[0]
	wantError(t, "a walk that is no walk", found.Err, "invalid on linux")
	foreign := rig.Value(protocol.ParsePathURI("file:///C:/x"))
	found = discover(t, set, newThread(t, capability.Root{ID: "1", EnvironmentID: "a", Path: foreign}), "a").Roots[0]
	wantError(t, "a foreign root", found.Err, "invalid on linux")
}
