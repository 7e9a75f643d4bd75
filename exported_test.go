package execagent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unusedOnPurpose are exported names that no other package uses, each with its
// reason. A name without a dot is a whole package.
var unusedOnPurpose = map[string]string{
	"client":                           "what authors of harnesses import",
	"client/remote":                    "the same",
	"client/environment":               "the same",
	"client/capability":                "the same",
	"client/projection":                "the same",
	"client/projection/skills":         "the same",
	"client/threadlog":                 "the same",
	"agent.Session":                    "the life of a client over its connections: most of what Agent does is told by its methods",
	"agent.WireError":                  "the one place where errors become those of the wire, which the guides name",
	"protocol.StringID":                "the other kind of id beside NumberID",
	"fsops.MaxMissingPaths":            "a bound that the answer to its caller names",
	"helper/confine.Command":           "what the init is told, a part of its configuration that is compared as a whole",
	"helper/confine.Command.Prepare":   "the same",
	"execpolicy":                       "what the agent asks at a start, and a supervisor at an execve",
	"execpolicy/rule.Set.Networks":     "rules about hosts, for the network of the agent",
	"sandbox/enforce/internal/seccomp": "tables for the generator, which is built with C and not in every build",
}

// TestExportedNamesAreUsed: every exported name has a reason to be exported. It
//   - is used by another package, also by a test of one,
//   - belongs to the signature of a name that is used,
//   - is a method of an interface that its type implements,
//   - is an error, or a constant beside or of the type of one that is used, or
//   - stands in unusedOnPurpose.
//
// A name that only the tests of its own package use needs no capital letter.
func TestExportedNamesAreUsed(t *testing.T) {
	t.Parallel()
	tree := check(t)
	used := tree.used()
	excused := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(tree.exported)) {
		if used[name] {
			continue
		}
		pkg, _, _ := strings.Cut(name, ".")
		if unusedOnPurpose[pkg] != "" || unusedOnPurpose[name] != "" {
			excused[pkg], excused[name] = true, true
			continue
		}
		t.Errorf("nobody uses %s but its own package: give it a small letter, delete it, or say in exported_test.go whom it is for", name)
	}
	for name := range unusedOnPurpose {
		if !excused[name] {
			t.Errorf("the list of exported_test.go excuses %s, which needs no excuse", name)
		}
	}
}

// checked is the type-checked module. Objects are told apart by the names that key
// returns: a package that is imported has other types.Objects than the same
// package when it is checked itself.
type checked struct {
	exported map[string]types.Object // by key: what product code exports
	groups   map[string]token.Pos    // by key: where the const declaration of a constant begins
	uses     map[string]bool         // by key: what another package names
	ours     []*types.Package
	known    map[string]*types.Package // by path: ours and all that they import
}

// check parses and type-checks the module, with its tests. What a package imports
// comes from the compiler's export data.
func check(t *testing.T) *checked {
	t.Helper()
	type pkg struct {
		ImportPath, Dir, Export            string
		GoFiles, TestGoFiles, XTestGoFiles []string
		Standard                           bool
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-test",
		"-json=ImportPath,Dir,Export,GoFiles,TestGoFiles,XTestGoFiles,Standard", "./...")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var ours []pkg
	exports := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(p.ImportPath, " ") || strings.HasSuffix(p.ImportPath, ".test") {
			continue // a variant that go list adds for a test
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module) {
			ours = append(ours, p)
		}
	}

	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	c := &checked{exported: map[string]types.Object{}, groups: map[string]token.Pos{}, uses: map[string]bool{}, known: map[string]*types.Package{}}
	parse := func(dir string, names []string) []*ast.File {
		var files []*ast.File
		for _, name := range names {
			file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		return files
	}
	run := func(path string, files []*ast.File) *types.Package {
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		// Errors are ignored. A package x_test may use what only the test files of x
		// export, and export data has none of that; the rest is checked all the same.
		config := types.Config{Importer: imports, Error: func(error) {}}
		checkedPackage, _ := config.Check(path, fset, files, info)
		for _, object := range info.Uses {
			if pkg := object.Pkg(); pkg != nil && pkg.Path() != strings.TrimSuffix(path, "_test") {
				c.uses[key(object)] = true
			}
		}
		return checkedPackage
	}
	for _, p := range ours {
		product := parse(p.Dir, p.GoFiles)
		tests := parse(p.Dir, p.TestGoFiles)
		own := run(p.ImportPath, append(slices.Clip(product), tests...))
		run(p.ImportPath+"_test", parse(p.Dir, p.XTestGoFiles))
		c.ours = append(c.ours, own)
		c.reach(own)
		if len(product) > 0 && product[0].Name.Name != "main" {
			written := map[string]bool{} // files of product code that are not generated
			for _, file := range product {
				written[fset.File(file.Pos()).Name()] = !ast.IsGenerated(file)
				c.group(own, file)
			}
			c.note(own, func(object types.Object) bool { return written[fset.File(object.Pos()).Name()] })
		}
	}
	return c
}

