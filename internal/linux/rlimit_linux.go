package linux

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Rlimit is a limit of this process and of the children that it starts later (setrlimit(2)).
type Rlimit struct {
	Resource int
	Name     string // of the resource, for errors
	Value    uint64 // 0: no limit
}

// Impose sets the soft and the hard limits, but none above the inherited hard one. If there is one to set, the
// calling thread gives up CAP_SYS_RESOURCE before, with which the program that it executes could lift them
// again. The caller has locked the thread. Impose allocates nothing after the last limit.
func Impose(limits ...Rlimit) error {
	given := false
	for _, l := range limits {
		if l.Value == 0 {
			continue
		}
		if !given {
			if err := giveUpResource(); err != nil {
				return err
			}
			given = true
		}
		if err := l.impose(); err != nil {
			return err
		}
	}
	return nil
}

func (l Rlimit) impose() error {
	var was unix.Rlimit
	err := unix.Getrlimit(l.Resource, &was)
	if err == nil {
		value := min(l.Value, was.Max)
		err = unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: value, Max: value})
	}
	if err != nil {
		return fmt.Errorf("limiting %s to %d: %w", l.Name, l.Value, os.NewSyscallError("prlimit", err))
	}
	return nil
}

// errKeepsResource says why root could lift its limits.
var errKeepsResource = errors.New("root can lift an rlimit with CAP_SYS_RESOURCE, which cannot be taken from its programs without CAP_SETPCAP")

// giveUpResource takes CAP_SYS_RESOURCE from the calling thread and from the programs that it executes.
func giveUpResource() error {
	if err := CheckRlimits(); err != nil {
		return err
	}
	may, err := Capable(unix.CAP_SETPCAP)
	if err == nil && may {
		err = os.NewSyscallError("prctl", unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_RESOURCE, 0, 0, 0))
	}
	if err != nil {
		return fmt.Errorf("giving up CAP_SYS_RESOURCE: %w", err)
	}
	sets, err := capabilities()
	if err != nil {
		return err
	}
	s, bit := &sets[unix.CAP_SYS_RESOURCE/32], uint32(1)<<(unix.CAP_SYS_RESOURCE%32)
	if (s.Effective|s.Permitted|s.Inheritable)&bit == 0 {
		return nil
	}
	s.Effective, s.Permitted, s.Inheritable = s.Effective&^bit, s.Permitted&^bit, s.Inheritable&^bit
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("giving up CAP_SYS_RESOURCE: %w", os.NewSyscallError("capset", err))
	}
	return nil
}

// CheckRlimits returns an error if the programs of this user can lift their limits although a thread has given
// up its capabilities: those of root get capabilities by execve(2), unless no_new_privs is set.
func CheckRlimits() error {
	may, err := Capable(unix.CAP_SETPCAP)
	if err != nil || may || os.Getuid() != 0 && os.Geteuid() != 0 {
		return err
	}
	kept, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	if err != nil || kept == 0 {
		return os.NewSyscallError("prctl", err)
	}
	bound, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err == nil && bound == 0 {
		return errKeepsResource
	}
	return os.NewSyscallError("prctl", err)
}
