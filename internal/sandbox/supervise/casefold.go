package supervise

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// checkCase fails if a writable root of the policy, or a directory with a name
// that a rule is about, ignores the case of names: a rule for .git would not
// cover .GIT, although both would be the same directory. A policy is about names;
// if mounts enforce it, the kernel compares names, but here we do. It does not
// look for such directories deeper in a root.
func checkCase(p *sandbox.Policy) error {
	seen := map[string]bool{}
	for _, rule := range p.Rules {
		dirs := []string{filepath.Dir(rule.Path)}
		if rule.Access == sandbox.Write {
			dirs = append(dirs, rule.Path)
		}
		for _, dir := range dirs {
			if seen[dir] {
				continue
			}
			seen[dir] = true
			folded, err := foldsCase(dir)
			if err != nil {
				return fmt.Errorf("looking whether the directory %q tells upper and lower case apart: %w", dir, err)
			}
			if folded {
				return fmt.Errorf("the directory %q does not tell upper and lower case apart, and the names in it cannot be supervised", dir)
			}
		}
	}
	return nil
}

// Numbers that x/sys lacks: those of the kernel's drivers for NTFS, and of
// fs/hfsplus.
const (
	ntfsMagic    = 0x5346544e
	ntfs3Magic   = 0x7366746e
	hfsPlusMagic = 0x482b
)

// foldsCase reports whether the directory treats names that differ only in case
// as the same. It returns false for a directory that is missing, or that this
// process may not read.
func foldsCase(dir string) (bool, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, nil
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, os.NewSyscallError("fstatfs", err)
	}
	switch uint32(st.Type) {
	case unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, ntfsMagic, ntfs3Magic, hfsPlusMagic:
		return true, nil
	}
	const casefold = 0x40000000 // FS_CASEFOLD_FL of linux/fs.h
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	return err == nil && flags&casefold != 0, nil
}
