package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// maxGlobbed is how many files globs may deny (sandbox.md 6.5).
	maxGlobbed = 8192
	// maxGlobDepth is how deep the directories may be that are searched; each
	// costs a descriptor on the way down.
	maxGlobDepth = 256
)

// globber searches for files that globs deny.
type globber struct {
	policy *Policy
	found  map[string]bool
}

// deniedFiles returns the files below root, the original one, that the globs of
// the policy deny, and what symlinks that they match lead to, if that is meant
// (covers): canonical, sorted (sandbox.md 6.5). Directories of others that cannot be read are not
// searched, as the confined process can read no more. Files that nothing grants are left out.
func deniedFiles(root int, p *Policy) ([]string, error) {
	g := globber{policy: p, found: map[string]bool{}}
	for _, glob := range p.Globs {
		if err := g.glob(root, glob); err != nil {
			return nil, fmt.Errorf("expanding the glob %s/%s: %w", glob.Base, glob.Pattern, err)
		}
	}
	files := make([]string, 0, len(g.found))
	for name := range g.found {
		files = append(files, name)
	}
	slices.Sort(files)
	return files, nil
}

func (g *globber) glob(root int, glob Glob) error {
	if within(glob.Base, "/proc") {
		return errors.New("what is in /proc cannot be listed ahead")
	}
	fd, err := openBeneath(root, glob.Base, unix.O_RDONLY|unix.O_DIRECTORY)
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

// directory searches fd, which it closes. Depth is how many names below it may
// be looked at; bounded tells that what lies deeper is not meant.
func (g *globber) directory(fd int, name string, depth int, bounded bool) error {
	defer unix.Close(fd)
	if depth == 0 {
		if bounded {
			return nil
		}
		return fmt.Errorf("%s lies deeper than %d directories", name, maxGlobDepth)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return &os.PathError{Op: "getdents", Path: name, Err: err}
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
			if err := g.entry(fd, entry, kind, path.Join(name, entry), depth-1, bounded); err != nil {
				return err
			}
		}
	}
}

// entry looks at one name.
func (g *globber) entry(dir int, entry string, kind byte, name string, depth int, bounded bool) error {
	if kind == unix.DT_UNKNOWN {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, entry, &st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
			return nil
		} else if err != nil {
			return &os.PathError{Op: "fstatat", Path: name, Err: err}
		}
		kind = byte(st.Mode & unix.S_IFMT >> 12) // IFTODT of dirent.h
	}
	if kind != unix.DT_DIR {
		return g.file(name, kind == unix.DT_LNK)
	}
	if g.policy.Access(name) < Read && !g.policy.Leads(name) {
		return nil
	}
	fd, err := unix.Openat(dir, entry, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
		return g.directory(fd, name, depth, bounded)
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return nil
	case unix.EACCES:
		// Nor can the confined process read it, unless it is the owner.
		var st unix.Stat_t
		if unix.Fstatat(dir, entry, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && int(st.Uid) != os.Getuid() {
			return nil
		}
	}
	return &os.PathError{Op: "openat", Path: name, Err: err}
}

// file notes name if a glob denies it.
func (g *globber) file(name string, symlink bool) error {
	if !g.policy.DeniesFile(name) {
		return nil
	}
	if symlink {
		// No mount can cover a symlink; what it leads to can.
		target, err := filepath.EvalSymlinks(name)
		if err != nil {
			return nil // to nothing
		}
		info, err := os.Lstat(target)
		if err != nil || info.IsDir() || !g.covers(name, target) {
			return nil
		}
		name = target
	}
	if g.policy.Access(name) < Read {
		return nil
	}
	g.found[name] = true
	if len(g.found) > maxGlobbed {
		return fmt.Errorf("it denies more than %d files", maxGlobbed)
	}
	return nil
}

// covers tells whether what a matching symlink leads to is denied with it. A
// link that a command can make must not take from later ones what it could not
// change itself, the shell for one: its target has to lie below the base of
// the glob or be writable too. What is in /proc is never meant: it is another
// one inside, and goes when its process does.
func (g *globber) covers(link, target string) bool {
	switch {
	case within(target, "/proc"):
		return false
	case g.policy.Access(link) != Write, g.policy.Access(target) == Write:
		return true
	}
	return slices.ContainsFunc(g.policy.Globs, func(glob Glob) bool { return beneath(glob.Base, target) && glob.matches(link) })
}

// nextEntry is the first of the linux_dirent64 records of getdents64(2).
func nextEntry(entries []byte) (name string, kind byte, rest []byte) {
	length := binary.NativeEndian.Uint16(entries[16:])
	record := entries[19:length]
	if end := bytes.IndexByte(record, 0); end >= 0 {
		record = record[:end]
	}
	return string(record), entries[18], entries[length:]
}
