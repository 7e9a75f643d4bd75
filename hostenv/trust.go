package hostenv

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// trust knows which directories the user has declared trustworthy; only their configuration is read. What a stronger file says
// about a directory replaces what a weaker one says.
type trust struct {
	levels  map[string]string // directory → "trusted" or "untrusted"
	markers []string          // names that mark the root of a project
}

// newTrust reads projects.<dir>.trust_level and project_root_markers from files, weakest first.
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

// trustedDirs returns the directories from the root of cwd's project down to cwd that are trusted: by their own entry, or
// else by that of the root, or else by that of the main worktree of its repository.
func (t *trust) trustedDirs(cwd string) []string {
	root := t.projectRoot(cwd)
	inherited := t.level(root)
	if inherited == "" {
		if main := mainWorktree(root); main != "" {
			inherited = t.level(main)
		}
	}
	var dirs []string
	for dir := cwd; ; dir = filepath.Dir(dir) {
		level := t.level(dir)
		if level == "" {
			level = inherited
		}
		if level == "trusted" {
			dirs = append(dirs, dir)
		}
		if dir == root {
			break
		}
	}
	slices.Reverse(dirs)
	return dirs
}

// level returns what the files say about dir, by the name it was called or by its real one.
func (t *trust) level(dir string) string {
	if level, ok := t.levels[dir]; ok {
		return level
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		return t.levels[resolved]
	}
	return ""
}

// projectRoot returns the nearest directory at or above cwd that holds a marker, or cwd itself.
func (t *trust) projectRoot(cwd string) string {
	for dir := cwd; ; dir = filepath.Dir(dir) {
		for _, name := range t.markers {
			if isMarker(filepath.Join(dir, name), name) {
				return dir
			}
		}
		if dir == filepath.Dir(dir) {
			return cwd
		}
	}
}

// isMarker reports whether path exists. An empty .git directory is no repository.
func isMarker(path, name string) bool {
	info, err := os.Stat(path)
	if err == nil && name == ".git" && info.IsDir() {
		_, err = os.Stat(filepath.Join(path, "HEAD"))
	}
	return err == nil
}

// mainWorktree returns the directory of the main worktree when root is a linked one, else "". A linked worktree has a file
// .git with "gitdir: <main>/.git/worktrees/<name>", and that directory names the file in turn; without this the file could
// claim the trust of any repository (gitrepository-layout(5)).
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

// readLine returns the contents of a file without blanks around it, "" if it cannot be read.
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
