package supervise

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// checkCase fails if names could be written in several ways in a writable root of
// the policy, or in a directory that has a name which a rule is about: a rule for
// .git would not be one for .GIT, and both would be the same directory. A policy
// is about names; where mounts enforce it, the kernel compares them, but here we
// do. It does not look for such directories deeper in a root.
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

// Numbers that x/sys does not have: those of the kernel's drivers for NTFS, and of
// fs/hfsplus.
const (
	ntfsMagic    = 0x5346544e
	ntfs3Magic   = 0x7366746e
	hfsPlusMagic = 0x482b
)

// foldsCase tells whether the directory takes names that differ in case for the
// same. A directory that is missing, or that this process may not read, does not.
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
