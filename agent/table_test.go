package agent

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/protocol/contract"
	"github.com/execagent/execagent/test/rig"
)

// parsed returns the files of package protocol without its tests.
func parsed(t *testing.T) (*token.FileSet, []*ast.File) {
	t.Helper()
	names := rig.Value(filepath.Glob("../protocol/*.go"))
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files = append(files, rig.Value(parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)))
	}
	return fset, files
}

// methods returns the Method constants of package protocol: their values by name.
func methods(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	_, files := parsed(t)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Method") {
				return true
			}
			literal, ok := spec.Values[0].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s is no literal", spec.Names[0].Name)
			}
			found[spec.Names[0].Name] = rig.Value(strconv.Unquote(literal.Value))
			return true
		})
	}
	return found
}

// TestTableIsComplete: the agent serves all requests of a client that the contract has, and the protocol has a
// constant for each method.
func TestTableIsComplete(t *testing.T) {
	t.Parallel()
	var served, all []string
	for _, m := range contract.Load().Methods {
		all = append(all, m.Name)
		if !m.Server && m.Result != nil {
			served = append(served, m.Name)
		}
	}
	slices.Sort(served)
	slices.Sort(all)
	rig.Same(t, "the table differs from the contract", served, slices.Sorted(maps.Keys(new(connection).table())))
	rig.Same(t, "the constants differ from the contract", all, slices.Sorted(maps.Values(methods(t))))
}

