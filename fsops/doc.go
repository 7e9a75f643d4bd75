// Package fsops does the file operations of the protocol: native paths in, Go values
// out. It knows nothing of JSON, URIs or connections.
//
//	files := fsops.Host{}
//	text, err := fsops.ReadFile(ctx, files, "/srv/w/notes", fsops.FollowLinks, nil)
//
// The operations are the methods of [FS]. A [Host] does them on the whole file system. A
// [View] does them under [Rules], which it asks about every name of a path. [ReadFile]
// and [WriteFile] work on either. [Handles] are open files and folders under ids. A
// [Watch] waits for a path to appear; watches share a [WatchGroup].
//
// Paths are absolute and lexically clean (no ".", "..", doubled or trailing slash), as a
// decoded path URI is; they may hold any byte but NUL. Work on a tree, and all work of a
// View, goes on from descriptors of what was found first: if a symbolic link replaces a
// directory in between, it is not followed. No open ever blocks on a fifo or a device.
//
// Errors of the system are *fs.PathError values around the errno. Requests that the
// protocol itself refuses fail with an [InvalidError] or an [UnknownHandleError].
// rpc.md 5 says what each operation does and how it fails.
//
// # Files
//
// Related operations share a source file, which is named after one of them or after the
// things they work on (read.go, write.go, stat.go, dir.go, mkdir.go), with the methods
// of Host first and those of View after them. The code by which a view resolves and
// judges paths is in resolve.go, jump.go and view*.go. Walks, copies and removals exist
// once for both: they are unexported methods of *View, which on a nil *View make plain
// system calls.
//
// # Limits
//
// Linux only. Files, directories and walks are bounded ([MaxFileSize],
// [MaxDirectorySize], [MaxWalkDepth]). [Handles] and [WatchMissing] check nothing: the
// caller gives them descriptors from an FS, and paths that an FS has called watchable.
// All methods may run concurrently, except Close of a View.
package fsops
