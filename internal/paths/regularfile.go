// Package regularfile reads files that may be something else than they should be: a FIFO, a
// device, a file that never ends; and tells whether they have changed since. Whose they are and who
// can change them is left to its users.
package paths

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// ErrNotRegular is the error about folders, FIFOs, sockets and devices.
var ErrNotRegular = errors.New("is no regular file")

// LimitError is the error about a file with more than so many bytes.
type LimitError int64

func (e LimitError) Error() string { return fmt.Sprintf("is longer than %d bytes", int64(e)) }

// readTimeout bounds the reading of a file that is none of a disk.
const readTimeout = 2 * time.Second

// ReadRegular returns what is in a regular file, which may be a link's: limit bytes at most. Its errors
// name the file; they are an [ErrOther], a [LimitError], or those of package os, such as
// [os.ErrDeadlineExceeded] for a file of the kernel whose end has not come within 2 s.
func ReadRegular(path string, limit int64) ([]byte, error) {
	f, _, err := OpenRegular(path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, limit)
}

// OpenRegular opens a regular file to be read, as [Read] does, for who looks at its owner or mode before.
// flags are further ones of open(2), such as O_NOFOLLOW.
func OpenRegular(path string, flags int) (*os.File, fs.FileInfo, error) {
	// Without O_NONBLOCK, to open a FIFO would wait for somebody to write. Without O_NOCTTY, a
	// terminal could become the controlling one of this program, and a key in it end that.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s %w", path, ErrNotRegular)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, nil, err
	}
	return f, info, nil
}

// ReadAll returns what is in a file of [Open].
func ReadAll(f *os.File, limit int64) ([]byte, error) {
	// Files of the kernel that a link may lead to, such as /proc/kmsg, wait for ever for more.
	// Those on a disk have no deadlines, and need none.
	_ = f.SetReadDeadline(time.Now().Add(readTimeout))
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s %w", f.Name(), LimitError(limit))
	}
	if err != nil {
		clear(text) // it may be a secret
		return nil, err
	}
	return text, nil
}
