package files

import (
	"context"
	"io/fs"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
)

// FS has the operations of [fsops.FS] under one policy. If the policy lets everything
// be read, this process does the reads. A helper that is confined to the policy does all
// other operations (sandbox.md 13). All methods may be called concurrently.
//
// The methods return the errors of [fsops.View] and [HelperError]. When the
// context ends they return its error at once, but the helper may still complete
// a mutation.
type FS struct {
	pool  *Pool
	asked *Keyed
	entry *entry
}

var _ fsops.FS = (*FS)(nil)

// OpenRead opens the regular file at path for reading. The caller closes the
// descriptor.
func (f *FS) OpenRead(ctx context.Context, path string, links fsops.Links) (int, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) (int, error) { return v.OpenRead(ctx, path, links) })
	}
	r, err := f.call(ctx, request{op: opOpenRead, path: path, links: links})
	return r.fd, err
}

// OpenWrite creates or truncates the regular file at path and opens it for
// writing. The caller closes the descriptor.
func (f *FS) OpenWrite(ctx context.Context, path string, o fsops.Writing) (int, error) {
	r, err := f.call(ctx, request{op: opOpenWrite, path: path, writing: o})
	return r.fd, err
}

// CreateDirectory makes a directory, with recursive also its parents.
func (f *FS) CreateDirectory(ctx context.Context, path string, recursive bool, links fsops.Links) error {
	_, err := f.call(ctx, request{op: opCreateDirectory, path: path, recursive: recursive, links: links})
	return err
}

// Stat describes the file at path.
func (f *FS) Stat(ctx context.Context, path string, links fsops.Links) (fsops.Metadata, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) (fsops.Metadata, error) { return v.Stat(ctx, path, links) })
	}
	r, err := f.call(ctx, request{op: opStat, path: path, links: links})
	return r.metadata, err
}

// Canonicalize returns path without symbolic links.
func (f *FS) Canonicalize(ctx context.Context, path string, missing bool) (string, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) (string, error) { return v.Canonicalize(ctx, path, missing) })
	}
	r, err := f.call(ctx, request{op: opCanonicalize, path: path, missing: missing})
	return r.path, err
}

// ReadDirectory lists the directory at path.
func (f *FS) ReadDirectory(ctx context.Context, path string, details bool) ([]fsops.DirEntry, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) ([]fsops.DirEntry, error) { return v.ReadDirectory(ctx, path, details) })
	}
	r, err := f.call(ctx, request{op: opReadDirectory, path: path, details: details})
	if err != nil {
		return nil, err
	}
	if r.entries == nil {
		r.entries = []fsops.DirEntry{}
	}
	return r.entries, nil
}

// Walk lists the files and directories under root. o.Size must return at least the length of
// the path plus 64, because a helper counts this size for an entry.
func (f *FS) Walk(ctx context.Context, root string, o fsops.WalkOptions) (fsops.WalkResult, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) (fsops.WalkResult, error) { return v.Walk(ctx, root, o) })
	}
	r, err := f.call(ctx, request{op: opWalk, path: root, walk: o})
	if err != nil {
		return fsops.WalkResult{}, err
	}
	return walkResult(r, o.Size), nil
}

// walkResult returns the walk of a helper. It truncates the walk where size, the caller's
// count, exceeds [fsops.MaxWalkSize], because a walk with this count would have ended there.
func walkResult(r result, size func(string, error) int) fsops.WalkResult {
	w := fsops.WalkResult{Truncated: r.truncated}
	total := 0
	for _, i := range r.items {
		if size != nil {
			if total += size(i.path, i.err); total > fsops.MaxWalkSize {
				w.Truncated = true
				break
			}
		}
		if i.kind == kindError {
			w.Errors = append(w.Errors, fsops.WalkError{Path: i.path, Err: i.err})
			continue
		}
		w.Entries = append(w.Entries, fsops.WalkEntry{Path: i.path, IsDirectory: i.kind == kindDirectory})
	}
	return w
}

// Discover does what [discovery.Read] does, under the policy.
func (f *FS) Discover(ctx context.Context, root string) (*discovery.Root, error) {
	if f.readsHere() {
		return here(ctx, f, func(v *fsops.View) (*discovery.Root, error) { return discovery.Read(ctx, v, root) })
	}
	r, err := f.call(ctx, request{op: opDiscover, path: root})
	if err != nil {
		return nil, err
	}
	return discovery.Unpack(r.packed)
}

// Remove removes the file or directory at path.
func (f *FS) Remove(ctx context.Context, path string, recursive, force bool, links fsops.Links) error {
	_, err := f.call(ctx, request{op: opRemove, path: path, recursive: recursive, force: force, links: links})
	return err
}

// Copy copies src to dst.
func (f *FS) Copy(ctx context.Context, src, dst string, recursive bool) error {
	_, err := f.call(ctx, request{op: opCopy, path: src, to: dst, recursive: recursive})
	return err
}

// Rename moves src to dst.
func (f *FS) Rename(ctx context.Context, src, dst string, replace bool) error {
	_, err := f.call(ctx, request{op: opRename, path: src, to: dst, force: replace})
	return err
}

// Watchable returns the reason why path may not be watched, or nil. It asks the policy
// whose places were looked up, because the paths of that policy are canonical.
func (f *FS) Watchable(path string, directory bool) error {
	rules := rulesOf(f.entry.places.Policy)
	return rules.Watchable(path, directory)
}

// readsHere reports whether reads are done in this process.
func (f *FS) readsHere() bool { return f.entry.view != nil }

// here runs a read in this process.
func here[T any](ctx context.Context, f *FS, read func(*fsops.View) (T, error)) (T, error) {
	e, err := f.hold(ctx)
	if err != nil {
		var none T
		return none, err
	}
	defer e.release()
	return read(e.view)
}

// hold holds the entry of f, or the entry that has replaced it, and returns the held entry.
// A replacement has a view if and only if the entry of f has one, because both are of the
// same policy.
func (f *FS) hold(ctx context.Context) (*entry, error) {
	e := f.entry
	for !e.hold() {
		var err error
		if e, err = f.pool.entry(ctx, f.asked); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// maxTries is the number of helpers that a request is sent to until one of them receives it. The
// second try is for a helper that was killed while it was idle, because only the next request
// notices that. The third try is for a host so short of memory that the new helper is killed too.
// If the third helper dies before it receives the request, more helpers would die as well.
const maxTries = 3

// call sends r to a helper and waits for the result. On error the descriptor of the result
// is -1.
func (f *FS) call(ctx context.Context, r request) (result, error) {
	for _, path := range []string{r.path, r.to} {
		if len(path) > maxPath {
			return result{fd: -1}, &fs.PathError{Op: r.op.verb(), Path: path, Err: syscall.ENAMETOOLONG}
		}
	}
	for range maxTries {
		answer, err := f.try(ctx, r)
		if err != errNotSent {
			return answer, err
		}
	}
	return result{fd: -1}, &HelperError{Err: errNotSent}
}

func (f *FS) try(ctx context.Context, r request) (result, error) {
	e, err := f.hold(ctx)
	if err != nil {
		return result{fd: -1}, err
	}
	defer e.release()
	w, err := e.helper(ctx)
	if err != nil {
		return result{fd: -1}, err
	}
	e.requests.Add(1)
	answer, err := w.do(ctx, r)
	if err == errNotSent {
		e.retire()
	}
	return answer, err
}
