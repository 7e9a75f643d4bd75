package enforce

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

//go:generate go run -tags filtergen ./filtergen

// Filter names a seccomp program. The programs are compiled from the tables in
// internal/seccomp with libseccomp, on a developer's machine, and are
// committed in filters/<architecture>; what is here only loads them.
//
// Every program ends the process on a system call of another architecture and
// answers ENOSYS to x32 calls and to calls that are newer than the tables.
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
	// FilterLandlock is FilterRestricted without what Landlock does not cover:
	// modes, owners, times, attributes, and IPC that has no namespace.
	FilterLandlock Filter = "landlock"
	// FilterHiddenPaths is loaded beside FilterLandlock where not everything
	// may be read: it refuses most of what can be learnt of a path without
	// opening it. What stat(2) and readlink(2) tell remains.
	FilterHiddenPaths Filter = "hidden-paths"
	// FilterNetwork takes the network from processes whose file system is not
	// restricted, with the ways around it through other processes, and nothing
	// else. [NetworkRuleset] closes what it cannot see: files of procfs.
	FilterNetwork Filter = "network"
)

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
