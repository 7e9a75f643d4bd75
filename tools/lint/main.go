// Lint reports mistakes in Go code. go vet starts it once for each package, and keeps the result with the
// compiled packages:
//
//	go vet -vettool=bin/lint ./...
//
// It runs the analyzers of go vet and of go fix, all checks of staticcheck, errorlint, misspell, unconvert
// and unparam, and the project's own list of forbidden functions. They are linked into one program because
// they are then compiled in a fraction of the time that golangci-lint takes, which links a hundred more.
//
// A comment "//nolint:NAME // reason" at the end of a line silences the analyzer NAME on this line.
package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"codeberg.org/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/suite/fix"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/facts/deprecated"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/quickfix"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
)

// matters of taste among the checks of staticcheck.
var taste = []string{
	"QF1001", // De Morgan's law
	"QF1008", // naming an embedded field
}

func main() {
	use := analyzers()
	if foreign(os.Args[len(os.Args)-1]) {
		use = []*analysis.Analyzer{printf.Analyzer, ctrlflow.Analyzer, deprecated.Analyzer}
	}
	unitchecker.Main(use...)
}

// foreign reports whether the configuration of go vet is for a package of another module. Of such a
// package go vet wants nothing but what analyzers note for its importers. Most analyzers do without
// that, and would need longer for the server of NATS alone than for any package of this module.
func foreign(name string) bool {
	text, err := os.ReadFile(name)
	if err != nil {
		return false // it is no configuration, or the analysis says what is wrong with it
	}
	var config struct {
		VetxOnly   bool
		ModulePath string
	}
	return json.Unmarshal(text, &config) == nil && config.VetxOnly && !strings.HasPrefix(config.ModulePath, "github.com/execagent/execagent")
}

// analyzers returns all analyzers. It may be called once, because it wraps their functions.
func analyzers() []*analysis.Analyzer {
	// What a raw system call or a function of the same package returned is compared as it is.
	errors := errorlint.NewAnalyzer()
	if err := errors.Flags.Set("comparison", "false"); err != nil {
		panic(err)
	}
	all := slices.Concat(vet.Suite, fix.Suite, []*analysis.Analyzer{
		nilness.Analyzer, unusedwrite.Analyzer, // go vet has them, and leaves them out
		errors, forbidden, misspelled, unconverted, unparam, neverUsed,
	})
	for _, checks := range [][]*lint.Analyzer{quickfix.Analyzers, simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers} {
		for _, check := range checks {
			if !slices.Contains(taste, check.Analyzer.Name) {
				all = append(all, check.Analyzer)
			}
		}
	}
	// The suites of go vet and go fix share analyzers.
	slices.SortFunc(all, func(a, b *analysis.Analyzer) int { return strings.Compare(a.Name, b.Name) })
	all = slices.Compact(all)
	for _, a := range all {
		obey(a, slices.Contains([]*analysis.Analyzer{errors, forbidden, unparam}, a))
	}
	obey(explained, false)
	return append(all, explained)
}
