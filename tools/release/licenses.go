package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// thirdPartyLicenses is the file of the licence texts in the documents of a program.
const thirdPartyLicenses = thirdParty

// licenseList has a line for every module that is linked into a program: the hash of its licence texts,
// its path, and the licence that we use it under. Somebody has read the texts of each line.
const licenseList = "tools/release/licenses.txt"

// allowed are the licences that we may ship a program under. Whoever adds one has read its terms.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0"}

// thirdParty is the file with the licence texts of what is linked into a program.
const thirdParty = "THIRD-PARTY-LICENSES.txt"

// goLibrary stands for Go's own packages in the list of licences.
const goLibrary = "std"

// A module is one that is linked into a program, with the licence texts of the packages that are linked.
type module struct {
	Path    string
	Version string
	Folder  string
	Texts   map[string]string // by their paths in the module
}

// license is what licenseList says of a module.
type license struct{ Hash, Expression string }

var licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents|unlicense)([.-].*)?$`)

// stageLicenses writes the licence texts of each program beside it. It refuses a module that nobody has looked at.
func stageLicenses(ctx context.Context, r *release) error {
	licenses, all, err := checkLicenses(ctx, r, r.Source())
	if err != nil {
		return err
	}
	for _, l := range all {
		if err := sameModules(r, l); err != nil {
			return fmt.Errorf("%s for %s: %w", l.program.Name, l.target, err)
		}
		text := licenseTexts(r, l.program, l.modules, licenses)
		if err := writeFile(r.Stage(l.target, l.program.Name, "share/doc", l.program.Product, thirdPartyLicenses), text); err != nil {
			return err
		}
	}
	return nil
}

// linked are the modules of a program for a target, in the order of their paths. Go is the last.
type linked struct {
	target  target
	program program
	modules []module
}

// checkLicenses compares the list of the tree in a folder with what the programs of that tree link. It returns both.
func checkLicenses(ctx context.Context, r *release, folder string) (map[string]license, []linked, error) {
	licenses, err := readLicenses(folder)
	if err != nil {
		return nil, nil, err
	}
	found := map[string]module{}
	var all []linked
	for t, p := range builds() {
		modules, err := r.modules(ctx, folder, t, p)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, linked{t, p, modules})
		for _, m := range modules {
			if _, ok := found[m.Path]; !ok {
				found[m.Path] = module{m.Path, m.Version, m.Folder, map[string]string{}}
			}
			maps.Copy(found[m.Path].Texts, m.Texts) // other targets link other packages of a module
		}
	}
	var wrong []error
	for _, path := range slices.Sorted(maps.Keys(found)) {
		m, have := found[path], licenses[path]
		switch hash := hashOf(m.Texts); {
		case len(m.Texts) == 0:
			wrong = append(wrong, fmt.Errorf("%s %s has no licence text in %s, so it must not be shipped: ask its authors for one, or do without it", m.Path, m.Version, m.Folder))
		case have.Hash == "":
			wrong = append(wrong, fmt.Errorf("%s %s is linked, and is not in the list. Read %s in %s. If its terms allow us to ship it, add the line\n\t%s %s EXPRESSION",
				m.Path, m.Version, names(m), m.Folder, hash, m.Path))
		case have.Hash != hash:
			wrong = append(wrong, fmt.Errorf("%s %s has other licence texts than the list says. Read %s in %s. If its terms still allow us to ship it, change the line to\n\t%s %s %s",
				m.Path, m.Version, names(m), m.Folder, hash, m.Path, have.Expression))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(licenses)) {
		if _, ok := found[path]; !ok {
			wrong = append(wrong, fmt.Errorf("%s is no longer linked: remove its line", path))
		}
	}
	if len(wrong) > 0 {
		return nil, nil, fmt.Errorf("%s:\n%w", licenseList, errors.Join(wrong...))
	}
	return licenses, all, nil
}

// readLicenses reads the list of the tree in a folder.
func readLicenses(folder string) (map[string]license, error) {
	file, err := os.Open(filepath.Join(folder, licenseList))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	licenses := map[string]license{}
	last := ""
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.SplitN(line, " ", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s:%d: %q is not HASH MODULE EXPRESSION", licenseList, n, line)
		}
		path := parts[1]
		if path <= last {
			return nil, fmt.Errorf("%s:%d: %s belongs before %s: the lines are sorted by module, each once", licenseList, n, path, last)
		}
		last = path
		for _, id := range strings.FieldsFunc(parts[2], func(r rune) bool { return strings.ContainsRune(" ()", r) }) {
			if id != "AND" && !slices.Contains(allowed, id) {
				return nil, fmt.Errorf("%s:%d: %s: %s is not among the licences that licenses.go allows", licenseList, n, path, id)
			}
		}
		licenses[path] = license{parts[0], parts[2]}
	}
	return licenses, lines.Err()
}

// modules are those of linked.
func (r *release) modules(ctx context.Context, folder string, t target, p program) ([]module, error) {
	const format = `{{with .Module}}{{if not .Main}}{{.Path}}{{"\t"}}{{.Version}}{{"\t"}}{{.Dir}}{{"\t"}}{{$.Dir}}{{end}}{{end}}`
	environ := []string{"GOOS=" + t.System, "GOARCH=" + t.Architecture, "CGO_ENABLED=0"}
	out, err := r.command(ctx, folder, environ, nil, []string{"go", "list", "-deps", "-f", format, p.Package})
	if err != nil {
		return nil, err
	}
	byPath := map[string]module{}
	for line := range strings.Lines(string(out)) {
		parts := strings.Split(strings.TrimSpace(line), "\t")
		if len(parts) != 4 {
			return nil, fmt.Errorf("go list printed %q", line)
		}
		m, ok := byPath[parts[0]]
		if !ok {
			m = module{Path: parts[0], Version: parts[1], Folder: parts[2], Texts: map[string]string{}}
			byPath[m.Path] = m
		}
		// A folder below that of the module may be somebody else's work, with a licence of its own.
		for dir := parts[3]; ; dir = filepath.Dir(dir) {
			if err := m.read(dir); err != nil {
				return nil, err
			}
			if dir == m.Folder || dir == "/" {
				break
			}
		}
	}
	var modules []module
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		modules = append(modules, byPath[path])
	}
	root, err := r.output(ctx, folder, "go", "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	dir, version, _ := strings.Cut(root, "\n")
	library := module{Path: goLibrary, Version: version, Folder: dir, Texts: map[string]string{}}
	return append(modules, library), library.read(dir)
}

// read adds the licence texts of a folder of the module.
func (m module) read(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() || !licenseFile.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go" {
			continue
		}
		path := filepath.Join(folder, entry.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(m.Folder, path)
		if err != nil {
			return err
		}
		m.Texts[name] = strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n")) + "\n"
	}
	return nil
}

// sameModules compares modules with what the program itself says that it is made of.
func sameModules(r *release, l linked) error {
	info, err := buildinfo.ReadFile(r.Stage(l.target, l.program.Name, "bin", l.target.Executable(l.program.Name)))
	if err != nil {
		return err
	}
	var listed, stamped []string
	for _, m := range l.modules[:len(l.modules)-1] {
		listed = append(listed, m.Path+" "+m.Version)
	}
	for _, m := range info.Deps {
		stamped = append(stamped, m.Path+" "+m.Version)
	}
	slices.Sort(listed)
	slices.Sort(stamped)
	if !slices.Equal(listed, stamped) {
		return fmt.Errorf("it is made of the modules\n%s\nand go list names\n%s", strings.Join(stamped, "\n"), strings.Join(listed, "\n"))
	}
	return nil
}

// licenseTexts is the file that is installed with a program. A text that several modules have stands there once.
func licenseTexts(r *release, p program, modules []module, licenses map[string]license) []byte {
	var page bytes.Buffer
	fmt.Fprintf(&page, "%s %s is licensed under Apache-2.0. It contains the work of others, under the licences that follow.\n\n", p.Name, r.Version())
	owners := map[string][]string{} // by text
	var texts []string
	for _, m := range modules {
		fmt.Fprintf(&page, "  %s %s: %s\n", moduleName(m), m.Version, licenses[m.Path].Expression)
		for _, name := range slices.Sorted(maps.Keys(m.Texts)) {
			text := m.Texts[name]
			if owners[text] == nil {
				texts = append(texts, text)
			}
			owners[text] = append(owners[text], moduleName(m)+": "+filepath.ToSlash(name))
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&page, "\n%s\n%s\n\n%s", strings.Repeat("=", 80), strings.Join(owners[text], "\n"), text)
	}
	return page.Bytes()
}

func moduleName(m module) string {
	if m.Path == goLibrary {
		return "Go's standard library"
	}
	return m.Path
}

// hashOf is enough of a hash of texts to see that they have changed.
func hashOf(texts map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(h, "%s\n%d\n%s", filepath.ToSlash(name), len(texts[name]), texts[name])
	}
	return fmt.Sprintf("%.8x", h.Sum(nil))
}

func names(m module) string { return strings.Join(slices.Sorted(maps.Keys(m.Texts)), ", ") }
