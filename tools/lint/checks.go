package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"sync"

	"github.com/golangci/misspell"
	"github.com/golangci/unconvert"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/buildssa"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/packages"
	"honnef.co/go/tools/unused"
	"mvdan.cc/unparam/check"
)

// uses are the functions that code may not use, by their full names, with what to do instead.
var uses = map[string]string{
	"os.Create":     "os.Create truncates whatever is there; use os.OpenFile and say what may exist",
	"os.IsNotExist": "os.IsNotExist does not unwrap; use errors.Is(err, fs.ErrNotExist)",

	"(*encoding/base64.Encoding).AppendDecode": lenient,
	"(*encoding/base64.Encoding).Decode":       lenient,
	"(*encoding/base64.Encoding).DecodeString": lenient,
}

const lenient = "encoding/base64 passes over line breaks and stray bits; use internal/strictjson"

var forbidden = &analysis.Analyzer{
	Name:     "forbidden",
	Doc:      "report the use of functions that this project forbids",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for node := range pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).PreorderSeq((*ast.Ident)(nil)) {
			if f, ok := pass.TypesInfo.Uses[node.(*ast.Ident)].(*types.Func); ok {
				if why, ok := uses[f.FullName()]; ok {
					pass.Reportf(node.Pos(), "%s", why)
				}
			}
		}
		return nil, nil
	},
}

var unconverted = &analysis.Analyzer{
	Name: "unconvert",
	Doc:  "report conversions to the type that the value has already",
	Run: func(pass *analysis.Pass) (any, error) {
		for _, at := range unconvert.Run(pass) {
			pass.Reportf(place(pass, at), "the value has this type already")
		}
		return nil, nil
	},
}

var words = sync.OnceValue(func() *misspell.Replacer {
	r := misspell.New()
	r.Compile()
	return r
})

var misspelled = &analysis.Analyzer{
	Name: "misspell",
	Doc:  "report misspelled English words in comments and strings",
	Run: func(pass *analysis.Pass) (any, error) {
		for _, file := range pass.Files {
			in := pass.Fset.File(file.FileStart)
			text, err := pass.ReadFile(in.Name())
			if err != nil {
				return nil, err
			}
			_, diffs := words().ReplaceGo(string(text))
			for _, d := range diffs {
				pass.Reportf(in.LineStart(d.Line)+token.Pos(d.Column), "%q is misspelled: %q", d.Original, d.Corrected)
			}
		}
		return nil, nil
	},
}

var unparam = &analysis.Analyzer{
	Name:     "unparam",
	Doc:      "report parameters and results that are not used, or always the same",
	Requires: []*analysis.Analyzer{buildssa.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		var c check.Checker
		c.Packages([]*packages.Package{{Fset: pass.Fset, Syntax: pass.Files, Types: pass.Pkg, TypesInfo: pass.TypesInfo}})
		c.ProgramSSA(pass.ResultOf[buildssa.Analyzer].(*buildssa.SSA).Pkg.Prog)
		issues, err := c.Check()
		for _, issue := range issues {
			pass.Reportf(issue.Pos(), "%s", issue.Message())
		}
		return nil, err
	},
}

// neverUsed needs no other package, because go vet checks a package together with its tests.
var neverUsed = &analysis.Analyzer{
	Name:     "unused",
	Doc:      "report constants, variables, functions, types and fields that nothing uses",
	Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, o := range pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result).Unused {
			pass.Reportf(place(pass, o.Position), "%s %s is unused", o.Kind, o.Name)
		}
		return nil, nil
	},
}

// place returns the position in the files of pass that at means.
func place(pass *analysis.Pass, at token.Position) token.Pos {
	for _, file := range pass.Files {
		if f := pass.Fset.File(file.FileStart); f.Name() == at.Filename {
			return f.LineStart(at.Line) + token.Pos(at.Column-1)
		}
	}
	return token.NoPos
}
