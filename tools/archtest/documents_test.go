package archtest

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// limitRow finds a row of a table of limits. Its cells are: what is limited, number
// and unit, `folder.constant`, what happens beyond the limit.
var limitRow = regexp.MustCompile("(?m)^\\| .* \\| ([0-9][0-9,]*)(?: ([A-Za-z]+))? \\| `([a-z/]+)\\.([A-Za-z0-9]+)` \\|")

// units are the factors of the units: of bytes, and of durations in nanoseconds.
var units = map[string]int64{
	"": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	"ms": int64(time.Millisecond), "s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour),
}

// TestLimitsInDocs: the limits in docs/remote.md have the values of the constants
// that stand beside them.
func TestLimitsInDocs(t *testing.T) {
	t.Parallel()
	const page = "docs/remote.md"
	rows := limitRow.FindAllStringSubmatch(read(t, page), -1)
	enough(t, "rows of limits", len(rows), 60)
	scopes := map[string]*types.Scope{}
	for _, row := range rows {
		number, unit, folder, name := row[1], row[2], row[3], row[4]
		n, err := strconv.ParseInt(strings.ReplaceAll(number, ",", ""), 10, 64)
		factor, known := units[unit]
		if err != nil || !known {
			t.Errorf("%s: %s.%s: %q of unit %q cannot be read", page, folder, name, number, unit)
			continue
		}
		if scopes[folder] == nil {
			scopes[folder] = constants(t, folder)
		}
		c, ok := scopes[folder].Lookup(name).(*types.Const)
		if !ok {
			t.Errorf("%s: %s has no constant %s", page, folder, name)
			continue
		}
		if got, exact := constant.Int64Val(constant.ToInt(c.Val())); !exact || got != n*factor {
			t.Errorf("%s: %s.%s is %v, the page says %s %s", page, folder, name, c.Val(), number, unit)
		}
	}
}

// constants type-checks the package in a folder and returns its scope. Only its
// constants are right there: all that it imports is unknown, except for durations.
func constants(t *testing.T, folder string) *types.Scope {
	t.Helper()
	files := token.NewFileSet()
	entries, err := os.ReadDir(folder)
	must(t, err)
	var parsed []*ast.File
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") || strings.HasSuffix(entry.Name(), "_other.go") {
			continue
		}
		f, err := parser.ParseFile(files, path.Join(folder, entry.Name()), nil, parser.SkipObjectResolution)
		must(t, err)
		parsed = append(parsed, f)
	}
	config := types.Config{
		Importer:         onlyDurations{},
		IgnoreFuncBodies: true,
		Error:            func(error) {}, // about names of imported packages
	}
	checked, _ := config.Check(folder, files, parsed, nil)
	return checked.Scope()
}

// onlyDurations imports every package as an empty one, except that time has
// Duration and its units.
type onlyDurations struct{}

func (onlyDurations) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	if name == "time" {
		duration := types.NewNamed(types.NewTypeName(token.NoPos, p, "Duration", nil), types.Typ[types.Int64], nil)
		p.Scope().Insert(duration.Obj())
		for unit, d := range map[string]time.Duration{
			"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
		} {
			p.Scope().Insert(types.NewConst(token.NoPos, p, unit, duration, constant.MakeInt64(int64(d))))
		}
	}
	p.MarkComplete()
	return p, nil
}

// TestTroubleshooting: docs/troubleshooting.md explains texts that the programs really say: each
// stands in a test of what users get wrong, or where it comes from.
func TestTroubleshooting(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	for _, name := range []string{
		"cmd/agent/testdata/mistakes.txt", "test/e2e/testdata/console/registry_mistakes", "test/e2e/operation_test.go", "cmd/agent/exec_named.go", "cmd/agent/internal/console/events.go",
		"agent/ceiling.go", "agent/limits.go", "client/process.go", "cmd/agent/internal/target/connect.go", "cmd/agent/internal/target/roots.go", "internal/execpolicy/verdict.go", "internal/netproxy/answer.go",
		"internal/secretfile/secretfile.go", "internal/share/share.go", "internal/unixsocket/listen.go", "internal/unixsocket/unixsocket.go", "sandbox/backend.go", "transport/auth.go",
	} {
		said.WriteString(read(t, name))
	}
	_, section, _ := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## What the agent says\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1)
	enough(t, "texts are explained", len(rows), 30)
	for _, row := range rows {
		inGo := strings.ReplaceAll(row[1], `"`, `\"`)
		if !strings.Contains(said.String(), row[1]) && !strings.Contains(said.String(), inGo) {
			t.Errorf("the page explains %q, which nothing says", row[1])
		}
	}
}

// TestTargets: docs/dev/targets.md has each target that make help lists.
func TestTargets(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/dev/targets.md")
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):.* ## `).FindAllStringSubmatch(read(t, "Makefile"), -1)
	enough(t, "targets in the Makefile", len(targets), 20)
	for _, target := range targets {
		if !strings.Contains(page, "`make "+target[1]+"`") {
			t.Errorf("docs/dev/targets.md has no row of make %s", target[1])
		}
	}
}
