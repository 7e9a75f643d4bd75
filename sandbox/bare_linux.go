package sandbox

import (
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A directory with HEAD, objects and refs is a repository to git(1), and what its
// configuration names is run by whoever asks for the status there or below, as
// the prompts of many shells do. So a command must not be able to make one at
// the top of a writable root. Where there is a .git, that is the repository; else
// HEAD is one more protected name: git takes an empty directory of that name for
// no repository, and looks further up.

// bareNames are what git runs or believes of a repository that lies there, and
// what would make it look for that elsewhere (gitrepository-layout(5)).
var bareNames = []string{"commondir", "config", "config.worktree", "hooks", "objects", "worktrees"}

// bareRepositories adds the rules that keep a command from making a writable root
// a bare repository, and from changing one that is there.
func (s *resolution) bareRepositories() error {
	for _, root := range slices.Sorted(maps.Keys(s.rules)) {
		if s.rules[root].Access != Write || isPseudo(root) || insideGit(root) {
			continue
		}
		found, err := s.hasRepository(root)
		if err != nil {
			return err
		}
		if found {
			continue
		}
		head, err := s.protect(path.Join(root, "HEAD"))
		if err != nil {
			return err
		}
		if head != unix.S_IFREG && head != unix.S_IFLNK {
			continue // there is none, or one that git does not take for one
		}
		for _, name := range bareNames {
			if _, err := s.protect(path.Join(root, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// insideGit tells whether name is a .git or lies in one: whoever opens that to
// a command lets it change the repository.
func insideGit(name string) bool { return strings.Contains(name+"/", "/.git/") }

// hasRepository tells whether the root has a .git that git uses, or could not be
// a repository itself.
func (s *resolution) hasRepository(root string) (bool, error) {
	dir, pinned := s.pins[root]
	if !pinned {
		if root != "/" {
			return true, nil // it does not exist
		}
		fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, err
		}
		defer unix.Close(fd)
		dir = fd
	}
	if kind, err := modeOf(dir); err != nil || kind != unix.S_IFDIR {
		return true, err // a file that may be written
	}
	kinds := map[string]uint32{}
	for _, name := range []string{".git", ".git/HEAD", ".git/objects", ".git/refs"} {
		var st unix.Stat_t
		switch err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case err == unix.EACCES:
			continue // whatever it is: the command may search no more than we do
		case err == nil && !isPlaceholder(&st):
			kinds[name] = st.Mode & unix.S_IFMT
		}
		w := watch{path: path.Join(root, name), dir: -1, name: name, want: unix.Stat_t{Mode: kinds[name]}}
		if pinned {
			w.dir = dir
		}
		s.looked = append(s.looked, w)
	}
	switch {
	case s.rules[path.Join(root, ".git")].Access == Write:
		return true, nil // it was opened: so could its hooks be changed
	case kinds[".git"] == unix.S_IFREG:
		return true, nil // it points to one, or git fails
	}
	head := kinds[".git/HEAD"]
	return (head == unix.S_IFREG || head == unix.S_IFLNK) && kinds[".git/objects"] == unix.S_IFDIR && kinds[".git/refs"] == unix.S_IFDIR, nil
}

// protect adds the rule of a protected name, and returns what is there, as
// S_IFMT has it; 0 is nothing.
func (s *resolution) protect(name string) (kind uint32, err error) {
	err = s.see("protected", name, func(o *sighting) error {
		if o.exists() {
			kind = o.stat.Mode & unix.S_IFMT
		}
		return s.rule(Rule{Path: name, Access: Read, Origin: Protected}, o)
	})
	return kind, err
}
