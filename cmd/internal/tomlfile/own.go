package tomlfile

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/execagent/execagent/internal/paths"
)

// Read reads a file of this user or root. It refuses a file that others can write; harm completes
// the error: it describes what they could do. others says why other users can read the file, or is
// "" if they cannot. Read checks the opened file, so links to it make no difference.
func Read(path string, limit int64, harm string) (text, others string, err error) {
	f, info, err := paths.OpenRegular(path, 0)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return "", "", errors.New("the owner of the file is unknown")
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return "", "", fmt.Errorf("%s belongs to user %d, who could %s", path, stat.Uid, harm)
	case info.Mode()&0o022 != 0:
		return "", "", fmt.Errorf("%s has mode %04o: others can write it, and %s (chmod go-w %s)", path, info.Mode().Perm(), harm, path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		others = fmt.Sprintf("has mode %04o", mode)
	} else if int(stat.Uid) != os.Geteuid() {
		others = fmt.Sprintf("belongs to user %d", stat.Uid)
	}
	content, err := paths.ReadAll(f, limit)
	if err != nil {
		return "", "", err
	}
	return string(content), others, nil
}
