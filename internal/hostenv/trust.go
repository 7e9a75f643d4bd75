package hostenv

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// trust knows which directories the configuration files declare trusted. Project layers are read
// from trusted directories only. If two files declare a level for one directory, the stronger file
// wins.
type trust struct {
	levels  map[string]string // directory → "trusted" or "untrusted"
	markers []string          // names that mark the root of a project
}

// newTrust reads projects.<dir>.trust_level and project_root_markers from
// files, weakest first.
func newTrust(files ...*tomlFile) (*trust, error) {
	t := &trust{levels: map[string]string{}, markers: []string{".git"}}
	for _, f := range files {
		if f == nil {
			continue
		}
		if err := t.merge(f.tree); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return t, nil
}

func (t *trust) merge(tree map[string]any) error {
	if value, ok := tree["projects"]; ok {
		projects, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("projects is %v, want a table", value)
		}
		for dir, value := range projects {
			project, ok := value.(map[string]any)
			if !ok {
				return fmt.Errorf("projects.%q is %v, want a table", dir, value)
			}
			switch level := project["trust_level"]; level {
			case nil:
			case "trusted", "untrusted":
				t.levels[dir] = level.(string)
			default:
				return fmt.Errorf("projects.%q.trust_level is %v, want trusted or untrusted", dir, level)
			}
		}
	}
	if value, ok := tree["project_root_markers"]; ok {
		list, ok := value.([]any)
		if !ok {
			return fmt.Errorf("project_root_markers is %v, want an array of strings", value)
		}
		t.markers = nil
		for _, value := range list {
			name, ok := value.(string)
			if !ok {
				return fmt.Errorf("project_root_markers has %v, want only strings", value)
			}
			t.markers = append(t.markers, name)
		}
	}
	return nil
}

// trustedDirs returns the trusted directories from the root of cwd's project down to cwd. The entry
// of a directory decides whether it is trusted. Without an entry, that of the root decides, and
// without that, the entry of the main worktree of its repository.
func (t *trust) trustedDirs(ctx context.Context, cwd string) ([]string, error) {
	way, err := wayTo(ctx, cwd)
	if err != nil {
		return nil, err
	}
	way, err = t.fromRoot(ctx, way)
	if err != nil {
		return nil, err
	}
	inherited := t.level(way[0])
	if inherited == "" {
		if main := mainWorktree(way[0].name); main != "" {
			real, _ := filepath.EvalSymlinks(main) // an error leaves the real name empty
			inherited = t.level(trustFolder{main, real})
		}
	}
	var dirs []string
	for _, p := range way {
		level := t.level(p)
		level = cmp.Or(level, inherited)
		if level == "trusted" {
			dirs = append(dirs, p.name)
		}
	}
	return dirs, nil
}

// trustFolder is a directory: its name in the spelling of the query, and its real name with all
// links resolved. real is empty if the links cannot be resolved.
type trustFolder struct{ name, real string }

// wayTo returns the directories from / to dir, which is absolute and clean. It resolves links step
// by step, each from the real name of the directory above. Resolving every name from / would look
// up the upper components again each time.
func wayTo(ctx context.Context, dir string) ([]trustFolder, error) {
	way := []trustFolder{{"/", "/"}}
	if dir == "/" {
		return way, nil
	}
	real := "/"
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if real != "" {
			real = realName(filepath.Join(real, filepath.Base(dir[:i])))
		}
		way = append(way, trustFolder{dir[:i], real})
	}
	return way, nil
}

// realName resolves a path in which only the last component may be a link. It returns "" if the
// path does not exist, or if the link leads nowhere.
func realName(path string) string {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return ""
	}
	return path
}

// level returns the trust level of p in the files, by its name or else by its real name. It returns
// "" if the files have no entry.
func (t *trust) level(p trustFolder) string {
	if level, ok := t.levels[p.name]; ok || p.real == "" {
		return level
	}
	return t.levels[p.real]
}

// fromRoot removes the directories above the root of the project. The root is the deepest directory
// that holds a marker, or the last directory of way if none does.
func (t *trust) fromRoot(ctx context.Context, way []trustFolder) ([]trustFolder, error) {
	for i, p := range slices.Backward(way) {
		for _, name := range t.markers {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if isMarker(filepath.Join(p.name, name), name) {
				return way[i:], nil
			}
		}
	}
	return way[len(way)-1:], nil
}

// isMarker reports whether path exists. A .git directory counts only if it holds a HEAD, because an
// empty one is not a repository.
func isMarker(path, name string) bool {
	info, err := os.Stat(path)
	if err == nil && name == ".git" && info.IsDir() {
		_, err = os.Stat(filepath.Join(path, "HEAD"))
	}
	return err == nil
}

// mainWorktree returns the directory of the main worktree if root is a linked worktree, else "". A
// linked worktree has a file .git with "gitdir: <main>/.git/worktrees/<name>", and a file in that
// directory names the .git file. Both are checked, because a .git file alone could claim the trust
// of any repository (gitrepository-layout(5)).
func mainWorktree(root string) string {
	gitFile := filepath.Join(root, ".git")
	gitDir, ok := strings.CutPrefix(readLine(gitFile), "gitdir:")
	if !ok {
		return ""
	}
	gitDir = joinPath(root, strings.TrimSpace(gitDir))
	worktrees := filepath.Dir(gitDir)
	common := filepath.Dir(worktrees)
	if filepath.Base(worktrees) != "worktrees" || filepath.Base(common) != ".git" {
		return ""
	}
	if !sameFile(joinPath(gitDir, readLine(filepath.Join(gitDir, "gitdir"))), gitFile) {
		return ""
	}
	return filepath.Dir(common)
}

func joinPath(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// readLine returns the contents of a file without surrounding blanks, or "" if the file cannot be
// read.
func readLine(path string) string {
	text, err := readBounded(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
