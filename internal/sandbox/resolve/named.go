package resolve

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
)

// named looks up the sockets and devices that p names, and adds them to policy. A socket in a hidden or
// denied place gets a rule, so that it is shown. A socket in a writable place gets one, so that it stays there:
// a command that puts another socket in its place cannot reach that one, but the next command could. An
// object of another kind is an error, because its rule would show more than a socket.
func (s *resolution) named(policy, p *sandbox.Policy) error {
	for _, name := range p.Sockets {
		if err := s.see("socket", name, func(o *sighting) error {
			policy.Sockets, o.named = append(policy.Sockets, o.path), true
			switch {
			case !o.exists():
				return nil
			case o.stat.Mode&unix.S_IFMT != unix.S_IFSOCK:
				return fmt.Errorf("cannot enforce the sandbox socket %s: it is not a UNIX socket", name)
			case s.rules.Access(o.path) != sandbox.Read:
				return s.rule(sandbox.Rule{Path: o.path, Access: sandbox.Read}, o)
			}
			o.rule = true // so that links to it are shown
			return nil
		}); err != nil {
			return err
		}
	}
	for _, name := range p.Devices {
		if err := s.see("device", name, func(o *sighting) error {
			kind := o.stat.Mode & unix.S_IFMT
			switch {
			case !o.exists():
				return nil
			case kind != unix.S_IFCHR && kind != unix.S_IFBLK:
				return fmt.Errorf("cannot enforce the sandbox device %s: it is not a device", name)
			case !pathname.Below(o.path, "/dev"), pathname.Below(o.path, "/dev/pts"), pathname.Below(o.path, "/dev/shm"):
				return fmt.Errorf("cannot enforce the sandbox device %s: only devices in /dev can be shown, and no terminals", name)
			}
			policy.Devices, o.named = append(policy.Devices, o.path), true
			return nil
		}); err != nil {
			return err
		}
	}
	for _, paths := range []*[]string{&policy.Sockets, &policy.Devices} {
		slices.Sort(*paths)
		*paths = slices.Compact(*paths)
	}
	return nil
}
