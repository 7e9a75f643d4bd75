// Package secretfile finds out whether other users can read or change a file
// that holds a secret.
package secretfile

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Exposed returns an error if other users of this machine can read or change
// the file at path and the file belongs to the user of this process. ssh
// refuses such a private key too. A symlink is followed. If the user is root
// the group of the file may read it, as it often may with keys in /etc/ssl.
//
// Exposed returns nil for a file of another user, who has decided on its mode:
// container engines and Kubernetes mount secrets that belong to root, and
// everybody in a container may read them. It also returns nil for what is no
// regular file, and for a path that it cannot look at: whoever reads the file
// gets that error.
func Exposed(path string) error {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() {
		return nil
	}
	others := fs.FileMode(0o077)
	if stat.Uid == 0 {
		others = 0o027
	}
	if info.Mode()&others == 0 {
		return nil
	}
	return fmt.Errorf("%s has mode %04o: others can read or change it (chmod 600)", path, info.Mode().Perm())
}