// reach adds pkg and all that it imports to known.
func (c *checked) reach(pkg *types.Package) {
	if c.known[pkg.Path()] != nil {
		return
	}
	c.known[pkg.Path()] = pkg
	for _, imported := range pkg.Imports() {
		c.reach(imported)
	}
}

// group adds the exported constants of a file to groups.
func (c *checked) group(pkg *types.Package, file *ast.File) {
	for _, declaration := range file.Decls {
		d, ok := declaration.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if object := pkg.Scope().Lookup(name.Name); object != nil && name.IsExported() {
					c.groups[key(object)] = d.Pos()
				}
			}
		}
	}
}

// note adds to exported what pkg exports: names, and methods of types. product tells
// whether an object is declared in product code.
func (c *checked) note(pkg *types.Package, product func(types.Object) bool) {
	for _, name := range pkg.Scope().Names() {
		object := pkg.Scope().Lookup(name)
		if !object.Exported() || !product(object) {
			continue
		}
		c.exported[key(object)] = object
		named, ok := object.Type().(*types.Named)
		if _, isType := object.(*types.TypeName); !ok || !isType {
			continue
		}
		for method := range named.Methods() {
			if method.Exported() && product(method) {
				c.exported[key(method)] = method
			}
		}
	}
}

// used returns the names that have a reason to be exported, except for those in
// unusedOnPurpose.
func (c *checked) used() map[string]bool {
	used := maps.Clone(c.uses)
	for changed := true; changed; {
		changed = false
		mark := func(name string) {
			if !used[name] {
				used[name], changed = true, true
			}
		}
		for name, object := range c.exported {
			if used[name] {
				named(object.Type(), func(tn *types.TypeName) { mark(key(tn)) })
			}
		}
	}
	interfaces, groups := c.interfaces(), map[token.Pos]bool{}
	for name, group := range c.groups {
		groups[group] = groups[group] || used[name]
	}
	for name, object := range c.exported {
		// Callers may test for any error. A constant explains those that are declared
		// together with it, and the other values of its type.
		_, isConst := object.(*types.Const)
		if n, ok := object.Type().(*types.Named); ok && isConst && used[key(n.Obj())] || isError(object.Type()) || groups[c.groups[name]] {
			used[name] = true
		}
		if _, ok := object.(*types.TypeName); ok {
			if i, ok := object.Type().Underlying().(*types.Interface); ok && c.implementedBeside(object.Pkg(), i) {
				used[name] = true
			}
		}
		if strings.HasSuffix(name, ".Unwrap") || strings.HasSuffix(name, ".Is") {
			used[name] = true // package errors calls them, by interfaces without a name
		}
		method, ok := object.(*types.Func)
		if !ok || method.Signature().Recv() == nil {
			continue
		}
		for _, i := range interfaces[method.Name()] {
			receiver := types.Unalias(method.Signature().Recv().Type())
			if pointer, ok := receiver.(*types.Pointer); ok {
				receiver = pointer.Elem()
			}
			if implements(receiver, i) {
				used[name] = true
			}
		}
	}
	return used
}

// isError reports whether t, or a pointer to it, is an error.
func isError(t types.Type) bool {
	i := types.Universe.Lookup("error").Type().Underlying().(*types.Interface)
	return types.Implements(t, i) || types.Implements(types.NewPointer(t), i)
}

