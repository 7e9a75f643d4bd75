package view

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

const (
	// maxGlobbed is how many files globs may deny one by one (sandbox.md 6.5).
	maxGlobbed = 8192
	// maxGlobDepth is how many directories deep a search goes below the base of a
	// glob; each costs a descriptor on the way down.
	maxGlobDepth = 256
	// hiddenWeight is how many files a hidden directory counts as. The more there
	// are, the longer it takes to find out whether a file lies in one.
	hiddenWeight = 16
)

// globber searches for files that globs deny. If there are too many to look at, or
// to deny one by one, it hides their whole directory. It does not refuse, because
// then one command, which can make any number of files, could prevent all later
// commands from running.
type globber struct {
	policy *sandbox.Policy
	most   int // maxGlobbed
	files  map[string]bool
	hidden map[string]bool // directories; nothing below them is in files
}

// deniedFiles returns the files below root, the original root, that the globs of
// the policy deny, and the targets of symlinks that the globs match, if covers
// agrees: canonical, sorted (sandbox.md 6.5). It does not search directories of
// other users that we cannot read, because the confined process cannot read them
// either, and leaves out files that the policy does not show. The caller must
// hide the directories with their contents.
func deniedFiles(root int, p *sandbox.Policy) (files, directories []string, err error) {
	return atMost(maxGlobbed, root, p)
}

// atMost does so, with another limit than maxGlobbed.
func atMost(most, root int, p *sandbox.Policy) (files, directories []string, err error) {
	g := globber{policy: p, most: most, files: map[string]bool{}, hidden: map[string]bool{}}
	for _, glob := range p.Globs {
		if err := g.glob(root, glob); err != nil {
			return nil, nil, fmt.Errorf("expanding the glob %s/%s: %w", pathname.Clip(glob.Base), pathname.Clip(glob.Pattern), err)
		}
	}
	return slices.Sorted(maps.Keys(g.files)), slices.Sorted(maps.Keys(g.hidden)), nil
}

func (g *globber) glob(root int, glob sandbox.Glob) error {
	if pathname.Within(glob.Base, "/proc") {
		return errors.New("what is in /proc cannot be listed ahead")
	}
	fd, err := resolve.OpenBeneath(root, glob.Base, unix.O_RDONLY|unix.O_DIRECTORY)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
		return nil
	default:
		return fmt.Errorf("open: %w", err)
	}
	depth := maxGlobDepth
	if glob.MaxDepth > 0 {
		depth = min(depth, glob.MaxDepth)
	}
	return g.directory(fd, glob.Base, depth, glob.MaxDepth > 0 && glob.MaxDepth <= maxGlobDepth)
}

// directory searches fd, which it closes. It goes down depth names. If bounded,
// the glob itself matches nothing deeper; otherwise deeper directories are
// hidden, because they may have files that the glob denies.
func (g *globber) directory(fd int, name string, depth int, bounded bool) error {
	defer unix.Close(fd)
	if depth == 0 {
		return nil // the glob is bounded, and matches nothing deeper
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.ENOENT {
			return nil // it was removed in the meantime
		}
		if err != nil {
			return &os.PathError{Op: "getdents", Path: pathname.Clip(name), Err: err}
		}
		if n == 0 {
			return nil
		}
		for entries := buf[:n]; len(entries) > 0; {
			var entry string
			var kind byte
			entry, kind, entries = nextEntry(entries)
			if entry == "." || entry == ".." {
				continue
			}
			full := path.Join(name, entry)
			maybeDir := kind == unix.DT_DIR || kind == unix.DT_UNKNOWN
			if maybeDir && depth == 1 && !bounded || len(full) >= sandbox.MaxPath && (maybeDir || g.policy.DeniesFile(full)) {
				// full lies too deep to be searched, or is longer than the kernel
				// takes, so that nothing can be mounted on it.
				if err := g.hide(name); err != nil {
					return err
				}
			}
			if g.isHidden(name) {
				return nil
			}
			if err := g.entry(fd, entry, kind, full, depth-1, bounded); err != nil {
				return err
			}
		}
	}
}

// entry looks at one entry of the directory dir; name is its whole path.
func (g *globber) entry(dir int, entry string, kind byte, name string, depth int, bounded bool) error {
	if kind == unix.DT_UNKNOWN {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, entry, &st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
			return nil
		} else if err != nil {
			return &os.PathError{Op: "fstatat", Path: pathname.Clip(name), Err: err}
		}
		kind = byte(st.Mode & unix.S_IFMT >> 12) // IFTODT of dirent.h
	}
	if kind != unix.DT_DIR {
		return g.file(name, kind == unix.DT_LNK)
	}
	if g.policy.Access(name) < sandbox.Read && !g.policy.Leads(name) {
		return nil
	}
	fd, err := unix.Openat(dir, entry, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
		return g.directory(fd, name, depth, bounded)
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return nil
	case unix.EACCES:
		// The confined process cannot read the directory either, unless its user
		// owns it and can change the mode: then it must be an error.
		var st unix.Stat_t
		if unix.Fstatat(dir, entry, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && int(st.Uid) != os.Getuid() {
			return nil
		}
	}
	return &os.PathError{Op: "openat", Path: pathname.Clip(name), Err: err}
}

