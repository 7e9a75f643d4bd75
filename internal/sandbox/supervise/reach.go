package supervise

import (
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// mayReach is the only decision about the addresses that a command may reach: it
// returns nil, or the errno with which the call fails. It does not decide about bind.
// It is called
//
//   - by socket(2), where sockaddr is nil: may the command have a socket of that
//     family and type, without its flags?
//   - by connect(2) and by all calls that send to an address: may such a socket
//     reach sockaddr? sockaddr is as the command passed it: it may be empty, or of
//     another family than the socket (AF_UNSPEC ends an association).
//
// Without a level, in namespaces, only connect(2) calls it: the filter decides which
// sockets exist, and messages are not judged.
//
// A command may reach everything that it could without a sandbox (sandbox.md 14.5), except:
//
//   - the agent's own listeners, because their clients are not confined
//   - an abstract name of a UNIX socket. Any process of the host could listen
//     there. Landlock's scope would prevent the command from connecting, but it
//     does not restrict init, which does the call
//   - the host of a virtual machine, through its sockets
//   - UNIX sockets that name a peer in each message, because their paths are not judged
//
// A command with a managed network may reach less: [Notifier.mayReachManaged]. In a network namespace
// it may reach what the kernel lets it. Without a network it only reaches UNIX sockets with a path.
//
// Whether the path of a UNIX socket may be reached depends on the object there:
// [request.judgeConnect] decides that.
//
// If sockets of a family and type name a peer in each message, and some addresses
// are refused to them, such sockets must be refused altogether, in socket(2):
// supervised.md 12 says why.
func (n *Notifier) mayReach(family, kind int, sockaddr []byte) error {
	switch {
	case n.config.Proxy != nil:
		return n.mayReachManaged(family, kind, sockaddr)
	case n.config.Policy.Network == sandbox.NetworkRestricted && family != unix.AF_UNIX, family == unix.AF_VSOCK:
		return unix.EPERM
	case family == unix.AF_UNIX && kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET:
		return unix.EPERM
	case sockaddr == nil:
		return nil
	case n.config.Policy.Network == sandbox.NetworkEnabled && n.isAgent(kind, sockaddr):
		return unix.EPERM
	case family == unix.AF_UNIX:
		_, _, err := unixPath(sockaddr)
		return err
	}
	return nil
}
