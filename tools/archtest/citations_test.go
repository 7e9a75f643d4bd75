package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// contract is the folder of the pages that comments cite without a folder.
const contract = "docs/protocol"

var (
	// citedPage finds a page, with a folder unless the page lies in contract. It
	// passes over pages in capitals: SKILL.md and the like belong to others.
	citedPage = regexp.MustCompile(`(?:^|[^A-Za-z0-9_./-])((?:[A-Za-z0-9_.-]+/)*[a-z0-9-]+\.md)\b`)
	// citedSections finds the numbers behind a page: "rpc.md 4.6", "sandbox.md 6.8
	// and 14.3", "rpc.md 3 to 6", "sandbox.md, sections 7, 13 and 14.5".
	citedSections = regexp.MustCompile(`^(?:,? \(?sections?)? ([0-9]+(?:\.[0-9]+)*(?:(?:, | and |, and | to )[0-9]+(?:\.[0-9]+)*)*)`)
	sectionNumber = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)*`)
	// numberedHeading finds the heading of a section, at any depth.
	numberedHeading = regexp.MustCompile(`(?m)^#+ ([0-9]+(?:\.[0-9]+)*)\b`)
	// mdLink finds a link to a file of the repository, or to a section of it or of the same page.
	mdLink = regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]+)?\)`)
	// mdHeading finds a heading, and notInAnchor what GitHub leaves out of its anchor.
	mdHeading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)
	// decision finds the number of a decision (D and a number): these are in a page
	// that is not in the tree.
	decision = regexp.MustCompile(`\bD[1-9][0-9]?(?:\.[0-9]+)?\b`)
	// machinePath finds an absolute path that only some developer's machine has.
	// Examples may use the paths below /srv that exampleInSrv lists.
	machinePath  = regexp.MustCompile("(?:^|[\\s\"'`(=:,])(?:file://)?/(?:work|opt|root)(?:/|\\b)|/srv/[a-z]+")
	exampleInSrv = []string{"/srv/w", "/srv/agent", "/srv/ws", "/srv/project", "/srv/registry", "/srv/cap", "/srv/tmp"}
)

// A remark is the text of a comment or of a whole document, joined to one line.
type remark struct {
	where string // FILE:LINE:COLUMN of a comment, FILE of a document
	text  string
}

// TestCitations: the pages that comments and documents cite are in the tree and
// have the sections cited. A reader who follows a citation has nothing but the
// tree.
func TestCitations(t *testing.T) {
	t.Parallel()
	sections := map[string][]string{} // of each page of the contract
	pages, err := filepath.Glob(contract + "/*.md")
	must(t, err)
	for _, page := range pages {
		text, name := read(t, page), path.Base(page)
		sections[name] = []string{}
		for _, heading := range numberedHeading.FindAllStringSubmatch(text, -1) {
			if slices.Contains(sections[name], heading[1]) {
				t.Errorf("%s has two sections %s", page, heading[1])
			}
			sections[name] = append(sections[name], heading[1])
		}
	}
	count := 0
	for _, r := range remarks(t) {
		for _, at := range citedPage.FindAllStringSubmatchIndex(r.text, -1) {
			page, rest := r.text[at[2]:at[3]], r.text[at[3]:]
			numbers, ok := sections[page]
			if !ok {
				if !exists(page) && !exists(path.Join(path.Dir(strings.SplitN(r.where, ":", 2)[0]), page)) {
					t.Errorf("%s cites %s, which is not in the tree", r.where, page)
				}
				continue
			}
			cited := citedSections.FindStringSubmatch(rest)
			if cited == nil {
				if path.Ext(r.where) != ".md" { // a document may cite a whole page
					t.Errorf("%s cites %s without a section", r.where, page)
				}
				continue
			}
			for _, number := range sectionNumber.FindAllString(cited[1], -1) {
				if count++; !slices.Contains(numbers, number) {
					t.Errorf("%s cites %s %s, which %s does not have", r.where, page, number, path.Join(contract, page))
				}
			}
		}
	}
	enough(t, "sections are cited", count, 250)
}

