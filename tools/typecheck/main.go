// Typecheck reports whether packages compile for another system, without compiling them:
//
//	typecheck linux/arm64 ./cmd/...
//
// It checks the types of the packages and of all that they import, as the files and constants of that
// system have them. That finds what is missing there, in a thirtieth of the time that a compilation takes.
// Of the standard library it reads the declarations alone. What only the compiler and the linker see,
// such as a fault in assembly, is left to make cross.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 3 || strings.Count(os.Args[1], "/") != 1 {
		fmt.Fprintln(os.Stderr, "usage: typecheck GOOS/GOARCH PACKAGE...")
		os.Exit(2)
	}
	if err := check(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "typecheck %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	ImportMap  map[string]string
	Standard   bool
}

func check(system string, patterns []string) error {
	goos, goarch, _ := strings.Cut(system, "/")
	sizes := types.SizesFor("gc", goarch)
	if sizes == nil {
		return fmt.Errorf("the compiler does not know %q", goarch)
	}
	list := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Standard", "--"}, patterns...)...)
	list.Env = append(list.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	// go list -deps prints a package after all that it imports.
	known := imported{"unsafe": types.Unsafe}
	files := token.NewFileSet()
	for packages := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("what go list prints: %w", err)
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		syntax, err := parse(files, p)
		if err != nil {
			return err
		}
		var wrong []error
		config := types.Config{
			Importer: mapped{known, p.ImportMap}, Sizes: sizes, FakeImportC: true,
			IgnoreFuncBodies: p.Standard,
			Error:            func(err error) { wrong = append(wrong, err) },
		}
		known[p.ImportPath], _ = config.Check(p.ImportPath, files, syntax, nil) // Error has got the errors
		if len(wrong) > 0 {
			return errors.Join(wrong...)
		}
	}
}

func parse(files *token.FileSet, p listed) ([]*ast.File, error) {
	var syntax []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		syntax = append(syntax, file)
	}
	return syntax, nil
}

// imported holds the packages that were checked, by their paths.
type imported map[string]*types.Package

// mapped is imported with the names that one package has for others. The standard library has such names
// for the packages that it vendors.
type mapped struct {
	known imported
	names map[string]string
}

func (m mapped) Import(path string) (*types.Package, error) {
	if name, ok := m.names[path]; ok {
		path = name
	}
	if p := m.known[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed", path)
}
