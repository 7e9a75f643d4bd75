package resolve

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/internal/openat"
	"github.com/execagent/execagent/sandbox/internal/pathname"
	"golang.org/x/sys/unix"
)

// git(1) takes a directory with HEAD, objects and refs for a repository, and runs
// what its configuration names when it is asked for the status there or below, as
// the prompts of many shells ask. So a command must not be able to make one at
// the top of a writable root. Where there is a .git, that is the repository; else
// the root gets one more protected name or two, each of them an empty directory
// while a command runs, and nothing before and after:
//
//   - HEAD: a directory of that name is none that git takes for a repository, so
//     it looks further up.
//   - Inside another repository that would not do: "git diff HEAD" means a
//     revision, and git asks which of both is meant. So refs (or objects, where
//     there is a refs already) is held, without which there is no repository when
//     the command has ended; and commondir, whose content git wants to know of a
//     directory that looks like one, and fails on a directory.

// bareNames are what git runs or believes of a repository that lies there, and
// what would make it look for that elsewhere (gitrepository-layout(5)).
var bareNames = []string{"HEAD", "commondir", "config", "config.worktree", "hooks", "objects", "refs", "worktrees"}

// bareRepositories adds the rules that keep a command from making a writable root
// a bare repository, and from changing one that is there.
func (s *resolution) bareRepositories() error {
	for _, root := range slices.Sorted(maps.Keys(s.rules)) {
		if s.rules[root].Access != sandbox.Write || pathname.IsPseudo(root) || insideGit(root) {
			continue
		}
		names, err := s.bareNames(root)
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

// insideGit tells whether name is a .git or lies in one: a client that opens that
// to a command lets the command change the repository.
func insideGit(name string) bool { return strings.Contains(name+"/", "/.git/") }

// bareNames are the names that are to be protected in a writable root.
func (s *resolution) bareNames(root string) ([]string, error) {
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
	if kind, err := openat.Kind(dir); err != nil || kind != unix.S_IFDIR {
		return nil, err // a file that may be written
	}
	// look tells what is at a name, as S_IFMT has it; 0 is nothing.
	look := func(name string) uint32 {
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == unix.EACCES {
			return 0 // the command can look there no more than we can
		}
		w := watch{path: path.Join(root, name), dir: -1, name: name}
		if err == nil && !hold.IsPlaceholder(&st) {
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
		return bareNames, nil
	case !insideRepository(root):
		return []string{"HEAD"}, nil
	case look("refs") == 0:
		return []string{"commondir", "refs"}, nil
	case look("objects") == 0:
		return []string{"commondir", "objects"}, nil
	}
	return []string{"HEAD"}, nil
}

// insideRepository tells whether a directory above root has a .git. It decides
// nothing but how git is kept from taking root for a repository.
func insideRepository(root string) bool {
	for root != "/" {
		root = pathname.Parent(root)
		var st unix.Stat_t
		if unix.Lstat(path.Join(root, ".git"), &st) == nil && !hold.IsPlaceholder(&st) {
			return true
		}
	}
	return false
}
