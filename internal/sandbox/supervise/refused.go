package supervise

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/sandbox"
)

// Refusals are noted only where the policy is known to be the reason. An errno alone does not say so: the
// file system gives the same ones. A path that the policy hides is ENOENT like a path that does not exist.
// Programs look for many such paths, so a lookup that finds nothing is not noted.

// refuse ends a call with err, because the policy does not allow op at a canonical path.
func (r *request) refuse(op refusals.Operation, path string, err error) callResult {
	r.n.note(op, path)
	return fail(err)
}

// refuseFound ends a call whose path was not found. A lookup ends early where the policy denies a name.
func (r *request) refuseFound(op refusals.Operation, dir int, name string, err error) callResult {
	if r.n.config.Refused != nil && err == unix.EACCES {
		if at := r.written(dir, name); r.n.denied(at) {
			r.n.note(op, at)
		}
	}
	return fail(err)
}

// denied reports whether the policy denies a path by name.
func (n *Notifier) denied(at string) bool {
	p := n.config.Policy
	return strings.HasPrefix(at, "/") && (p.Access(at) == sandbox.Denied || p.DeniesFile(at))
}

// written returns the absolute path that a call has named. It follows no links.
func (r *request) written(dir int, name string) string {
	if strings.HasPrefix(name, "/") {
		return path.Clean(name)
	}
	link := "cwd"
	if dir != unix.AT_FDCWD {
		link = fmt.Sprintf("fd/%d", dir)
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", r.thread(), link))
	if err != nil {
		return ""
	}
	return path.Join(at, name)
}

// note notes that the policy does not allow op at a canonical path.
func (n *Notifier) note(op refusals.Operation, path string) {
	if n.config.Refused != nil && n.config.Level != sandbox.NoLevel && strings.HasPrefix(path, "/") {
		n.config.Refused.Add(refusals.OfFile(n.config.Policy, op, path))
	}
}

// noteAddress notes that a socket may not connect to an address. err is the reason.
func (n *Notifier) noteAddress(a *address, err error) {
	past := err == unix.ENETUNREACH && n.config.Proxy != nil // the answer of mayReachManaged
	if n.config.Refused == nil || err != unix.EPERM && !past {
		return
	}
	r := refusals.Refusal{Layer: refusals.Socket, Operation: refusals.Connect}
	at, _, inet := inetAddress(a.sockaddr)
	switch name, named, _ := unixPath(a.sockaddr); {
	case inet && past:
		r.Subject, r.Reason = at.String(), "the proxy that the variables name is the only way out"
	case inet:
		r.Subject, r.Reason = at.String(), "the agent itself listens there"
	case a.domain != unix.AF_UNIX:
		return
	case named:
		r = n.ofSocket(a, name)
	default:
		r.Subject, r.Reason = "an abstract UNIX socket", "its name belongs to the whole host"
	}
	n.config.Refused.Add(r)
}

// ofSocket returns the refusal of a connection to a UNIX socket that a call has named. What to ask for is the path that
// the name leads to: a command may have made a link with a harmless name.
func (n *Notifier) ofSocket(a *address, name string) refusals.Refusal {
	r := refusals.Refusal{Layer: refusals.Socket, Operation: refusals.Connect, Subject: name}
	if !strings.HasPrefix(name, "/") {
		r.Subject = "./" + name
	}
	switch {
	case a.kind != unix.SOCK_STREAM && a.kind != unix.SOCK_SEQPACKET:
		r.Reason = "a command reaches no socket that takes datagrams"
	case a.path != "" && n.denied(a.path):
		denied := refusals.OfFile(n.config.Policy, refusals.Read, a.path)
		if r.Reason = denied.Reason; denied.Need != refusals.Nothing {
			r.Need, r.At = refusals.ToConnect, a.path
		}
	default:
		r.Reason = "a command reaches only sockets that are named, or in folders that it may write, and in temporary folders only its own"
		if strings.HasPrefix(a.path, "/") {
			r.Need, r.At = refusals.ToConnect, a.path
		}
	}
	return r
}
