package supervise

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/sandbox"
)

// What a command may connect to (sandbox.md 14.5):
//
//   - a UNIX socket that the policy names ([Notifier.isNamed])
//   - with the host's network, another UNIX socket with a path: only inside the
//     writable roots. In a temporary directory, only if the socket was made after
//     the command was started, because a user's terminals, displays and ssh-agents
//     listen there, and through them a command could act outside its sandbox
//   - everything else: [Notifier.mayReach] decides
//
// Init does the call with the same ids as the command, and no capabilities. Three
// things differ from the command's own call: SO_PEERCRED shows init to the peer,
// only fatal signals interrupt a blocking call, and a path through a magic link
// of procfs is refused. A supervisor, though, accepts links of the command's own
// processes.

// connect does connect(2), or refuses it.
func (r *request) connect() callResult {
	a, err := r.takeAddress()
	if err == errNoCopy {
		return fail(unix.EISCONN)
	}
	if err != nil {
		return fail(err)
	}
	if r.n.config.Holder != nil && (a.domain == unix.AF_INET || a.domain == unix.AF_INET6) {
		return r.connectAnywhere(a)
	}
	if err := r.judgeConnect(a); err != nil {
		r.n.noteAddress(a, err)
		a.close()
		return fail(err)
	}
	if r.n.config.Proxy != nil && a.domain != unix.AF_UNIX {
		return r.connectGate(a)
	}
	return r.connectHere(a)
}

// connectHere does the judged call of connect in a.
func (r *request) connectHere(a *address) callResult {
	do := func(*request) callResult {
		defer a.close()
		err := errOrNil(a.connect())
		if a.held != nil && a.family() != unix.AF_UNSPEC { // AF_UNSPEC ends an association
			a.held.Attempted(err)
		}
		return result(err)
	}
	if isNonblocking(a.socket) || a.domain != unix.AF_UNIX && a.kind == unix.SOCK_DGRAM { // a datagram needs no answer
		return do(r)
	}
	return r.apart(do, a.close)
}

// judgeConnect decides on a call of connect. If the address is a path, it opens
// the socket there, judges that object, and replaces the address by one that
// leads to the same object through its descriptor, because the path could lead
// elsewhere by the time of the call.
func (r *request) judgeConnect(a *address) error {
	if err := r.n.mayReach(a.domain, a.kind, a.sockaddr); err != nil {
		return err
	}
	if a.domain != unix.AF_UNIX {
		return nil
	}
	path, pathname, err := unixPath(a.sockaddr)
	if err != nil || !pathname {
		return err
	}
	if a.held != nil {
		return r.reachPath(a, path)
	}
	if !strings.HasPrefix(path, "/") {
		if err := r.openDir(a); err != nil {
			return err
		}
	}
	if err := r.n.find(a, path); err != nil {
		return err
	}
	a.sockaddr = unixAddr(ownPath(a.object))
	return nil
}

// reachPath is judgeConnect for a supervisor: it finds the socket at path in the
// same way as the other calls.
func (r *request) reachPath(a *address, path string) error {
	p, err := r.find(unix.AT_FDCWD, path, fsops.FollowLast)
	if err != nil {
		return err
	}
	defer p.close()
	if !p.Exists() {
		return unix.ENOENT
	}
	a.path = p.Path
	if err := p.Access.Readable(); err != nil {
		return err
	}
	if !r.n.config.Policy.AllUnixSockets {
		if err := r.n.judge(p.FD, p.Path); err != nil {
			return err
		}
	}
	a.object, p.FD = p.FD, -1
	a.sockaddr = unixAddr(ownPath(a.object))
	return nil
}

// unixPath returns the path in an address for a UNIX socket. pathname is false,
// without an error, if the address is not of AF_UNIX: the kernel decides about
// it. An abstract name is EPERM.
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
		// A link of procfs, such as /proc/self/cwd, leads init to another place
		// than the command.
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	canonical, err := os.Readlink(ownPath(a.object))
	if err != nil {
		return errnoOf(err)
	}
	if canonical, err = n.takePresent(a, canonical); err != nil {
		return err
	}
	a.path = canonical
	return n.judge(a.object, canonical)
}

// judge decides whether the command may connect to the socket fd with that
// canonical path.
func (n *Notifier) judge(fd int, canonical string) error {
	policy := n.config.Policy
	_, named := slices.BinarySearch(policy.Sockets, canonical)
	access := policy.Access(canonical)
	inRoot := policy.AllUnixSockets || policy.Network == sandbox.NetworkEnabled && access == sandbox.Write
	if !strings.HasPrefix(canonical, "/") || access < sandbox.Read || policy.DeniesFile(canonical) || !named && !inRoot {
		return unix.EPERM
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return unix.ECONNREFUSED
	case inRoot && (policy.AllUnixSockets || !policy.Temporary(canonical)), n.isNew(&st), named && n.isNamed(canonical, &st):
		return nil
	}
	return unix.EPERM
}

// isNew reports whether a file was made after the command was started. It uses
// the time of birth, the only time that cannot be changed. On a file system
// without times of birth, no file is new.
func (n *Notifier) isNew(st *unix.Statx_t) bool {
	if st.Mask&unix.STATX_BTIME == 0 {
		return false
	}
	return st.Btime.Sec > n.begun.Sec || st.Btime.Sec == n.begun.Sec && int64(st.Btime.Nsec) >= n.begun.Nsec
}

// isNonblocking reports whether calls on the socket return at once. The command
// shares the flag with the duplicate, and can clear it before the call is made
// here: then it blocks only its own calls.
func isNonblocking(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0
}