// TestLinks: the files and sections that documents link to are in the tree.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, r := range remarks(t) {
		if path.Ext(r.where) != ".md" {
			continue
		}
		for _, link := range mdLink.FindAllStringSubmatch(r.text, -1) {
			target := r.where
			if link[1] != "" {
				target = path.Join(path.Dir(r.where), link[1])
			}
			if !exists(target) || path.Ext(target) == ".md" && !anchored(t, target, link[2]) {
				t.Errorf("%s links to %s%s, which is not in the tree", r.where, target, link[2])
			}
		}
	}
}

// anchored reports whether a page has the section of an anchor; "" is the page.
func anchored(t *testing.T, page, anchor string) bool {
	t.Helper()
	return anchor == "" || slices.ContainsFunc(mdHeading.FindAllStringSubmatch(read(t, page), -1), func(heading []string) bool {
		return anchor == "#"+strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")
	})
}

// TestNothingFromElsewhere: comments and documents cite no numbered decision, and
// documents name no path of a developer's machine. Nobody else can look them up.
func TestNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	for _, r := range remarks(t) {
		for _, number := range decision.FindAllString(r.text, -1) {
			t.Errorf("%s names %s: say what was decided", r.where, number)
		}
		if path.Ext(r.where) != ".md" {
			continue // comments may: tests use such paths because they do not exist
		}
		for _, name := range machinePath.FindAllString(r.text, -1) {
			if !slices.Contains(exampleInSrv, name) {
				t.Errorf("%s names the path %q of some machine", r.where, name)
			}
		}
	}
}

// remarks returns the comments of all Go files, and every document, script and
// manifest as a whole.
func remarks(t *testing.T) []remark {
	t.Helper()
	var all []remark
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			base := entry.Name()
			hidden := strings.HasPrefix(base, ".") && base != "." && base != ".ci"
			if hidden || base == "bin" || base == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case path.Ext(name) == ".go":
			f, err := parser.ParseFile(files, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, group := range f.Comments {
				all = append(all, remark{files.Position(group.Pos()).String(), oneLine(group.Text())})
			}
		case slices.Contains([]string{".md", ".txtar", ".py", ".sh", ".proto", ".yaml", ".yml"}, path.Ext(name)),
			slices.Contains([]string{"Makefile", "Dockerfile", "run"}, path.Base(name)):
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			all = append(all, remark{name, oneLine(string(text))})
		}
		return nil
	})
	must(t, err)
	return all
}

// oneLine joins the lines of a text: a citation may be broken over two.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// exists reports whether a file is in the tree.
func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// walkStep finds a step of a walk: its cells are a file, names that the file declares, and text.
var walkStep = regexp.MustCompile("(?m)^\\| `([a-z_/]+\\.go)` \\| (`[^|]+`) \\| ")

// TestWalks: the files that the walks of ARCHITECTURE.md go through are in the tree, and declare the
// functions and types beside them.
func TestWalks(t *testing.T) {
	t.Parallel()
	steps := walkStep.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1)
	enough(t, "steps in ARCHITECTURE.md", len(steps), 50)
	for _, step := range steps {
		declared := declarations(t, step[1])
		for name := range strings.SplitSeq(step[2], ", ") {
			if name = strings.Trim(name, "`"); !declared[name] {
				t.Errorf("ARCHITECTURE.md names %s of %s, which does not declare it", name, step[1])
			}
		}
	}
}

// declarations returns what a Go file declares outside functions. A method has the name of its type
// before its own, as in Session.start.
func declarations(t *testing.T, name string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	must(t, err)
	declared := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				of = strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*") + "."
			}
			declared[of+d.Name.Name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					declared[spec.Name.Name] = true
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						declared[n.Name] = true
					}
				}
			}
		}
	}
	return declared
}

// filePath finds a code span that is the path of a Go file.
var filePath = regexp.MustCompile("`([a-z_]+(?:/[a-z_]+)+\\.go)`")

// TestFilesInDocs: the Go files that ARCHITECTURE.md, CONTRIBUTING.md and the pages of docs/dev name
// with their folder are in the tree.
func TestFilesInDocs(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/dev/*.md")
	must(t, err)
	for _, page := range append(pages, "ARCHITECTURE.md", "CONTRIBUTING.md") {
		for _, found := range filePath.FindAllStringSubmatch(read(t, page), -1) {
			if !exists(found[1]) {
				t.Errorf("%s names %s, which is not in the tree", page, found[1])
			}
		}
	}
}
