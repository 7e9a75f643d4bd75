package resolve

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

// git(1) treats a directory with HEAD, objects and refs as a repository. "git
// status" there or below runs programs that the repository's configuration names,
// and the prompts of many shells call it. So a command must not be able to make a
// repository at the top of a writable root. A root whose .git is a repository or a
// pointer file is safe: git looks there first. Any other root gets one more
// protected name or two. While a command runs, an empty directory is at each of
// them, as a placeholder:
//
//   - HEAD: git does not treat a directory as a repository if its HEAD is a
//     directory, and looks further up.
//   - If the root lies inside another repository, a directory HEAD would do harm:
//     "git diff HEAD" means a revision, and git would ask whether the file is
//     meant. There the names are refs and commondir, or objects and commondir if
//     the root has a refs already. Without refs or objects there is no repository
//     once the command has ended. And while it runs, git fails in anything that
//     looks like a repository, because it reads the file commondir, which is a
//     directory.

// repositoryNames are the files and directories of a bare repository that git
// runs or trusts, and those that lead git elsewhere for them
// (gitrepository-layout(5)). They are protected if there is such a repository.
var repositoryNames = []string{"HEAD", "commondir", "config", "config.worktree", "hooks", "objects", "refs", "worktrees"}

// bareRepositories adds the rules that prevent a command from making a writable
// root a bare repository, and from changing an existing one.
func (s *resolution) bareRepositories() error {
	for _, root := range slices.Sorted(maps.Keys(s.rules)) {
		if s.rules[root].Access != sandbox.Write || pathname.IsPseudo(root) || insideGit(root) {
			continue
		}
		names, err := s.namesOf(root)
		if err != nil {
			return err
		}
		for _, name := range names {
			err := s.see("protected", path.Join(root, name), func(o *sighting) error {
				return s.rule(sandbox.Rule{Path: o.asked, Access: sandbox.Read, Origin: sandbox.Protected}, o)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// insideGit reports whether name is a .git or lies in one. A client that lets a
// command write there wants it to change the repository, so nothing is protected.
func insideGit(name string) bool { return strings.Contains(name+"/", "/.git/") }

// namesOf returns the names in a writable root that must be protected, and
// remembers for Fresh which paths it looked at.
func (s *resolution) namesOf(root string) ([]string, error) {
	dir, pinned := s.pins[root]
	if !pinned {
		if root != "/" {
			return nil, nil // it does not exist
		}
		fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		dir = fd
	}
	if kind, err := FileKind(dir); err != nil || kind != unix.S_IFDIR {
		return nil, err // the root is a file
	}
	// look returns the S_IFMT bits of the object at a name, 0 if there is none.
	look := func(name string) uint32 {
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == unix.EACCES {
			return 0 // the command cannot look there either
		}
		w := watch{path: path.Join(root, name), dir: -1, name: name}
		if err == nil && !placeholder.IsPlaceholder(&st) {
			w.want.Mode = st.Mode & unix.S_IFMT
		}
		if pinned {
			w.dir = dir
		}
		s.looked = append(s.looked, w)
		return w.want.Mode
	}
	isFile := func(kind uint32) bool { return kind == unix.S_IFREG || kind == unix.S_IFLNK }
	switch git := look(".git"); {
	case s.rules[path.Join(root, ".git")].Access == sandbox.Write:
		return nil, nil // an entry opens it, and so its hooks
	case git == unix.S_IFREG:
		return nil, nil // it points to a repository, or git fails
	case git == unix.S_IFDIR && isFile(look(".git/HEAD")) && look(".git/objects") == unix.S_IFDIR && look(".git/refs") == unix.S_IFDIR:
		return nil, nil
	}
	switch {
	case isFile(look("HEAD")):
		return repositoryNames, nil
	case !insideRepository(root):
		return []string{"HEAD"}, nil
	case look("refs") == 0:
		return []string{"commondir", "refs"}, nil
	case look("objects") == 0:
		return []string{"commondir", "objects"}, nil
	}
	return []string{"HEAD"}, nil
}

// ceiling is a directory at which insideRepository stops, as git does at its
// GIT_CEILING_DIRECTORIES. Only tests have one, because somebody may have left a .git in the
// temporary directory.
var ceiling string

// insideRepository reports whether a directory above root has a .git. A wrong
// answer makes git less useful there, and no less safe: either choice of names
// keeps git from taking root for a repository.
func insideRepository(root string) bool {
	for root != "/" {
		if root = pathname.Parent(root); root == ceiling {
			break
		}
		var st unix.Stat_t
		if unix.Lstat(path.Join(root, ".git"), &st) == nil && !placeholder.IsPlaceholder(&st) {
			return true
		}
	}
	return false
}
