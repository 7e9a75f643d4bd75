package resolve

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

func TestFresh(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/fresh.txt", "fresh", 3) {
		name, script, want := row[0], row[1], row[2] == "fresh"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := sandboxtest.Sow(t, "repo/.git=gitdir: ../x", "repo/denied/", "repo/there", "ro/", "deep/er/root/", "linked/", "link -> linked", "globbed/",
				"plain/.git=gitdir: ../plain.git", "plain.git/HEAD", "work/.git=gitdir: ../work.git", "work.git/commondir=../common", "common/")
			r, err := resolve(t, asked(base, "write $/repo", "write $/plain", "write $/work", "denied $/repo/denied", "read $/ro", "read $/deep/er/root", "read $/gone",
				"skip read $/repo/skipped", "skip read $/repo/there", "read $/link", "private $/private", "glob $/globbed/*"))
			rig.Must(t, err)
			rig.Is(t, r.Fresh(), true, "fresh at first")
			change := exec.Command("sh", "-ec", script)
			change.Dir = base
			rig.Must(t, change.Run())
			rig.Is(t, r.Fresh(), want, "fresh")
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
