package confine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/view"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// grace is how long an init without a PID namespace may take to kill every
// process that it started, before it is killed itself.
const grace = 200 * time.Millisecond

// Command describes a program to run, and how the program is confined. Its
// strings must not contain a NUL byte.
type Command struct {
	// Policy is what the command may do. Prepare refuses a policy that restricts
	// nothing, because its command must be started without an init.
	Policy *sandbox.Policy
	// Backend has the layers that [sandbox.Policy.Backend] has chosen.
	Backend sandbox.Backend
	// Argv is the command. A first element without a slash is searched in the
	// PATH of Env, inside the sandbox.
	Argv []string
	// Arg0 is the argv[0] that the program sees; nil means Argv[0].
	Arg0 *string
	// Env is the whole environment, as "NAME=value"; PWD is set to Dir when the
	// file system is confined (sandbox.md 7).
	Env []string
	// Dir is the absolute working directory, as it is seen inside.
	Dir string
	// TTY says that descriptors 0 to 2 are a terminal.
	TTY bool
	// NewSession makes the command the leader of a new session, and its terminal
	// the controlling one. Otherwise the command stays in the session, in the
	// process group and at the terminal of the process that starts its init.
	NewSession bool
	// Limits are the resource limits of the command.
	Limits Limits
	// AgentPorts are the TCP ports that the agent itself listens at. A command
	// with the network cannot connect to them on this host.
	AgentPorts []uint16
	// Gate are the ports of the listeners of a command with a managed network; the stage
	// then needs one more file, which leads to the gate.
	Gate []uint16
	// Granted is what [resolve.Resolved.Granted] returned when the agent decided
	// that the command may be started. The init looks the paths of the policy up
	// again, and refuses to run the command if one leads elsewhere by then. With
	// nil the init compares nothing.
	Granted []string
	// ShellCodes makes the init end like a shell, with 127 if the program is not found, or 126 if
	// it cannot be executed. Every other failure to run the program ends with 101.
	ShellCodes bool
	// Shm is a supervised command's replacement for /dev/shm; "" if it has none.
	Shm string
	// Argv0 is the agent's own argv[0], which the init gets too.
	Argv0 string
	// Rules are a policy about the programs that the command executes, packed by
	// [execpolicy.AppendPacked]; nil: none. The stage then needs one more file, after the file of a
	// gate, for questions (package judge).
	Rules []byte
	// TellsRefusals makes the command's standard error say which programs the rules refuse, and why.
	TellsRefusals bool
	// NotesRefusals: the init notes what it refuses in a file, see [Held.NoteRefusals].
	NotesRefusals bool
	// ChangesApart, if it is not empty, makes the init note what the command changes in the same file, see
	// [Held.NoteChanges].
	ChangesApart []string
	// Endpoint, if it is not the zero value, is the endpoint that the init connects to
	// instead of running a program.
	Endpoint Endpoint
}

// Limits are [sandbox.Limits], as an init sets them.
type Limits sandbox.Limits

// Prepare makes the stage that starts the command under its policy. It does not
// check whether the host has the layers: if one is missing, the init says so
// and ends with code 101. An error means that the command cannot be described
// to an init. The caller closes the stage, or passes it to [procs.Start].
func (c Command) Prepare() (*procs.Stage, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	cfg := config{Command: c, UID: os.Geteuid(), GID: os.Getegid()}
	if c.Policy.Confined {
		cfg.Env = slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool { return strings.HasPrefix(kv, "PWD=") })
		cfg.Env = append(cfg.Env, "PWD="+c.Dir)
	}
	if c.Backend.Has(sandbox.MountNS) && !c.Policy.AllUnixSockets {
		// With the network restricted an error does not matter, because the
		// filter forbids connect(2), or a listener allows only named sockets.
		var err error
		if cfg.Sockets, err = view.SocketPaths(); err != nil && c.Policy.Network == sandbox.NetworkEnabled {
			return nil, fmt.Errorf("listing the sockets of this host: %w", err)
		}
	}
	encoded, err := cfg.encode()
	if err != nil {
		return nil, fmt.Errorf("describing the command to the sandbox: %w", err)
	}
	if len(encoded) > maxConfig {
		return nil, fmt.Errorf("describing the command to the sandbox: %d bytes, more than %d: %w", len(encoded), maxConfig, syscall.E2BIG)
	}
	fd, err := pack.SealedFile(Arg, encoded)
	if err != nil {
		return nil, fmt.Errorf("describing the command to the sandbox: %w", err)
	}
	memfd := os.NewFile(uintptr(fd), Arg)
	leash, held, err := newLeash()
	if err != nil {
		return nil, errors.Join(err, memfd.Close())
	}
	p := &procs.Stage{
		Path: "/proc/self/exe",
		Argv: []string{c.Argv0, Arg},
		// Few threads are enough. With a number set here the runtime also does
		// not read the limits of its cgroups at each start to choose one.
		Env:        []string{"GOMAXPROCS=2"},
		Files:      []*os.File{memfd, held},
		Leash:      leash,
		Cloneflags: c.namespaces(),
	}
	if c.Rules != nil {
		p.Env = []string{threadsOfSupervisor}
	}
	if c.Backend.Has(sandbox.UserNS) {
		p.AmbientCaps = linux.UserNamespaceCaps()
	}
	if c.isManaged() && c.Backend.Has(sandbox.NetNS) {
		p.AmbientCaps = append(p.AmbientCaps, unix.CAP_NET_ADMIN) // to start an interface
		if c.Policy.Transparent {
			p.AmbientCaps = append(p.AmbientCaps, unix.CAP_NET_BIND_SERVICE) // for the resolver's port
		}
	}
	if (c.Policy.Confined || c.Rules != nil) && !c.Backend.Has(sandbox.PIDNS) {
		p.Grace = grace
	}
	return p, nil
}

// check refuses what no init could enforce.
func (c *Command) check() error {
	if len(c.Argv) == 0 && c.Endpoint == (Endpoint{}) {
		return errors.New("sandbox: argv is empty")
	}
	if c.isManaged() != (len(c.Gate) > 0) || len(c.Gate) > gate.MaxListeners {
		return fmt.Errorf("sandbox: the network is %v and the gate has %d listeners", c.Policy.Network, len(c.Gate))
	}
	if c.isManaged() && c.Endpoint != (Endpoint{}) {
		return errConnects
	}
	if c.Rules != nil && c.Endpoint != (Endpoint{}) {
		return errors.New("sandbox: a connection executes nothing")
	}
	if c.Rules != nil && c.Policy.RestrictsNothing() && c.Backend == (sandbox.Backend{}) {
		return nil // the init only watches
	}
	return c.Policy.CheckBackend(c.Backend)
}

// namespaces returns the flags of clone(2) for the namespaces that init is
// started in.
func (c *Command) namespaces() (flags uintptr) {
	if !c.Policy.Confined {
		return 0
	}
	for _, l := range sandbox.Namespaces() {
		if l == sandbox.NetNS && c.Policy.Network == sandbox.NetworkEnabled {
			continue
		}
		if c.Backend.Has(l) {
			flags |= l.CloneFlag()
		}
	}
	return flags
}

// newLeash makes the two ends of a leash: the agent's and the init's.
func newLeash() (ours, theirs *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the leash of the sandbox: %w", os.NewSyscallError("socketpair", err))
	}
	return os.NewFile(uintptr(ends[0]), "leash"), os.NewFile(uintptr(ends[1]), "leash"), nil
}
