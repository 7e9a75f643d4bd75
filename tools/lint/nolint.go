package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// directive matches a comment that silences analyzers on its line. golangci-lint has the same form.
var directive = regexp.MustCompile(`^//nolint(?::([\w,]+))?(.*)$`)

// obey makes the analyzer name itself in what it reports, and report nothing in generated files and on
// lines that silence it. If outside is true, it reports nothing in tests either.
func obey(a *analysis.Analyzer, outside bool) {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		quiet := *pass
		quiet.Report = func(d analysis.Diagnostic) {
			name := pass.Fset.Position(d.Pos).Filename
			if outside && strings.HasSuffix(name, "_test.go") {
				return
			}
			if file := fileOf(pass, d.Pos); file == nil || !ast.IsGenerated(file) && !silenced(pass.Fset, file, d.Pos, a.Name) {
				d.Message += " (" + a.Name + ")"
				pass.Report(d)
			}
		}
		return run(&quiet)
	}
}

func fileOf(pass *analysis.Pass, pos token.Pos) *ast.File {
	i := slices.IndexFunc(pass.Files, func(f *ast.File) bool { return f.FileStart <= pos && pos <= f.FileEnd })
	if i < 0 {
		return nil
	}
	return pass.Files[i]
}

// silenced reports whether a comment on the line of pos names the analyzer.
func silenced(fset *token.FileSet, file *ast.File, pos token.Pos, analyzer string) bool {
	line := fset.Position(pos).Line
	for _, group := range file.Comments {
		for _, c := range group.List {
			if m := directive.FindStringSubmatch(c.Text); m != nil && fset.Position(c.Pos()).Line == line &&
				slices.Contains(strings.Split(m[1], ","), analyzer) {
				return true
			}
		}
	}
	return false
}

// explained reports comments that silence without the name of an analyzer or without a reason.
var explained = &analysis.Analyzer{
	Name: "nolint",
	Doc:  "report nolint comments that do not say what they silence, or why",
	Run: func(pass *analysis.Pass) (any, error) {
		for _, file := range pass.Files {
			for _, group := range file.Comments {
				for _, c := range group.List {
					m := directive.FindStringSubmatch(c.Text)
					if m != nil && (m[1] == "" || !strings.HasPrefix(m[2], " // ")) {
						pass.Reportf(c.Pos(), "write //nolint:ANALYZER // and the reason")
					}
				}
			}
		}
		return nil, nil
	},
}