// file notes name if a glob denies it.
func (g *globber) file(name string, symlink bool) error {
	if !g.policy.DeniesFile(name) {
		return nil
	}
	if symlink {
		// No mount can cover a symlink, but a mount can cover its target.
		target, err := filepath.EvalSymlinks(name)
		if err != nil {
			return nil // the link leads to nothing
		}
		info, err := os.Lstat(target)
		if err != nil || info.IsDir() || !g.covers(name, target) {
			return nil
		}
		name = target
	}
	if g.policy.Access(name) < sandbox.Read || g.isHidden(name) {
		return nil
	}
	g.files[name] = true
	return g.makeRoom()
}

// hide hides a directory instead of its contents.
func (g *globber) hide(dir string) error {
	if g.isHidden(dir) {
		return nil
	}
	g.replace(dir)
	return g.makeRoom()
}

// replace hides a directory, and forgets the files and hidden directories in it.
func (g *globber) replace(dir string) {
	inside := func(name string, _ bool) bool { return pathname.Below(name, dir) }
	maps.DeleteFunc(g.files, inside)
	maps.DeleteFunc(g.hidden, inside)
	g.hidden[dir] = true
}

// weight returns the weight that counts against most.
func (g *globber) weight() int { return len(g.files) + hiddenWeight*len(g.hidden) }

// isHidden reports whether name is, or lies in, a hidden directory.
func (g *globber) isHidden(name string) bool {
	if len(g.hidden) == 0 {
		return false
	}
	for ; name != "/"; name = pathname.Parent(name) {
		if g.hidden[name] {
			return true
		}
	}
	return false
}

// makeRoom hides directories if there is too much, until there is room again. It
// begins with the directories that have many denied files, the deepest first, so
// that as little else as possible is hidden with them. If that is not enough, it
// continues with the directories that have the most.
func (g *globber) makeRoom() error {
	if g.weight() <= g.most {
		return nil
	}
	crowd := g.most / 16 // how many denied files make a directory worth hiding as a whole
	weights := map[string]int{}
	add := func(name string, weight int) {
		for dir := pathname.Parent(name); g.mayHide(dir); dir = pathname.Parent(dir) {
			weights[dir] += weight
		}
	}
	for name := range g.files {
		add(name, 1)
	}
	for name := range g.hidden {
		add(name, hiddenWeight)
	}
	order := slices.SortedFunc(maps.Keys(weights), func(a, b string) int {
		depths := cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/"))
		if weights[a] < crowd || weights[b] < crowd {
			depths = 0
		}
		return cmp.Or(depths, cmp.Compare(weights[b], weights[a]), strings.Compare(a, b))
	})
	room := g.most - g.most/4
	for _, dir := range order {
		if g.weight() <= room {
			return nil
		}
		if !g.isHidden(dir) && weights[dir] > hiddenWeight {
			g.replace(dir)
		}
	}
	if g.weight() > g.most {
		return fmt.Errorf("it denies more than %d files", g.most)
	}
	return nil
}

// mayHide reports whether a directory may be hidden: it lies at or below the base
// of a glob, or a command can write there.
func (g *globber) mayHide(dir string) bool {
	return dir != "/" && (g.policy.Access(dir) == sandbox.Write ||
		slices.ContainsFunc(g.policy.Globs, func(glob sandbox.Glob) bool { return pathname.Within(dir, glob.Base) }))
}

// covers reports whether the target of a symlink that a glob matches is denied
// too. A command could make a matching link to the shell, and so deny the shell to
// later commands. So if the link lies where commands can write, its target is
// denied only if the target is writable too or lies below the base of the glob. A
// target in /proc is never denied, because the view has another /proc, and the
// target disappears with its process.
func (g *globber) covers(link, target string) bool {
	switch {
	case pathname.Within(target, "/proc"):
		return false
	case g.policy.Access(link) != sandbox.Write, g.policy.Access(target) == sandbox.Write:
		return true
	}
	return slices.ContainsFunc(g.policy.Globs, func(glob sandbox.Glob) bool { return pathname.Below(target, glob.Base) && glob.Matches(link) })
}

// nextEntry takes the first of the linux_dirent64 records that getdents64(2)
// wrote: its name and type.
func nextEntry(entries []byte) (name string, kind byte, rest []byte) {
	length := binary.NativeEndian.Uint16(entries[16:])
	record := entries[19:length]
	if end := bytes.IndexByte(record, 0); end >= 0 {
		record = record[:end]
	}
	return string(record), entries[18], entries[length:]
}
