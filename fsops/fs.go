package fsops

import "context"

// FS is the file operations of this package on one file system: all of the
// host's ([Host]), or what a policy leaves of it ([View], and the client of a
// helper that has one). [ReadFile] and [WriteFile] work on any of them. The
// methods of Host tell what each does.
//
// Paths are absolute and clean. Errors are those of the package, and behind a
// helper also its own. The context bounds how long the caller waits; an
// operation may still change something after the caller has been given the
// error of the context. All methods may run concurrently.
type FS interface {
	// OpenRead and OpenWrite return a descriptor of a file, which the caller
	// closes.
	OpenRead(ctx context.Context, path string, links Links) (fd int, err error)
	OpenWrite(ctx context.Context, path string, links Links) (fd int, err error)
	CreateDirectory(ctx context.Context, path string, recursive bool, links Links) error
	Stat(ctx context.Context, path string, links Links) (Metadata, error)
	Canonicalize(ctx context.Context, path string) (string, error)
	ReadDirectory(ctx context.Context, path string) ([]DirEntry, error)
	Walk(ctx context.Context, root string, o WalkOptions) (WalkResult, error)
	Remove(ctx context.Context, path string, recursive, force bool, links Links) error
	Copy(ctx context.Context, src, dst string, recursive bool) error
	Rename(ctx context.Context, src, dst string, replace bool) error
	// Watchable tells why nobody may be told of changes at path, or nil. A watch
	// follows no link, so path is judged as it is written. directory tells that path
	// is one, or was; false where that is not known.
	Watchable(path string, directory bool) error
}

// Host is the whole file system of the host, as far as this process may use it.
// The zero value is ready for use.
type Host struct{}

var (
	_ FS = Host{}
	_ FS = (*View)(nil)
)
