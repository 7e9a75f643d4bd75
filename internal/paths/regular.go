// Package paths handles files whose path, owner or kind nobody has vouched for.
//
//	ReadRegular, OpenRegular, ReadAll    read a file that may be a FIFO, a device or endless
//	Look, State.Changed                  report whether a file has changed since it was read
//	Walk                                 follows a path as the kernel does, one step at a time
//
// The callers judge who owns a file and who can change it.
package paths

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// ErrNotRegular is the error for folders, FIFOs, sockets and devices.
var ErrNotRegular = errors.New("is not a regular file")

// LimitError is the error for a file with more than so many bytes.
type LimitError int64

func (e LimitError) Error() string { return fmt.Sprintf("is longer than %d bytes", int64(e)) }

// readTimeout bounds reading a file that is not on a disk.
const readTimeout = 2 * time.Second

// Mark is a byte-order mark, with which some editors begin a file. It is no part of what was written.
const Mark = "\ufeff"

// ReadRegular returns the content of a regular file without a [Mark], also through a link: limit bytes at most. Its errors
// name the file; they are [ErrNotRegular], a [LimitError], or those of package os, such as
// [os.ErrDeadlineExceeded] for a file of the kernel whose end has not come within 2 s.
func ReadRegular(path string, limit int64) ([]byte, error) {
	f, _, err := OpenRegular(path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := ReadAll(f, limit)
	return bytes.TrimPrefix(text, []byte(Mark)), err
}

// OpenRegular opens a regular file for reading, for callers that check its owner or mode first.
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

// ReadAll returns the content of a file of [OpenRegular]: limit bytes at most.
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
