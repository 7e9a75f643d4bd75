// Package fsops does what the file methods of the protocol ask for: native
// paths in, Go values out. It knows nothing of JSON, URIs or connections.
// Linux only.
//
// Paths are absolute and lexically clean (no ".", "..", doubled or trailing
// slash), as a decoded path URI is; they may hold any byte but NUL. Every
// operation resolves its path once and then works on descriptors, so a symbolic
// link that somebody swaps in meanwhile leads nowhere. No open ever blocks on a
// fifo or a device.
//
// Errors of the system are *fs.PathError values around the errno. What the
// protocol itself refuses is an [InvalidError] or an [UnknownHandleError].
//
// The operations are those of [FS]. [Host] has them on the whole file system, a
// [View] under a policy, which it asks about every name of a path. [ReadFile] and
// [WriteFile] work on either.
//
// A file is named after its verb and has it for both, Host first. What views add
// lies in resolve.go, jump.go and view*.go. The unexported methods of a nil *View
// are the plain system calls, so Host and View share walks, copies and removals.
//
// [Handles] and [WatchMissing] work on descriptors and paths that an FS has let
// through. Methods may run at once, but for Close of a View.
//
// What each operation does and how it fails is in rpc.md 5.
package fsops