// TestTableConfines: every method that takes a path takes a sandbox too, and in
// a sandbox that grants nothing it finds nothing and does nothing. The test
// finds these methods by calling all of them, with params that hold what any
// method needs.
func TestTableConfines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	rig.Must(t, os.WriteFile(source, []byte("x"), 0o666))
	paths := object{
		"path": uri(target), "sourcePath": uri(source), "destinationPath": uri(target),
		"cwd": uri(dir), "missing": []string{uri(target)}, "present": uri(source), "address": "unix://" + source, "paths": []string{uri(target)},
	}
	others := object{
		"processId": "p", "argv": []string{"/bin/sh", "-c", "echo >target"}, "env": object{}, "tty": false, "recursive": true,
		"handleId": "h", "socketId": "s", "mode": "replace", "dataBase64": "eA==", "watchId": 1, "force": false,
		"options": object{"maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false},
	}
	restricted := object{
		"windowsSandboxLevel": "disabled", "cwd": uri(dir),
		"permissions": object{"type": "managed", "network": "restricted", "file_system": object{"type": "restricted", "entries": []any{}}},
	}
	// Methods that take a path and no sandbox: what they read of it is fixed.
	exempt := []string{protocol.MethodConfigRead}

	c := newHarness(t, Config{}).attach("")
	// askOf makes a request of all members; the answer is its error.
	askOf := func(c *client, method string, members ...object) protocol.Error {
		t.Helper()
		params := object{}
		for _, m := range members {
			maps.Copy(params, m)
		}
		if method == protocol.MethodFSWriteFile {
			delete(params, "mode") // that of fs/open
		}
		var many protocol.GetMetadataManyResult
		e, _ := errors.AsType[*protocol.Error](c.call(method, params, &many))
		if len(many.Files) > 0 && many.Files[0].Error != nil {
			return protocol.Error{Code: many.Files[0].Error.Code}
		}
		if e == nil {
			return protocol.Error{}
		}
		return *e
	}
	ask := func(method string, members ...object) protocol.Error { return askOf(c, method, members...) }
	// The operator's word holds for each of these methods alike, without a sandbox, with a disabled one, and with
	// one that lets everything be written.
	nothing := sandboxOf(t, restricted)
	words := map[string]*client{
		"default":  newHarness(t, Config{SandboxDefault: nothing, RequireSandbox: true}).attach(""),
		"ceiling":  newHarness(t, Config{SandboxCeiling: nothing}).attach(""),
		"required": newHarness(t, Config{RequireSandbox: true}).attach(""),
	}
	everything := object{
		"windowsSandboxLevel": "disabled", "cwd": "file:///", "workspaceRoots": []any{"file:///"},
		"permissions": object{"type": "managed", "network": "enabled", "file_system": object{"type": "restricted", "entries": []any{
			object{"access": "write", "path": object{"type": "special", "value": object{"kind": "project_roots"}}},
		}}},
	}
	unconfined := object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled", "cwd": uri(dir)}
	for word, c := range words {
		var info protocol.EnvironmentInfo
		c.must(protocol.MethodEnvironmentInfo, object{}, &info)
		got := info.Capabilities
		rig.Same(t, word, [...]bool{word == "default", word == "ceiling", word != "ceiling", false},
			[...]bool{got.SandboxDefault, got.SandboxCeiling, got.SandboxRequired, got.ProcessBuiltins})
	}
	page := string(rig.Value(os.ReadFile("../docs/operator.md")))
	wrongPaths := object{}
	for name := range paths {
		wrongPaths[name] = 7
	}
	confined := 0
	for method := range new(connection).table() {
		e := ask(method, paths, others, object{"sandbox": 7})
		takesSandbox := e.Code == protocol.CodeInvalidParams && strings.HasPrefix(e.Message, "sandbox")
		e = ask(method, wrongPaths, others)
		name, _, _ := strings.Cut(e.Message, ":")
		_, takesPath := paths[name]
		rig.Is(t, takesPath || method == protocol.MethodPortList, takesSandbox || slices.Contains(exempt, method), "%s takes a path, and a sandbox", method)
		rig.Is(t, strings.Contains(page, "`"+method+"`"), true, "docs/operator.md says what applies to %s", method)
		if !takesSandbox {
			continue
		}
		confined++
		for word, c := range words {
			for id, members := range []object{{}, {"sandbox": unconfined}, {"sandbox": everything}} {
				e := askOf(c, method, paths, others, object{"processId": fmt.Sprint(id)}, members)
				switch {
				case word == "required":
					rig.Is(t, strings.Contains(e.Message, "--require-sandbox"), true, "%s without a sandbox: %v", method, &e)
				case method == protocol.MethodProcessStart, method == protocol.MethodDiscoverInstalled, method == protocol.MethodPortList && word != "ceiling":
					rig.Is(t, e.Message, "", "%s by the %s", method, word)
				case method == protocol.MethodSocketOpen, method == protocol.MethodPortList:
					rig.Is(t, e.Code, protocol.CodeInvalidRequest, "%s by the %s: %v", method, word, &e)
				default:
					rig.Is(t, e.Code, protocol.CodeNotFound, "%s by the %s: %v", method, word, &e)
				}
			}
		}
		e = ask(method, paths, others, object{"sandbox": restricted})
		switch method {
		case protocol.MethodProcessStart: // the process starts, says so and exits
		case protocol.MethodDiscoverInstalled, protocol.MethodPortList: // nothing is found
		case protocol.MethodSocketOpen:
			if e.Code != protocol.CodeInvalidRequest || !strings.Contains(e.Message, "os error 1)") {
				t.Errorf("%s in a sandbox that grants nothing: %v", method, &e)
			}
		default:
			rig.Is(t, e.Code, protocol.CodeNotFound, "%s in a sandbox that grants nothing: %v", method, &e)
		}
	}
	rig.Is(t, confined >= 14, true, "%d methods take a sandbox, at least 14", confined)
	// What takes no sandbox, and could touch files or the network for a client.
	tool := object{"processId": "t", "argv": []string{"copy", "{}"}, "builtin": true}
	for _, tt := range []struct{ word, method, says string }{
		{"default", protocol.MethodProcessStart, "a tool cannot be confined"},
		{"required", protocol.MethodProcessStart, "a tool cannot be confined"},
		{"ceiling", protocol.MethodProcessStart, "a tool cannot be confined"},
		{"ceiling", protocol.MethodConfigRead, "no configuration is read"},
		{"ceiling", protocol.MethodHTTPRequest, "has no network"},
	} {
		e := askOf(words[tt.word], tt.method, paths, others, tool, object{"configPaths": [][]string{{"x"}}, "requirementsPaths": [][]string{}, "method": "GET", "url": "http://127.0.0.1:9/", "requestId": "r"})
		rig.Is(t, strings.Contains(e.Message, tt.says), true, "%s by the %s: %v", tt.method, tt.word, &e)
	}
	// Nor is it announced.
	var info protocol.EnvironmentInfo
	words["ceiling"].must(protocol.MethodEnvironmentInfo, nil, &info)
	f := info.Capabilities
	rig.Is(t, f.ProcessBuiltins || f.EnvironmentConfigRead || f.SocketForward || f.Ports || f.ProcessRunAs, false, "by the ceiling: %+v", f)
	entries := rig.Value(os.ReadDir(dir))
	rig.Is(t, len(entries) == 1 && entries[0].Name() == "source", true, "the folder holds %v, want the source alone", entries)
}

// TestDocsNameOurFlags holds the table of additions in docs/compatibility.md against the
// flags that are ours: those after the blank line in protocol.Capabilities.
func TestDocsNameOurFlags(t *testing.T) {
	t.Parallel()
	var ours []string
	fset, files := parsed(t)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "Capabilities" {
				return true
			}
			last := 0
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				line := fset.Position(field.Pos()).Line
				if len(ours) > 0 || last > 0 && line > last+1 {
					name, _, _ := strings.Cut(reflect.StructTag(rig.Value(strconv.Unquote(field.Tag.Value))).Get("json"), ",")
					ours = append(ours, name)
				}
				last = line
			}
			return false
		})
	}
	_, table, found := strings.Cut(string(rig.Value(os.ReadFile("../docs/compatibility.md"))), "| flag | adds |\n|---|---|\n")
	if !found || len(ours) == 0 {
		t.Fatalf("the page has a table of flags: %v; flags of ours: %v", found, ours)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)`").FindAllStringSubmatch(table, -1) {
		named = append(named, row[1])
	}
	rig.Same(t, "the page differs", ours, named)
}
