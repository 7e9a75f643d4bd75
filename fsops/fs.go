package fsops

import "context"

// FS is the file operations of this package on one file system: the whole file
// system of the host ([Host]), or the part that a policy allows ([View], and
// the client of a helper that has one). [ReadFile] and [WriteFile] work on any
// of them. The methods of Host document each operation.
//
// Paths are absolute and clean. Errors come from this package, and with a
// helper also from the helper. The context bounds how long the caller waits; an
// operation may still change something after it has returned the error of the
// context. All methods may run concurrently.
type FS interface {
	// OpenRead and OpenWrite return a descriptor of a file, which the caller
	// closes.
	OpenRead(ctx context.Context, path string, links Links) (fd int, err error)
	OpenWrite(ctx context.Context, path string, o Writing) (fd int, err error)
	CreateDirectory(ctx context.Context, path string, recursive bool, links Links) error
	Stat(ctx context.Context, path string, links Links) (Metadata, error)
	Canonicalize(ctx context.Context, path string, missing bool) (string, error)
	ReadDirectory(ctx context.Context, path string, details bool) ([]DirEntry, error)
	Walk(ctx context.Context, root string, o WalkOptions) (WalkResult, error)
	Search(ctx context.Context, root string, o SearchOptions) (SearchResult, error)
	Remove(ctx context.Context, path string, recursive, force bool, links Links) error
	Copy(ctx context.Context, src, dst string, recursive bool) error
	Rename(ctx context.Context, src, dst string, replace bool) error
	// Watchable returns the reason why path may not be watched for changes, or nil.
	// A watch follows no link, so path is judged as it is written. directory says
	// that path is or was a directory; false if that is not known.
	Watchable(path string, directory bool) error
}

// Host is the whole file system of the host, as far as this process may use it. Only
// what procfs shows of the memory, the environment and the descriptors of this process
// itself is EACCES, and so is that of its helpers. The zero value is ready for use.
type Host struct{}

var (
	_ FS = Host{}
	_ FS = (*View)(nil)
)
