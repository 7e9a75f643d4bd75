package tomlfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// readTimeout bounds the reading of a file that is none of a disk.
const readTimeout = 2 * time.Second

// Read reads a file that this user or root has written. One that others could have written is
// refused; harm is what they could do then. others says why others can read it, "" if they
// cannot. What was opened is looked at, so it does not matter which links lead there.
func Read(path string, limit int64, harm string) (text, others string, err error) {
	// Without O_NONBLOCK, to open a FIFO would wait for somebody to write.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", "", fmt.Errorf("%s is no regular file", path)
	case !ok:
		return "", "", errors.New("whose file it is cannot be told")
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
	// Files of the kernel that a link may lead to, such as /proc/kmsg, wait for ever for more.
	// Those on a disk have no deadlines, and need none.
	_ = f.SetReadDeadline(time.Now().Add(readTimeout))
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", "", err
	}
	if int64(len(content)) > limit {
		return "", "", fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	return string(content), others, nil
}
