package enforce

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

//go:generate go run -tags filtergen ./filtergen

// Filter names a seccomp program. The programs are compiled from the tables in
// internal/seccomp with libseccomp, on a developer's machine, and are
// committed in filters/<architecture>. This package only loads them.
//
// Every program kills the process on a system call of another architecture. x32
// calls, and calls newer than the tables, fail with ENOSYS.
type Filter string

// The filters. sandbox.md, sections 7, 13, 14.4 and 14.5. [FiltersFor] chooses the filters of a
// command; the fs helper has its own filter.
const (
	// FilterHelper allows the fs helper the calls of a list; any other call kills it.
	FilterHelper Filter = "helper"
	// FilterRestricted is for processes without a network.
	FilterRestricted Filter = "restricted"
	// FilterRestrictedSockets is for processes without a network that may connect to named UNIX
	// sockets. It needs a listener, which decides about each connection.
	FilterRestrictedSockets Filter = "restricted-sockets"
	// FilterEnabled is for processes with the host's network and a restricted
	// file system. It needs a listener, which decides where connect may go and
	// which names bind may take.
	FilterEnabled Filter = "enabled"
	// FilterManaged is for processes in a network namespace whose only way out is
	// the listeners of a proxy. FilterManagedUnix also allows UNIX sockets, at
	// every path.
	FilterManaged     Filter = "managed"
	FilterManagedUnix Filter = "managed-unix"
	// FilterManagedHeld and FilterManagedUnixHeld are the same for processes whose connections are
	// held. They need a listener.
	FilterManagedHeld     Filter = "managed-held"
	FilterManagedUnixHeld Filter = "managed-unix-held"
	// FilterManagedSockets and FilterManagedSocketsHeld are FilterManaged and FilterManagedHeld for
	// processes that may also connect to named UNIX sockets. They need a listener.
	FilterManagedSockets     Filter = "managed-sockets"
	FilterManagedSocketsHeld Filter = "managed-sockets-held"
	// FilterLandlock is for processes without a network, a view and namespaces,
	// whose policy allows no writes. It refuses the same calls as FilterRestricted,
	// but does not check the modes of new files, because Landlock lets no file be
	// made. It also refuses actions that Landlock does not control: changes of modes,
	// owners, times and attributes, and IPC, which would be the IPC of the host.
	FilterLandlock Filter = "landlock"
	// FilterHiddenPaths is loaded before FilterLandlock where the policy hides
	// some paths: it refuses most calls that reveal facts about a path without
	// opening it. It allows stat(2) and readlink(2).
	FilterHiddenPaths Filter = "hidden-paths"
	// FilterNetwork takes the network, and the ways to get a network through other
	// processes, from processes whose file system is not restricted. It refuses
	// nothing else. A filter cannot see one of these ways, the files of procfs;
	// [sandbox.NetworkRuleset] closes that way.
	FilterNetwork Filter = "network"
	// FilterExecs refuses nothing. It has no program of its own: it can only be
	// loaded with a listener that is [AskedExecs].
	FilterExecs Filter = "execs"
)

// maxInstructions is BPF_MAXINSNS of linux/bpf_common.h.
const maxInstructions = 4096

// program returns the instructions for the architecture that this program is
// built for. A filter without a program is an error.
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

// decodeProgram reads instructions in the layout of struct sock_filter on a
// little-endian machine.
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
