// Package unixsocket listens at UNIX sockets that have a path, connects to them, and finds the user
// at the other end. Its functions may be called at once.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/execagent/execagent/internal/paths"
)

// MaxPath is the greatest length of a path, in bytes: the size in sockaddr_un, without the final
// NUL (unix(7)).
const MaxPath = 107

const scheme = "unix://"

// Is reports whether a URL has the scheme unix.
func Is(url string) bool { return strings.HasPrefix(url, scheme) }

// URL returns the URL of the socket at path.
func URL(path string) string { return scheme + path }

// Path returns the path in a URL of the form unix:///PATH. The path is taken literally: it has no
// escapes, query or fragment.
func Path(url string) (string, error) {
	path, ok := strings.CutPrefix(url, scheme)
	switch {
	case !ok || !strings.HasPrefix(path, "/"):
		return "", errors.New("want unix:///PATH, with an absolute path (abstract names are not supported)")
	case strings.ContainsRune(path, 0):
		return "", errors.New("the path holds a NUL")
	case path != filepath.Clean(path):
		return "", fmt.Errorf("the path is not in its shortest form, %s", filepath.Clean(path))
	case path == "/":
		return "", errors.New("the path is the root folder")
	case len(path) > MaxPath:
		return "", fmt.Errorf("the path has %d bytes, but the path of a socket can have at most %d: choose a shorter path", len(path), MaxPath)
	}
	return path, nil
}

// Dial connects to the socket at path. It trusts only a server that runs as this user or as root, or
// as the user to whom one of these has given the folder of the socket, see [given]. Otherwise anybody
// could listen in a folder that everybody may write, such as /tmp, and in a folder made there. If the
// path itself is a link, the folder of the link counts, not that of its target.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrPermission) {
		if info, statErr := os.Lstat(path); statErr == nil {
			err = fmt.Errorf("%w: the socket belongs to uid %d, who does not let other users connect", err, owner(info))
		}
	}
	if err != nil {
		return nil, err
	}
	socket := conn.(*net.UnixConn)
	if err := trusted(socket, filepath.Dir(path)); err != nil {
		_ = socket.Close() // nothing was said on it
		return nil, err
	}
	return socket, nil
}

// ServerError says that the server at a socket runs as a user who is not trusted.
type ServerError struct {
	UID uint32
	Dir string // of the socket
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("the server runs as uid %d, which is not trusted: it is neither this user nor root, and they have not given it the folder %s", e.UID, e.Dir)
}

func trusted(socket *net.UnixConn, dir string) error {
	uid, err := Peer(socket)
	if err != nil {
		return err
	}
	if May(uid) {
		return nil
	}
	to, ok, err := given(dir)
	if err != nil {
		return err
	}
	if !ok || to != uid {
		return &ServerError{UID: uid, Dir: dir}
	}
	return nil
}

// May reports whether a user is this one, root, or one of others.
func May(uid uint32, others ...uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid() || slices.Contains(others, uid)
}

// errOthers says that users other than this one and root may write a folder.
var errOthers = errors.New("others may write it")

// given returns the owner of a folder. ok is false unless all folders on the way, also through
// links, belong to this user or root and only they may write them, so that only they can have made
// the folder. A sticky bit does not help: anyone can still create the folder first.
func given(dir string) (to uint32, ok bool, err error) {
	if !filepath.IsAbs(dir) {
		return 0, false, nil
	}
	end, err := paths.Walk(dir, func(s paths.Step) error {
		// Only those who may write the folder of a link can have made it.
		if !May(owner(s.Folder)) || s.Folder.Mode().Perm()&0o022 != 0 {
			return errOthers
		}
		return nil
	})
	if errors.Is(err, errOthers) || errors.Is(err, syscall.ELOOP) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	info, err := os.Lstat(end)
	if err != nil {
		return 0, false, err
	}
	return owner(info), true, nil
}

// owner returns the owner of a file.
func owner(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
