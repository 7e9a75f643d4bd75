package enforce

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

//go:generate go run -tags filtergen ./filtergen

// Filter names a seccomp program. The programs are compiled from the tables in
// internal/seccomp with libseccomp, on a developer's machine, and are
// committed in filters/<architecture>; what is here only loads them.
//
// Every program ends the process on a system call of another architecture, and
// lets x32 calls and calls that are newer than the tables fail with ENOSYS.
type Filter string

// The filters. sandbox.md, sections 7, 13, 14.4 and 14.5.
const (
	// FilterHelper is the allow-list of the fs helper; anything else ends it.
	FilterHelper Filter = "helper"
	// FilterRestricted is for processes without a network.
	FilterRestricted Filter = "restricted"
	// FilterEnabled is for processes with the host's network and a restricted
	// file system. It needs a listener, which decides where connect may go and
	// which names bind may take.
	FilterEnabled Filter = "enabled"
	// FilterManaged is for processes in a network namespace out of which only the
	// listeners of a proxy lead. With FilterManagedUnix they also have UNIX sockets, for
	// every path.
	FilterManaged     Filter = "managed"
	FilterManagedUnix Filter = "managed-unix"
	// FilterLandlock is for processes without a network, a view and namespaces,
	// whose policy lets nothing be written. It refuses what FilterRestricted does,
	// except that it does not look at the modes of new files: Landlock lets none
	// be made. It also refuses what Landlock does not look at: changes of modes,
	// owners, times and attributes, and IPC, which would be the host's.
	FilterLandlock Filter = "landlock"
	// FilterHiddenPaths is loaded beside FilterLandlock where not everything
	// may be read: it refuses most calls that tell something of a path without
	// opening it. It lets stat(2) and readlink(2) through.
	FilterHiddenPaths Filter = "hidden-paths"
	// FilterNetwork takes the network from processes whose file system is not
	// restricted, and the ways to get one through other processes; it refuses
	// nothing else. One of these ways no filter can see, files of procfs:
	// [sandbox.NetworkRuleset] closes that.
	FilterNetwork Filter = "network"
)

// FilterSupervised returns the filter for processes whose calls a supervisor does
// in the level of b, without the network, with it, or with a proxy. It needs a listener, which
// does the calls that package calls has a row for: also signals, where Landlock
// does not keep them inside.
func FilterSupervised(b sandbox.Backend, network sandbox.Network) Filter {
	name := Filter("supervised-" + strings.ToLower(b.Level.String()))
	switch network {
	case sandbox.NetworkEnabled:
		name += "-online"
	case sandbox.NetworkManaged:
		name += "-managed"
	case sandbox.NetworkRestricted:
	}
	if !b.Scoped() {
		name += "-unscoped" // with any network there is none
	}
	return name
}

// maxInstructions is BPF_MAXINSNS of linux/bpf_common.h.
const maxInstructions = 4096

// program returns the instructions for the architecture that this program is
// built for. A filter that does not exist is an error.
func (f Filter) program() ([]unix.SockFilter, error) {
	raw, err := programs.ReadFile(programDir + "/" + string(f) + ".bpf")
	if err != nil {
		return nil, fmt.Errorf("reading filter %q: %w", f, err)
	}
	program, err := decodeProgram(raw)
	if err != nil {
		return nil, fmt.Errorf("reading filter %q: %w", f, err)
	}
	return program, nil
}

// decodeProgram reads instructions as struct sock_filter has them on a little
// endian machine.
func decodeProgram(raw []byte) ([]unix.SockFilter, error) {
	const size = 8
	if len(raw) == 0 || len(raw)%size != 0 || len(raw)/size > maxInstructions {
		return nil, fmt.Errorf("%d bytes are no program", len(raw))
	}
	program := make([]unix.SockFilter, 0, len(raw)/size)
	for ; len(raw) > 0; raw = raw[size:] {
		program = append(program, unix.SockFilter{
			Code: binary.LittleEndian.Uint16(raw),
			Jt:   raw[2],
			Jf:   raw[3],
			K:    binary.LittleEndian.Uint32(raw[4:]),
		})
	}
	return program, nil
}
