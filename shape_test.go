package execagent_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines is how many lines a package may have, without tests and generated files.
// A longer one has to give a part of its work to packages below it.
const maxLines = 3500

// longer are the packages that may have more than maxLines: each is one idea, with a
// bound of its own and the reason why it is not divided.
var longer = map[string]struct {
	lines int
	why   string
}{
	"agent":            {4000, "sessions and what happens in them: each method is a few lines around the same locks and lives"},
	"client":           {4500, "the handles of a session share its connection, and each outlives it in its own way"},
	"cmd/agent":        {5000, "one grammar: of each command its flags, its help, and the few lines that begin it"},
	"fsops":            {4200, "the files of the host and of a view of it share what a path, a handle and an entry are"},
	"helper/confine":   {3700, "one init: each way to confine a command is a few steps between the same first and last ones"},
	"helper/supervise": {4300, "one method for each system call, around what all of them share: the request, and how its path is found"},
	"procs":            {3800, "a process, from its start over its output to its end"},
	"protocol":         {3800, "one record for each thing that is said on the wire, and how it is read"},
	"relay":            {4000, "both ends of a stream are the same halves: what sends, and what receives"},
}

// TestPackageLines: no package has more lines than its bound.
func TestPackageLines(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		lines := 0
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if !generated.Match(text) {
				lines += bytes.Count(text, []byte("\n"))
			}
		}
		bound := maxLines
		if l, ok := longer[name]; ok {
			if bound = l.lines; lines <= maxLines {
				t.Errorf("%s has %d lines and needs no bound of its own", name, lines)
			}
		}
		if lines > bound {
			t.Errorf("%s has %d lines, %d are allowed: move a part of it to a package below it", name, lines, bound)
		}
	}
}

// generated finds the line that marks a generated file.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// TestLinuxOnly compiles all packages for macOS. Exactly those fail that the list
// linux of arch_test.go names.
func TestLinuxOnly(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-export", "-json=ImportPath,Error,DepsErrors", "./...")
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	type failure struct{ Err string }
	seen := 0
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath string
			Error      *failure
			DepsErrors []*failure
		}
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		if _, ok := rules[name]; !ok {
			continue
		}
		seen++
		var reasons []string
		for _, e := range slices.Concat([]*failure{p.Error}, p.DepsErrors) {
			if e != nil {
				reasons = append(reasons, e.Err)
			}
		}
		switch compiles := len(reasons) == 0; {
		case slices.Contains(linux, name) && compiles:
			t.Errorf("%s compiles for darwin: it is not bound to Linux, so it has to leave the list of arch_test.go", name)
		case !slices.Contains(linux, name) && !compiles:
			t.Errorf("%s does not compile for darwin:\n%s", name, strings.Join(reasons, "\n"))
		}
	}
	if seen < 20 {
		t.Errorf("go list has told of %d packages", seen) // too few to have checked anything
	}
}

var (
	// underLock finds a sentence that says that a mutex is held. The name of the
	// function has to say so too.
	underLock = regexp.MustCompile(`(?i)\b(mutex|lock|mu) (is|must be|has to be) held\b|\b(caller|callers|who calls it) (holds?|must hold|has to hold)\b.*\b(mu|mutex|lock)\b|\bholds? (the |its )?\w*\.?mu\b`)
	// equation finds a comment such as "Close is that the peer has gone", which tells
	// no event. TestComments lets "X is that of Y" pass, which compares.
	equation = regexp.MustCompile(`^\S+ (is|are) that (\w+)`)
	// citation finds citations. A comment of which nothing is left without them only
	// cites.
	citation = regexp.MustCompile(`\(?\b[\w-]+\.md( \d+(\.\d+)*)?((,| and| to) \d+(\.\d+)*)*\)?|\(?\b(RFC|section) ?[\d.]+\)?|\b\w+\([1-9]\)`)
)

// maxComment is how many columns a line with nothing but a comment may have. A tab
// counts as four.
const maxComment = 100

// TestComments: no comment is too wide, is an equation, only cites, or speaks of a
// held mutex where the name does not end in Locked. These are the faults that
// readers trip over most often; whether a comment is good no test can tell.
func TestComments(t *testing.T) {
	t.Parallel()
	functions := 0
	walkGo(t, func(path string, fset *token.FileSet, file *ast.File, text []byte) {
		if generated.Match(text) {
			return
		}
		lines := strings.Split(string(text), "\n")
		for _, group := range file.Comments {
			for _, comment := range group.List {
				position := fset.Position(comment.Pos())
				for i, line := range strings.Split(comment.Text, "\n") {
					if strings.HasPrefix(line, "//go:") || strings.HasPrefix(line, "//nolint") || strings.HasPrefix(line, "//\t") {
						continue // for programs, or a picture
					}
					whole := lines[position.Line-1+i]
					if strings.TrimSpace(whole) == strings.TrimSpace(line) && width(whole) > maxComment && !strings.Contains(line, "://") {
						t.Errorf("%s:%d: %d columns; %d are allowed", path, position.Line+i, width(whole), maxComment)
					}
				}
			}
		}
		check := func(pos token.Pos, name string, doc *ast.CommentGroup) {
			if doc == nil {
				return
			}
			position, said := fset.Position(pos), strings.Join(strings.Fields(doc.Text()), " ")
			if m := equation.FindStringSubmatch(said); m != nil && m[2] != "of" {
				t.Errorf("%s:%d: %q is an equation: say what happens, or what it is for", path, position.Line, m[0]+" …")
			}
			rest := strings.TrimPrefix(strings.TrimPrefix(citation.ReplaceAllString(said, ""), name), " ")
			if rest = strings.Trim(rest, " .,:;()"); citation.MatchString(said) && (rest == "" || rest == "is" || rest == "see" || rest == "See") {
				t.Errorf("%s:%d: %q only cites: say first what holds", path, position.Line, said)
			}
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				functions++
				check(d.Pos(), d.Name.Name, d.Doc)
				if d.Doc != nil && underLock.MatchString(d.Doc.Text()) && !strings.HasSuffix(d.Name.Name, "Locked") {
					t.Errorf("%s:%d: the comment of %s says that a mutex is held: the name has to end in Locked", path, fset.Position(d.Pos()).Line, d.Name.Name)
				}
			case *ast.GenDecl:
				if len(d.Specs) == 1 {
					check(d.Pos(), firstName(d.Specs[0]), d.Doc)
				}
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						check(s.Pos(), s.Name.Name, s.Doc)
					case *ast.ValueSpec:
						check(s.Pos(), s.Names[0].Name, s.Doc)
					}
				}
			}
		}
	})
	if functions < 1000 {
		t.Errorf("%d functions were read", functions)
	}
}

// firstName returns the first name that spec declares.
func firstName(spec ast.Spec) string {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		return s.Name.Name
	case *ast.ValueSpec:
		return s.Names[0].Name
	}
	return ""
}

// width returns the columns of a line with tabs of four.
func width(line string) int {
	return len([]rune(strings.ReplaceAll(line, "\t", "    ")))
}

// walkGo calls f for every Go file of the repository, also for those not yet
// committed.
func walkGo(t *testing.T, f func(path string, fset *token.FileSet, file *ast.File, text []byte)) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Skipf("git ls-files: %v; the files of a repository are read", err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // deleted, and not yet committed
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		f(path, fset, file, text)
	}
}
