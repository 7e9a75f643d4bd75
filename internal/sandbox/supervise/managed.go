package supervise

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A command with a managed network connects only to the listeners of its gate
// (network.md 9). The supervisor announces each connection to the gate before it makes
// it, because the listeners are ports of the host, which everybody can connect to. The
// call returns when the gate has the connection, even if the command would not wait for
// it.

// mayReachManaged is mayReach for such a command. The errors are those of a namespace
// with only a loopback interface and the gate's listeners.
func (n *Notifier) mayReachManaged(family, kind int, sockaddr []byte) error {
	inet := family == unix.AF_INET || family == unix.AF_INET6
	switch {
	case family == unix.AF_UNIX && (n.config.Policy.AllUnixSockets || len(n.config.Policy.Sockets) > 0) && (kind == unix.SOCK_STREAM || kind == unix.SOCK_SEQPACKET):
		if sockaddr == nil {
			return nil
		}
		_, _, err := unixPath(sockaddr)
		return err
	case inet && kind == unix.SOCK_DGRAM && n.config.Holder != nil && sockaddr == nil:
		return nil // a socket for questions
	case !inet || kind != unix.SOCK_STREAM:
		return unix.EPERM
	case sockaddr == nil:
		return nil
	}
	to, _, ok := inetAddress(sockaddr)
	switch at := to.Addr().Unmap(); {
	case len(sockaddr) >= 2 && binary.NativeEndian.Uint16(sockaddr) == unix.AF_UNSPEC:
		return nil
	case !ok:
		return unix.EINVAL
	case int(binary.NativeEndian.Uint16(sockaddr)) != family:
		return unix.EAFNOSUPPORT
	case n.config.Proxy.Leads(netip.AddrPortFrom(at, to.Port())):
		return nil
	case at.IsLoopback() || at.IsUnspecified():
		return unix.ECONNREFUSED
	}
	return unix.ENETUNREACH
}

// connectGate does the judged call of connect in a, and announces it to the gate.
func (r *request) connectGate(a *address) callResult {
	if a.family() == unix.AF_UNSPEC {
		a.close()
		return callResult{} // it would end a connection, but there is none
	}
	return r.apart(func(r *request) callResult {
		defer a.close()
		to, _, _ := inetAddress(a.sockaddr)
		err := r.n.config.Proxy.Connect(a.socket, a.domain, to.Port())
		a.held.Attempted(err)
		return result(err)
	}, a.close)
}
