package supervise

import (
	"golang.org/x/sys/unix"
)

// mayReach is the one decision about what a command may reach: nil, or the errno with
// which the call fails. It does not decide what the command may bind. It is asked
//
//   - by socket(2), where sockaddr is nil: may the command have a socket of that
//     family and type, without its flags?
//   - by connect(2) and by all that sends to an address: may such a socket reach
//     sockaddr? It is as the command has passed it: empty, or of another family than
//     the socket (AF_UNSPEC ends an association).
//
// Without a level, in namespaces, only connect(2) asks: the filter says which sockets
// there are, and nobody is asked about messages.
//
// A command may reach what it could without a sandbox (sandbox.md 14.5), but not:
//
//   - the agent's own listeners, since nothing confines their clients
//   - an abstract name of a UNIX socket. Any process of the host could listen
//     there. Landlock's scope would keep a command from connecting, but it does
//     not bind init, which does the call
//   - the host of a virtual machine, by its sockets
//   - UNIX sockets that name a peer in each message: nobody judges the path then
//
// A command with a managed network may reach less: [Notifier.mayReachManaged].
//
// Whether the path of a UNIX socket may be reached depends on the object there:
// [request.judgeConnect] decides that.
//
// A decision that refuses some addresses to a family and type whose sockets name a
// peer in each message has to refuse such sockets as a whole, by socket(2):
// supervised.md 12 says why.
func (n *Notifier) mayReach(family, kind int, sockaddr []byte) error {
	switch {
	case n.config.Proxy != nil:
		return n.mayReachManaged(family, kind, sockaddr)
	case family == unix.AF_VSOCK:
		return unix.EPERM
	case family == unix.AF_UNIX && kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET:
		return unix.EPERM
	case sockaddr == nil:
		return nil
	case n.isAgent(kind, sockaddr):
		return unix.EPERM
	case family == unix.AF_UNIX:
		_, _, err := unixPath(sockaddr)
		return err
	}
	return nil
}
