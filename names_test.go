package execagent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// guides are the documents that name things in the tree for developers. Records of
// decisions (docs/adr) are none: they name what there was when they were written.
var guides = []string{"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/protocol/README.md", "docs/protocol/rpc.md", "docs/protocol/sandbox.md",
	"docs/protocol/supervised.md", "docs/protocol/execcheck.md"}

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	// The owner of a dotted name is a package or a type: `rpc.Conn`,
	// `relay/socket.MaxMessage`, `Server.authenticate`.
	dottedName = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9]*(?:/[a-z0-9]+)*)\.([A-Za-z][A-Za-z0-9]*)$`)
	// A file has its path from the root, or only its name in the package that the
	// text is about.
	goFile     = regexp.MustCompile(`^[a-z0-9_]+(?:/[a-z0-9_]+)*\.go$`)
	makeTarget = regexp.MustCompile(`^make ([a-z][a-z-]*)`)
	dataFile   = regexp.MustCompile(`^[a-z0-9]+(?:/[a-z0-9_-]+)+\.(?:jsonl?|proto|py|sh|txtar|yaml|yml)$`)
	testName   = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*$`)
	lowerName  = regexp.MustCompile(`^[a-z]+\.[a-z]+$`)
	// A folder has a slash: `docs/adr`, `relay/relaypb`, `internal/lobby`.
	folder = regexp.MustCompile(`^[a-z]+(?:/[a-z0-9]+)+$`)
)

// declared has the names that a guide may use.
type declared struct {
	packages map[string]map[string]bool // names by package: by its folder, and by the last part of that
	types    map[string]map[string]bool // fields and methods by type, of all packages together
	tests    map[string]bool            // functions without a receiver
	files    map[string]bool            // Go files, by base name
	targets  map[string]bool            // of the Makefile
}

// TestNamesInGuides: the packages, types, functions, files and targets of make that
// a guide names are in the tree. A guide that names what was renamed long ago is
// worse than none.
func TestNamesInGuides(t *testing.T) {
	t.Parallel()
	have := declarations(t)
	count := 0
	for _, page := range guides {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range codeSpan.FindAllStringSubmatch(string(text), -1) {
			known, ours := have.knows(span[1])
			if strings.HasPrefix(page, contract) && lowerName.MatchString(span[1]) {
				continue // a word of the wire or of the system, such as memory.max
			}
			if ours {
				count++
			}
			if ours && !known {
				t.Errorf("%s names %s, which is not in the tree", page, span[1])
			}
		}
	}
	if least := 100; count < least {
		t.Errorf("the guides name %d things of ours, want at least %d", count, least) // does an expression no longer fit?
	}
}

// knows tells whether span has the form of a name of this module, and whether there
// is such a thing.
func (d *declared) knows(span string) (known, ours bool) {
	if goFile.MatchString(span) {
		return exists(span) || d.files[span], true
	}
	if m := makeTarget.FindStringSubmatch(span); m != nil {
		return d.targets[m[1]], true
	}
	if dataFile.MatchString(span) {
		return exists(span), true
	}
	if m := dottedName.FindStringSubmatch(span); m != nil {
		owner, name := m[1], m[2]
		if exists(span) || name == "md" || name == "proto" { // files; TestCitations checks pages
			return false, false
		}
		names, isPackage := d.packages[owner]
		members, isType := d.types[owner]
		return names[name] || members[name], isPackage || isType
	}
	if testName.MatchString(span) {
		return d.tests[span], true
	}
	if folder.MatchString(span) {
		first, _, _ := strings.Cut(span, "/")
		if first == "fs" || first == "http" || first == "process" { // methods of the wire
			return false, false
		}
		return exists(span), exists(first)
	}
	return false, false
}

// declarations reads the Makefile and all Go files.
func declarations(t *testing.T) *declared {
	t.Helper()
	d := &declared{
		packages: map[string]map[string]bool{}, types: map[string]map[string]bool{},
		tests: map[string]bool{}, files: map[string]bool{}, targets: map[string]bool{},
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		d.targets[rule[1]] = true
	}
	add := func(table map[string]map[string]bool, owner, name string) {
		if table[owner] == nil {
			table[owner] = map[string]bool{}
		}
		table[owner][name] = true
	}
	files := token.NewFileSet()
	err = filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".go" {
			return err
		}
		f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		d.files[path.Base(name)] = true
		inPackage := func(ident string) {
			add(d.packages, path.Dir(name), ident)
			add(d.packages, path.Base(path.Dir(name)), ident)
		}
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil {
					inPackage(decl.Name.Name)
					d.tests[decl.Name.Name] = true
				} else {
					add(d.types, receiver(decl), decl.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, ident := range spec.Names {
							inPackage(ident.Name)
						}
					case *ast.TypeSpec:
						inPackage(spec.Name.Name)
						for _, field := range fields(spec.Type) {
							add(d.types, spec.Name.Name, field)
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// receiver returns the name of the type of a method.
func receiver(decl *ast.FuncDecl) string {
	for of := decl.Recv.List[0].Type; ; {
		switch e := of.(type) {
		case *ast.StarExpr:
			of = e.X
		case *ast.IndexExpr:
			of = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// fields returns the names of the fields of a struct or the methods of an interface.
func fields(of ast.Expr) []string {
	var list *ast.FieldList
	switch of := of.(type) {
	case *ast.StructType:
		list = of.Fields
	case *ast.InterfaceType:
		list = of.Methods
	default:
		return nil
	}
	var names []string
	for _, field := range list.List {
		for _, ident := range field.Names {
			names = append(names, ident.Name)
		}
	}
	return names
}
