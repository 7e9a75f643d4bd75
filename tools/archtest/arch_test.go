package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/execagent/execagent/"

// A denial names packages that may not depend on others, directly or through any package between
// them. Ours are written without the module's path. "x/..." is x and all packages below it, and
// "..." is every package.
type denial struct {
	from   string
	except []string // packages that from covers and that may
	deny   []string
	allow  []string // packages that deny covers and that are allowed
	why    string
}

var denials = []denial{
	{from: "cmd/agent", deny: []string{"github.com/nats-io/...", "github.com/prometheus/...", "registry/..."},
		why: "the agent starts in milliseconds and fits into any image: what a registry needs is not linked into it"},
	{from: "cmd/agent", deny: []string{"github.com/modelcontextprotocol/...", "harness/..."},
		why: "MCP is spoken by harnesses and by agent-mcp, which are other programs"},
	{from: "protocol", deny: []string{"..."}, allow: []string{"protocol", "internal/strictjson"},
		why: "the wire's types are what every other program shares with ours, and know nothing that runs"},
	{from: "protocol/contract", deny: []string{"..."}, why: "the contract is data that protocol is compared with, so it knows nothing of it"},
	{from: "rpc", deny: []string{"..."}, allow: []string{"rpc", "internal/buffer", "internal/strictjson", "protocol"},
		why: "the engine knows no methods, sockets or files"},
	{from: "sandbox", deny: []string{"internal/linux/...", "golang.org/x/sys/unix", "internal/sandbox/..."}, allow: []string{"internal/sandbox/pathname"},
		why: "a policy is a value that a client on any system can make"},
	{from: "internal/relay/frame", deny: []string{"google.golang.org/protobuf/..."},
		why: "protobuf at run time costs every start of the agent more than the frames, which are encoded by hand"},
	{from: "procs", deny: []string{"protocol", "rpc"}, why: "processes are told of as plain values"},
	{from: "fsops", deny: []string{"protocol", "rpc"}, why: "file operations return plain errors"},
	{from: "internal/sandbox/...", except: []string{"internal/sandbox/files"}, deny: []string{"protocol", "rpc"},
		why: "what confines a command knows policies, and not who asks; the file helper alone has the wire's words, for the discovery of skills"},
	{from: "agent/...", deny: []string{"transport", "relay", "client/...", "harness/...", "registry/..."},
		why: "the agent serves an rpc.Listener and cannot tell transports apart"},
	{from: "client/...", deny: []string{"agent/...", "helper", "internal/sandbox/...", "procs", "fsops", "harness/...", "registry/..."},
		why: "a client runs on any system, and links nothing that executes"},
	{from: "harness/...", deny: []string{"agent/...", "helper", "internal/sandbox/...", "procs", "fsops", "registry/...", "relay"},
		why: "a harness hands in its connections, and executes nothing itself"},
	{from: "relay", deny: []string{"agent/...", "client/...", "registry/...", "procs", "internal/sandbox/..."},
		why: "the relay carries messages, whoever speaks"},
	{from: "conformance/internal/suite", deny: []string{"agent/...", "client/...", "harness/...", "registry/...", "rpc", "transport", "relay"},
		why: "the suite judges our agent and our client, so it makes none of their mistakes"},
	{from: "registry/...", deny: []string{"internal/relay/noise", "agent/...", "client/...", "procs", "internal/sandbox/..."},
		why: "a registry passes on what it cannot read, and executes nothing"},
	{from: "transport", deny: []string{"procs", "fsops", "agent/...", "client/...", "relay"},
		why: "a transport carries messages and knows no method"},
	{from: "internal/...", deny: []string{"agent/...", "client/...", "harness/...", "registry/...", "cmd/..."},
		why: "imports go downwards: what serves several rooms knows none of them"},
	{from: "...", except: []string{"internal/rpctest", "internal/registry/store/storetest", "internal/sandbox/sandboxtest", "harness/projection/internal/fakemcp", "test/..."},
		deny: []string{"testing", "github.com/google/go-cmp/...", "github.com/rogpeppe/go-internal/...", "go.uber.org/goleak", "pgregory.net/rapid", "test/..."},
		why:  "what only tests need is in no program"},
}

// covers reports whether pattern, of a denial, covers a package.
func covers(pattern, name string) bool {
	if pattern == "..." {
		return strings.HasPrefix(name, module)
	}
	if first, _, _ := strings.Cut(pattern, "/"); !strings.Contains(first, ".") && pattern != "testing" {
		pattern = module + pattern
	}
	tree, whole := strings.CutSuffix(pattern, "/...")
	return name == tree || whole && strings.HasPrefix(name, tree+"/")
}

func coveredBy(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, name) })
}

