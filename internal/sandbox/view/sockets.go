package view

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/execagent/execagent/internal/sandbox/resolve"
	"golang.org/x/sys/unix"
)

const (
	// maxUnixTable is how many bytes of /proc/net/unix are read.
	maxUnixTable = 4 << 20
	// maxSockets is how many sockets are returned, because covering one costs a mount.
	maxSockets = 4096
)

// SocketPaths returns the canonical paths of the UNIX sockets that are bound
// to a path in the network namespace of the calling thread and that the caller
// could reach, sorted, for [Options.Sockets] (sandbox.md 14.5). It cannot find
// sockets that were bound to a relative path.
//
// It reads 4 MiB of the kernel's table and returns 4096 sockets at most, and
// leaves the others out. That is no error, because otherwise any process that may
// bind sockets could prevent every command from starting; and no policy depends
// on the covers. Covered or not, with the network restricted the filter refuses
// to connect, or a listener allows only named sockets, and with the network enabled the listener of enforce.FilterEnabled
// refuses sockets outside the writable roots.
func SocketPaths() ([]string, error) {
	table, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("listing sockets: %w", err)
	}
	defer table.Close()
	text, err := tableHead(table)
	if err != nil {
		return nil, fmt.Errorf("listing sockets: %w", err)
	}
	bound := boundPaths(text)
	paths := bound[:0]
	for _, name := range bound {
		if len(paths) == maxSockets {
			break
		}
		canonical, err := socketPath(name)
		if err != nil {
			return nil, fmt.Errorf("listing sockets: %w", err)
		}
		if canonical != "" {
			paths = append(paths, canonical)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// tableHead reads the whole lines in the first maxUnixTable bytes.
func tableHead(table io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(table, maxUnixTable))
	if len(text) == maxUnixTable {
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	return text, err
}

// boundPaths returns the absolute paths in the text of /proc/net/unix, each
// once. The path is the eighth field (unix_seq_show), and may have spaces.
func boundPaths(text []byte) []string {
	var paths []string
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(line, []byte{'\n'})
		for range 7 {
			line = bytes.TrimLeft(line, " ")
			if i := bytes.IndexByte(line, ' '); i >= 0 {
				line = line[i:]
			} else {
				line = nil
			}
		}
		if len(line) > 1 && line[1] == '/' {
			paths = append(paths, string(line[1:]))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// socketPath returns the canonical path of the socket that name leads to; "" if
// we could reach none.
func socketPath(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ELOOP, unix.ENAMETOOLONG:
		return "", nil
	default:
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	mode, err := resolve.FileKind(fd)
	if err != nil {
		return "", &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	if mode != unix.S_IFSOCK {
		return "", nil
	}
	canonical, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return "", err
	}
	return canonical, nil
}