// implementedBeside reports whether a type outside pkg implements i.
func (c *checked) implementedBeside(pkg *types.Package, i *types.Interface) bool {
	for _, other := range c.ours {
		if other.Path() == pkg.Path() {
			continue
		}
		for _, name := range other.Scope().Names() {
			t, ok := other.Scope().Lookup(name).(*types.TypeName)
			if ok && !types.IsInterface(t.Type()) && implements(t.Type(), i) {
				return true
			}
		}
	}
	return false
}

// implements reports whether t or a pointer to it has the methods of i.
// It compares the signatures as text: types that were imported twice are never
// identical.
func implements(t types.Type, i *types.Interface) bool {
	methods := types.NewMethodSet(types.NewPointer(t))
	for want := range i.Methods() {
		got := methods.Lookup(want.Pkg(), want.Name())
		if got == nil && want.Exported() {
			got = methods.Lookup(nil, want.Name())
		}
		if got == nil || signature(got.Obj()) != signature(want) {
			return false
		}
	}
	return true
}

// signature returns the types of a function's parameters and results as text.
func signature(object types.Object) string {
	sig := object.Type().(*types.Signature)
	text := func(tuple *types.Tuple) string {
		var b strings.Builder
		for v := range tuple.Variables() {
			b.WriteString(types.TypeString(v.Type(), nil) + ",")
		}
		return b.String()
	}
	return text(sig.Params()) + "->" + text(sig.Results())
}

// interfaces returns all interfaces that a package of the module can name, by
// the names of their methods.
func (c *checked) interfaces() map[string][]*types.Interface {
	all := map[string][]*types.Interface{}
	add := func(scope *types.Scope) {
		for _, name := range scope.Names() {
			object, ok := scope.Lookup(name).(*types.TypeName)
			if !ok {
				continue
			}
			i, ok := object.Type().Underlying().(*types.Interface)
			if !ok {
				continue
			}
			for method := range i.Methods() {
				all[method.Name()] = append(all[method.Name()], i)
			}
		}
	}
	for _, pkg := range c.known {
		add(pkg.Scope())
	}
	for _, pkg := range c.ours {
		add(pkg.Scope())
	}
	add(types.Universe)
	return all
}

// key returns the name of an object: package.Name, or package.Type.Name for a
// method, with the path of the package in the module.
func key(object types.Object) string {
	if object.Pkg() == nil {
		return object.Name()
	}
	pkg := strings.TrimPrefix(object.Pkg().Path(), module)
	function, ok := object.(*types.Func)
	if !ok || function.Signature().Recv() == nil {
		return pkg + "." + object.Name()
	}
	receiver := types.Unalias(function.Signature().Recv().Type())
	if pointer, ok := receiver.(*types.Pointer); ok {
		receiver = types.Unalias(pointer.Elem())
	}
	if n, ok := receiver.(*types.Named); ok {
		return pkg + "." + n.Obj().Name() + "." + object.Name()
	}
	return pkg + "." + object.Name()
}

// named calls f for every named type in a type: itself, or of its elements,
// parameters, results, methods and exported members.
func named(t types.Type, f func(*types.TypeName)) {
	seen := map[types.Type]bool{}
	var walk func(t types.Type, top bool)
	walk = func(t types.Type, top bool) {
		if t == nil || seen[t] {
			return
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Alias:
			f(t.Obj())
			walk(types.Unalias(t), top)
		case *types.Named:
			f(t.Obj())
			for arg := range t.TypeArgs().Types() {
				walk(arg, false)
			}
			if top {
				walk(t.Underlying(), false)
			}
		case *types.Pointer:
			walk(t.Elem(), top)
		case *types.Slice:
			walk(t.Elem(), false)
		case *types.Array:
			walk(t.Elem(), false)
		case *types.Chan:
			walk(t.Elem(), false)
		case *types.Map:
			walk(t.Key(), false)
			walk(t.Elem(), false)
		case *types.Signature:
			for v := range t.Params().Variables() {
				walk(v.Type(), false)
			}
			for v := range t.Results().Variables() {
				walk(v.Type(), false)
			}
		case *types.Struct:
			for field := range t.Fields() {
				if field.Exported() {
					walk(field.Type(), false)
				}
			}
		case *types.Interface:
			for method := range t.Methods() {
				walk(method.Type(), false)
			}
		}
	}
	walk(t, true)
}
