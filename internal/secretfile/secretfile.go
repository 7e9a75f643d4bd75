// Package secretfile looks at whether others can read or change a file that
// holds a secret.
package secretfile

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Exposed returns an error if others of this machine can read or change a file
// that belongs to the user of this process, as ssh does with a private key.
//
// It returns nil for a file of somebody else, who has decided on its mode:
// container engines and Kubernetes mount secrets that belong to root, for all
// in a container to read. A file of root may be read by its group, as keys in
// /etc/ssl often are. Of a file that cannot be looked at it says nothing:
// whoever reads it gets the error.
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
