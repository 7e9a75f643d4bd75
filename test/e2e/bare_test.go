package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestBareRepository: a command can write to its workspace and to the temporary directory, but it
// cannot turn either into a git repository with a configuration of its own making. If it could, a
// git status that somebody runs there outside would execute what the command has planted.
func TestBareRepository(t *testing.T) {
	const plant = `
		cd "$1" || exit 9
		mark=$2
		{
			rm -rf HEAD; mv HEAD gone; rmdir HEAD
			git init -q --bare .
			mkdir -p objects refs hooks planted/objects planted/refs
			echo 'ref: refs/heads/main' >HEAD || { echo 'ref: refs/heads/main' >head; mv -fT head HEAD; }
			printf '[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = "touch %s; false"\n' "$mark" >planted/config
			cp planted/config config || echo planted >commondir
		} 2>/dev/null
		ls -A`
	for i, tt := range []struct {
		name string
		dir  string   // what is planted in
		make []string // directories and files below the base
		env  string
	}{
		{"a part of a repository", "mono/pkg", []string{"mono/.git/", "mono/pkg/"}, ""},
		{"a new project", "new", []string{"new/"}, ""},
		{"a project with an empty .git", "new", []string{"new/.git/"}, ""},
		{"a project with half a .git", "new", []string{"new/.git/HEAD", "new/.git/objects/"}, ""},
		{"the temporary directory", "tmp", []string{"tmp/", "work/"}, "tmp"},
		{"a project with a file HEAD", "new", []string{"new/HEAD"}, ""},
		{"a bare repository", "bare", []string{"bare/HEAD", "bare/config", "bare/objects/", "bare/refs/"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if i > 0 {
				rig.Tier(t, rig.Merge)
			}
			base := rig.Value(filepath.EvalSymlinks(t.TempDir()))
			for _, name := range tt.make {
				path := filepath.Join(base, name)
				if strings.HasSuffix(name, "/") {
					rig.Must(t, os.MkdirAll(path, 0o755))
					continue
				}
				rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("ref: refs/heads/main\n"), 0o644))
			}
			if tt.name == "a part of a repository" {
				git(t, base+"/mono", "init", "-q")
			}
			dir, mark := filepath.Join(base, tt.dir), filepath.Join(t.TempDir(), "mark")
			environ, workspace := gitEnviron(), dir
			if tt.env != "" {
				environ, workspace = append(environ, "TMPDIR="+filepath.Join(base, tt.env)), base+"/work"
			}
			rig.Must(t, os.Mkdir(dir+"/sub", 0o755))
			cmd := rig.Command(t, rig.Agent(t), "sandbox", "--workspace", workspace, "--", "sh", "-c", plant, "sh", dir, mark)
			cmd.Env = environ
			said := says(t, cmd)
			has(t, said, "planted")
			lacks(t, said, "exit ")
			unharmed(t, mark, environ, dir, dir+"/sub")
			if tt.name == "a part of a repository" {
				rig.Is(t, git(t, dir, "rev-parse", "--show-toplevel"), base+"/mono\n", "the repository")
			}
		})
	}
}

// TestPartOfRepository: while a command runs in a folder of a repository, git works there as
// usual, inside the sandbox and outside. What the command leaves does not become a repository of
// its own either, whatever later commands add.
func TestPartOfRepository(t *testing.T) {
	base := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	dir, mark := base+"/mono/pkg", t.TempDir()+"/mark"
	rig.Must(t, os.MkdirAll(dir, 0o755))
	git(t, base+"/mono", "init", "-q")
	git(t, base+"/mono", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "--allow-empty", "-m", "x")
	start := func(script string) (finish func() string) {
		t.Helper()
		cmd := exec.Command(rig.Agent(t), "sandbox", "--workspace", dir, "--", "sh", "-c", script+"\necho ready; read -r _ || true", "sh", mark)
		cmd.Dir, cmd.Env = dir, gitEnviron()
		a := connect(t, cmd)
		var said strings.Builder
		for line := a.line(t); line != "ready"; line = a.line(t) {
			said.WriteString(line + "\n")
		}
		return func() string {
			_ = a.stdin.Close()
			rig.Is(t, a.ended(t), "exit status 0", "%s", &said)
			return said.String()
		}
	}
	finish := start("git diff HEAD && git log --oneline HEAD && git status --short")
	rig.Is(t, git(t, dir, "diff", "HEAD"), "", "said")
	rig.Is(t, git(t, dir, "status", "--short"), "", "git sees")
	has(t, finish(), " x\n")
	const plant = `
		mkdir -p objects refs refs/heads; rm -rf commondir refs/x
		echo 'ref: refs/heads/main' >HEAD
		printf '[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = "touch %s; false"\n' "$1" >config`
	for range 3 {
		finish := start("{ " + plant + "\n} 2>/dev/null")
		unharmed(t, mark, gitEnviron(), dir, base+"/mono")
		finish()
		unharmed(t, mark, gitEnviron(), dir, base+"/mono")
	}
	rig.Is(t, git(t, dir, "rev-parse", "--show-toplevel"), base+"/mono\n", "the repository")
}

// unharmed fails if git status, in one of the folders, runs what a command has planted there.
func unharmed(t *testing.T, mark string, environ []string, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		status := rig.Command(t, "git", "status")
		status.Dir, status.Env = dir, environ
		out := says(t, status) // it may be no repository
		if _, err := os.Stat(mark); err == nil {
			t.Fatalf("git status in %s ran what the command had planted: %s", dir, out)
		}
	}
}

func gitEnviron() []string { return append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null") }

// git runs git without the configuration of the user.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := rig.Command(t, "git", args...)
	cmd.Dir, cmd.Env = dir, gitEnviron()
	out, err := cmd.Output()
	rig.Must(t, err)
	return string(out)
}
