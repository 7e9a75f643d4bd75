package resolve

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

func TestFresh(t *testing.T) {
	t.Parallel()
	rename := func(from, to string) func(string) error {
		return func(base string) error { return os.Rename(filepath.Join(base, from), filepath.Join(base, to)) }
	}
	remove := func(name string) func(string) error {
		return func(base string) error { return os.RemoveAll(filepath.Join(base, name)) }
	}
	makeDir := func(name string) func(string) error {
		return func(base string) error { return os.Mkdir(filepath.Join(base, name), 0o755) }
	}
	write := func(name, text string) func(string) error {
		return func(base string) error { return os.WriteFile(filepath.Join(base, name), []byte(text), 0o644) }
	}
	link := func(target, name string) func(string) error {
		return func(base string) error { return os.Symlink(target, filepath.Join(base, name)) }
	}
	all := func(steps ...func(string) error) func(string) error {
		return func(base string) error {
			for _, step := range steps {
				if err := step(base); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name   string
		change func(base string) error
		fresh  bool
	}{
		{"nothing", all(), true},
		{"a file in a root", write("repo/x", ""), true},
		{"a directory in a root", makeDir("repo/d"), true},
		{"what is denied is written", write("repo/denied/x", ""), true},
		{"what is denied is made again", all(remove("repo/denied"), makeDir("repo/denied")), true},
		{"root removed", remove("repo"), false},
		{"root made again", all(rename("ro", "old"), makeDir("ro")), false},
		{"root moved behind a link", all(rename("ro", "old"), link("old", "ro")), false},
		{"parent moved behind a link", all(rename("deep", "old"), link("old", "deep")), false},
		{"missing root appears", makeDir("gone"), false},
		{"missing protected name appears", makeDir("repo/.aws"), false},
		{"missing protected name appears as a link", link("x", "repo/.aws"), false},
		{"skipped path appears", write("repo/skipped", ""), false},
		{"skipped path goes", remove("repo/there"), false},
		{"denied path goes", remove("repo/denied"), false},
		{"denied path becomes a link", all(remove("repo/denied"), link("x", "repo/denied")), false},
		{"pointer file is written", write("repo/.git", "gitdir: ../y"), false},
		{"pointer file is replaced", all(write("new", "gitdir: ../x"), rename("new", "repo/.git")), false},
		{"pointer file goes", remove("repo/.git"), false},
		{"git directory gets a common one", write("plain.git/commondir", "../common"), false},
		{"common directory is named anew", write("work.git/commondir", "../other"), false},
		{"common directory is not named any more", remove("work.git/commondir"), false},
		{"file in the common directory", write("common/config", ""), true},
		{"common directory goes", remove("common"), false},
		{"link is turned", all(remove("link"), link("ro", "link")), false},
		{"link is made again", all(remove("link"), link("linked", "link")), false},
		{"private path appears", makeDir("private"), false},
		{"base of a glob becomes a link", all(rename("globbed", "old"), link("old", "globbed")), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base := sandboxtest.Sow(t, "repo/.git=gitdir: ../x", "repo/denied/", "repo/there", "ro/", "deep/er/root/", "linked/", "link -> linked", "globbed/",
				"plain/.git=gitdir: ../plain.git", "plain.git/HEAD", "work/.git=gitdir: ../work.git", "work.git/commondir=../common", "common/")
			r, err := resolve(t, asked(base, "write $/repo", "write $/plain", "write $/work", "denied $/repo/denied", "read $/ro", "read $/deep/er/root", "read $/gone",
				"skip read $/repo/skipped", "skip read $/repo/there", "read $/link", "private $/private", "glob $/globbed/*"))
			rig.Must(t, err)
			rig.Is(t, r.Fresh(), true, "fresh at first")
			rig.Must(t, tt.change(base))
			rig.Is(t, r.Fresh(), tt.fresh, "fresh")
		})
	}
}

// TestFreshAtOnce calls Close while other goroutines call Fresh.
func TestFreshAtOnce(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "repo/")
	r := rig.Value(resolve(t, asked(base, "read /", "write $/repo")))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for r.Fresh() {
			}
		})
	}
	r.Close()
	wg.Wait()
	rig.Is(t, r.Fresh(), false, "fresh after Close")
}

// ordinary resolves the policy of an ordinary request in real directories.
func ordinary(b *testing.B) (*sandbox.Policy, *Resolved) {
	b.Helper()
	base := b.TempDir()
	repo := filepath.Join(base, "home", "user", "src", "project")
	rig.Must(b, os.MkdirAll(filepath.Join(repo, ".git"), 0o755))
	p, err := sandbox.Profile{
		Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlaceProjectRoots, Access: sandbox.Write},
			{Place: sandbox.PlaceSlashTmp, Access: sandbox.Write},
			{Place: sandbox.PlaceProjectRoots, Path: ".git", Access: sandbox.Read, SkipMissing: true},
		},
		Cwd:            repo,
		WorkspaceRoots: []string{repo},
	}.Compile()
	rig.Must(b, err)
	r := rig.Value(Policy(p))
	b.Cleanup(r.Close)
	return p, r
}

func BenchmarkResolve(b *testing.B) {
	p, _ := ordinary(b)
	for b.Loop() {
		r := rig.Value(Policy(p))
		r.Close()
	}
}

func BenchmarkFresh(b *testing.B) {
	_, r := ordinary(b)
	for b.Loop() {
		rig.Is(b, r.Fresh(), true, "fresh")
	}
}
