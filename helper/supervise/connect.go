package supervise

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// What a command may connect to (sandbox.md 14.5):
//
//   - a UNIX socket with a path: only inside the writable roots. In a temporary
//     directory only if the socket was made since the command was started: a
//     user's terminals, displays and ssh-agents listen there, and through them a
//     command could act outside of its sandbox
//   - a UNIX socket with an abstract name: never. Any process of the host could
//     listen there. Landlock's scope would keep a command from connecting, but it
//     does not bind init, which does the call
//   - the agent's own listeners: never, since nothing confines their clients
//   - everything else: as without a sandbox
//
// Init does the call with the same ids as the command, and no capabilities.
// Three things differ from a call that the command does itself: a peer that
// asks with SO_PEERCRED is told of init, a path through a magic link of procfs
// is refused, and only fatal signals interrupt a call that blocks.

// connect does connect(2), or refuses it.
func (r *request) connect() answer {
	a, err := r.takeAddress()
	if err != nil {
		return fail(err)
	}
	if err := r.judgeConnect(a); err != nil {
		a.close()
		return fail(err)
	}
	if a.nonblocking() {
		defer a.close()
		return result(errOrNil(a.connect()))
	}
	return r.apart(func(*request) answer {
		defer a.close()
		return result(errOrNil(a.connect()))
	}, a.close)
}

// judgeConnect decides on a call of connect. If the address is a path it opens
// the socket there, judges that object, and makes the address lead to the same
// object by its descriptor: the path could lead elsewhere by the time of the
// call.
func (r *request) judgeConnect(a *address) error {
	if r.n.isAgent(a) {
		return unix.EPERM
	}
	if a.domain != unix.AF_UNIX {
		return nil
	}
	path, pathname, err := unixPath(a.sockaddr)
	if err != nil || !pathname {
		return err
	}
	if !strings.HasPrefix(path, "/") {
		if err := r.openDir(a); err != nil {
			return err
		}
	}
	if err := r.n.find(a, path); err != nil {
		return err
	}
	a.sockaddr = unixAddr(fmt.Sprintf("/proc/self/fd/%d", a.object))
	return nil
}

// unixPath returns the path in an address for a UNIX socket. pathname is false,
// without an error, if the address is not of AF_UNIX: what to do with that one
// is left to the kernel. An abstract name is EPERM.
func unixPath(addr []byte) (path string, pathname bool, err error) {
	const head = 2 // the family
	if len(addr) < head || binary.NativeEndian.Uint16(addr) != unix.AF_UNIX {
		return "", false, nil // AF_UNSPEC ends an association, and others are EINVAL
	}
	if len(addr) == head || len(addr) > maxUnixAddr {
		return "", false, unix.EINVAL
	}
	path, _, _ = strings.Cut(string(addr[head:]), "\x00")
	if path == "" {
		return "", false, unix.EPERM // abstract
	}
	return path, true, nil
}

// unixAddr returns the address of the socket at path.
func unixAddr(path string) []byte {
	addr := binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX)
	return append(append(addr, path...), 0)
}

// find opens the socket at path, and decides whether the command may connect to
// it. A relative path begins at a.dir.
func (n *Notifier) find(a *address, path string) (err error) {
	dir := unix.AT_FDCWD
	if a.dir >= 0 {
		dir = a.dir
	}
	a.object, err = unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC,
		// A link of procfs, such as /proc/self/cwd, leads init elsewhere than
		// the command.
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	return n.judge(a.object)
}

// judge decides whether the command may connect to the socket fd, by its
// canonical path.
func (n *Notifier) judge(fd int) error {
	canonical, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return errnoOf(err)
	}
	if !strings.HasPrefix(canonical, "/") || n.config.Policy.Access(canonical) != sandbox.Write || n.config.Policy.DeniesFile(canonical) {
		return unix.EPERM
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_BTIME, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return unix.ECONNREFUSED
	case n.config.Policy.Temporary(canonical) && !n.isNew(&st):
		return unix.EPERM
	}
	return nil
}

// isNew tells whether a file was made since the command was started. It goes by
// the time of birth, the only one that nobody can change. On a file system that
// keeps no times of birth no file is new.
func (n *Notifier) isNew(st *unix.Statx_t) bool {
	if st.Mask&unix.STATX_BTIME == 0 {
		return false
	}
	return st.Btime.Sec > n.begun.Sec || st.Btime.Sec == n.begun.Sec && int64(st.Btime.Nsec) >= n.begun.Nsec
}

// nonblocking tells whether connect on the socket returns at once. The command
// shares the flag with the duplicate, and can clear it before connect is called
// here: then it holds up its own calls, and nobody else's.
func (a *address) nonblocking() bool {
	flags, err := unix.FcntlInt(uintptr(a.socket), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0
}
