package sandbox

// Host is what a host can enforce, found out by doing it.
type Host struct {
	UserNS  bool // a user namespace with our own ids mapped
	MountNS bool // a new root with read-only and writable mounts, pivoted to
	PIDNS   bool // a pid namespace with a fresh procfs in it
	IPCNS   bool
	NetNS   bool
	// Landlock is the ABI that was seen to refuse; 0 is none.
	Landlock int
	Seccomp  bool
	// Reasons has, for each missing layer (by the name of its field), what
	// failed and how to get it.
	Reasons map[string]Reason
}

// Reason is why a layer is missing.
type Reason struct {
	Error  string // of the attempt
	Remedy string // for the operator
}

// Backend is the set of layers that a process is confined by.
type Backend struct {
	UserNS, MountNS, PIDNS, IPCNS, NetNS bool
	Landlock                             int
	Seccomp                              bool
}
