package sandbox

// Layer is one mechanism of the kernel to confine a process. The table below has
// a row with everything about each layer. A new layer is a constant and a row;
// then package probe tries it, doctor lists it, and Policy.Backend (backend.go)
// must choose it for the policies that need it.
type Layer uint8

// The layers, in the order in which they are put on.
const (
	// UserNS is a user namespace with our own ids mapped. An ordinary user may
	// make the other namespaces only in it.
	UserNS Layer = iota
	// MountNS is a new root with read-only and writable mounts, made the root by pivot_root(2).
	MountNS
	// PIDNS is a pid namespace. No signal, and no other call with a process
	// number, leaves it.
	PIDNS
	// Procfs is a fresh procfs of that namespace. Without it, a command in a pid
	// namespace has the procfs from outside, which lists the other processes, all
	// under numbers that differ from those inside.
	Procfs
	// IPCNS is an IPC namespace, with its own System V IPC and POSIX message queues.
	IPCNS
	// NetNS is a network namespace without an interface that leads out.
	NetNS
	// Supervised is a supervisor that does or judges a command's calls, with
	// separate Landlock rulesets for both (supervised.md 4). [Backend] has its
	// level.
	Supervised
	// Landlock is in no [Layers]: [Host] and [Backend] have its ABI.
	Landlock
	// Seccomp is a filter of system calls.
	Seccomp
	// UserNotify is a filter that passes some calls to a listener. Such a call
	// waits for the listener's answer, and only fatal signals interrupt the wait
	// (Linux 5.19).
	UserNotify
	// Pidfd is pidfd_getfd, with which the init of a command in namespaces takes a socket from the
	// command, to connect or bind it. Without Pidfd such a call would fail; a supervisor does not
	// need it.
	Pidfd
)

// layers has the row of each layer.
var layers = [...]struct {
	name   string  // for operators
	wire   string  // for clients: in sandboxLayers of process/start, and in the error for a missing one
	untold bool    // sandboxLayers leaves it out
	tried  string  // how a probe tests it
	proc   string  // of a namespace: its name in /proc/PID/ns
	clone  uintptr // of a namespace: its flag of clone(2); a number, because x/sys has it on Linux only
}{
	UserNS:     {name: "userns", wire: "userns", tried: "map its own ids in a new user namespace", proc: "user", clone: 0x10000000},
	MountNS:    {name: "mountns", wire: "mountns", tried: "pivot to a read-only clone of the root and write to it", proc: "mnt", clone: 0x00020000},
	PIDNS:      {name: "pidns", wire: "pidns", tried: "read and signal a process outside from a new pid namespace", proc: "pid", clone: 0x20000000},
	Procfs:     {name: "procfs", wire: "procfs", untold: true, tried: "mount a fresh procfs in a new pid namespace"},
	IPCNS:      {name: "ipcns", wire: "ipcns", untold: true, tried: "enter a new ipc namespace", proc: "ipc", clone: 0x08000000},
	NetNS:      {name: "netns", wire: "netns", tried: "enter a new network namespace", proc: "net", clone: 0x40000000},
	Supervised: {name: "supervised", wire: "supervised", tried: "let a supervisor read a caller's memory, and give the caller a descriptor"},
	Landlock:   {name: "landlock", wire: "landlock", tried: "read and create files that a ruleset forbids"},
	Seccomp:    {name: "seccomp", wire: "seccomp", tried: "make a system call that a filter forbids"},
	UserNotify: {name: "usernotify", wire: "seccomp", untold: true, tried: "let a listener answer a system call"},
	Pidfd:      {name: "pidfd", wire: "seccomp", untold: true, tried: "take a descriptor from another process (pidfd_getfd)"},
}

// AllLayers returns every layer, in the order in which they are put on.
func AllLayers() []Layer {
	all := make([]Layer, len(layers))
	for i := range all {
		all[i] = Layer(i)
	}
	return all
}

// Namespaces returns the layers that are namespaces. The first is [UserNS].
func Namespaces() []Layer {
	var spaces []Layer
	for _, l := range AllLayers() {
		if l.CloneFlag() != 0 {
			spaces = append(spaces, l)
		}
	}
	return spaces
}

// String returns the name for operators, which is stable.
func (l Layer) String() string { return layers[l].name }

// Tried describes how a probe tests that the layer works.
func (l Layer) Tried() string { return layers[l].tried }

// CloneFlag returns the flag of clone(2) for the namespace; 0 for any other
// layer.
func (l Layer) CloneFlag() uintptr { return layers[l].clone }

// ProcName returns the name of the namespace in /proc/PID/ns; "" for any other
// layer.
func (l Layer) ProcName() string { return layers[l].proc }

// Layers is a set of layers.
type Layers uint16

// LayersOf returns the set of these layers.
func LayersOf(all ...Layer) Layers { return Layers(0).With(all...) }

// has reports whether l is in the set.
func (s Layers) has(l Layer) bool { return s&(1<<l) != 0 }

// With returns the set with these layers too.
func (s Layers) With(more ...Layer) Layers {
	for _, l := range more {
		s |= 1 << l
	}
	return s
}

// Without returns the set without these layers.
func (s Layers) Without(some ...Layer) Layers {
	for _, l := range some {
		s &^= 1 << l
	}
	return s
}
