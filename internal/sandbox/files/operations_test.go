package files

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// TestOperationsAreMethods holds the operations of the wire against the methods
// of fsops.FS, by their names and in both directions: a verb that is added to
// one has to be added to the other.
func TestOperationsAreMethods(t *testing.T) {
	t.Parallel()
	of := []string{"Cancel", "Ping", "Discover"} // what the wire has for itself, and a job made of several verbs
	for method := range reflect.TypeFor[fsops.FS]().Methods() {
		if method.Name != "Watchable" { // the policy alone is asked
			of = append(of, method.Name)
		}
	}
	var operations []string
	for _, name := range constantsOf(t, "wire.go", "op") {
		operations = append(operations, strings.TrimPrefix(name, "op"))
	}
	slices.Sort(of)
	slices.Sort(operations)
	rig.Same(t, "the methods, and the operations", of, operations)
}

// constantsOf returns the names of the constants in the block of a file that
// begins with one of this type.
func constantsOf(t *testing.T, file, of string) (names []string) {
	t.Helper()
	parsed := rig.Value(parser.ParseFile(token.NewFileSet(), file, nil, 0))
	for _, decl := range parsed.Decls {
		block, ok := decl.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		if kind, ok := block.Specs[0].(*ast.ValueSpec).Type.(*ast.Ident); !ok || kind.Name != of {
			continue
		}
		for _, spec := range block.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}