// TestDenials holds every dependency of the module's packages against denials.
func TestDenials(t *testing.T) {
	t.Parallel()
	packages := list(t)
	for _, d := range denials {
		found := false
		for _, p := range packages {
			if p.ForTest != "" || strings.HasSuffix(p.ImportPath, ".test") || !covers(d.from, p.ImportPath) || coveredBy(d.except, p.ImportPath) {
				continue
			}
			found = true
			for _, dep := range p.Deps {
				if coveredBy(d.deny, dep) && !coveredBy(d.allow, dep) {
					t.Errorf("%s must not depend on %s: %s", strings.TrimPrefix(p.ImportPath, module), strings.TrimPrefix(dep, module), d.why)
				}
			}
		}
		if !found {
			t.Errorf("no package is %s, which must not depend on %s", d.from, strings.Join(d.deny, ", "))
		}
	}
}

// TestFuzzTargets: no package with fuzz targets depends on the NATS server. go test -fuzz instruments
// a package with everything that it imports, and takes minutes for that server.
func TestFuzzTargets(t *testing.T) {
	t.Parallel()
	target := regexp.MustCompile(`(?m)^func Fuzz[A-Z]`)
	packages := list(t)
	fuzzed := map[string]bool{}
	for _, p := range packages {
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if target.MatchString(read(t, path.Join(p.Dir, file))) {
				fuzzed[p.ImportPath] = true
			}
		}
	}
	enough(t, "packages have fuzz targets", len(fuzzed), 15)
	for _, p := range packages {
		if fuzzed[strings.TrimSuffix(p.ImportPath, ".test")] && slices.Contains(p.Deps, "github.com/nats-io/nats-server/v2/server") {
			t.Errorf("%s has fuzz targets and depends on the NATS server: move what they test to a package of its own", p.ImportPath)
		}
	}
}

// importable finds a row of the table in docs/api.md.
var importable = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\|")

// TestImportable: docs/api.md lists exactly the packages that another module can import, apart from
// those of tests.
func TestImportable(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/api.md")
	var said, are []string
	for _, row := range importable.FindAllStringSubmatch(page, -1) {
		said = append(said, row[1])
	}
	for _, p := range list(t) {
		if p.importable() {
			are = append(are, strings.TrimPrefix(p.ImportPath, module))
		}
	}
	slices.Sort(said)
	slices.Sort(are)
	if !slices.Equal(said, are) {
		t.Errorf("docs/api.md lists %q\nimportable are %q", said, are)
	}
}

// importable reports whether another module can import the package, which is not for tests.
func (p *listed) importable() bool {
	name := strings.TrimPrefix(p.ImportPath, module)
	return p.ForTest == "" && p.Name != "main" && len(p.GoFiles) > 0 && !strings.Contains("/"+name+"/", "/internal/") &&
		!strings.HasPrefix(name, "test/") && !strings.HasSuffix(name, ".test")
}

// TestExported: what a package for others exports names a type of an internal package only by an
// alias, whose comment says what of the type is promised.
func TestExported(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if !p.importable() {
			continue
		}
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			must(t, err)
			for _, found := range internalNames(file) {
				t.Errorf("%s: what is exported has %s of an internal package", files.Position(found.Pos()), found.Sel.Name)
			}
		}
	}
}

// internalNames are the names of internal packages in what a file exports.
func internalNames(file *ast.File) (found []*ast.SelectorExpr) {
	internal := map[string]bool{}
	for _, spec := range file.Imports {
		where, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(where)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		internal[name] = strings.HasPrefix(where, module) && strings.Contains(where, "/internal/")
	}
	exports := func(names []*ast.Ident) bool { return slices.ContainsFunc(names, (*ast.Ident).IsExported) }
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			n.Body = nil
			return n.Name.IsExported() && (n.Recv == nil || exportedType.MatchString(types.ExprString(n.Recv.List[0].Type)))
		case *ast.StructType: // an embedded field without a name counts
			n.Fields.List = slices.DeleteFunc(n.Fields.List, func(f *ast.Field) bool { return len(f.Names) > 0 && !exports(f.Names) })
		case *ast.TypeSpec:
			return n.Name.IsExported() && !n.Assign.IsValid()
		case *ast.ValueSpec:
			n.Values = nil
			return exports(n.Names)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && internal[x.Name] {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

// exportedType finds a receiver whose type has a name for others.
var exportedType = regexp.MustCompile(`^\*?[A-Z]`)

// listed has what the tests need of a package that go list prints.
type listed struct {
	ImportPath, Name, Dir, ForTest     string
	Deps                               []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// list returns the packages of the module, and the test programs of those that have tests.
func list(t *testing.T) []listed {
	t.Helper()
	packages, err := listOnce()
	must(t, err)
	return packages
}

var listOnce = sync.OnceValues(func() (packages []listed, err error) {
	out, err := exec.Command("go", "list", "-test", "-json=ImportPath,Name,Dir,ForTest,Deps,GoFiles,TestGoFiles,XTestGoFiles", "./...").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, errors.New("go list: " + string(exit.Stderr))
	} else if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
})
