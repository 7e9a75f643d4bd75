package client

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/execagent/execagent/protocol"
)

// WriteOptions say how [FS.WriteFileWith] writes. The zero value writes as [FS.WriteFile] does.
type WriteOptions struct {
	// Mode has the permissions of the file afterwards, at most 0777, whatever the server's umask is.
	// nil: those that it has, or those of every new file.
	Mode *fs.FileMode
	// Parents makes the directories of the path that are missing.
	Parents bool
	// Exclusive makes a new file: a name that exists, also a link, is [fs.ErrExist].
	Exclusive bool
	// Atomic replaces the file as a whole: others see the old content or the new one. Permissions, owner
	// and ACL stay, or nothing is changed.
	Atomic bool
}

// WriteFileWith creates or replaces a file, of up to 32 MiB. It needs the server's fsWriteOptions, unless o is
// the zero value.
func (f *FS) WriteFileWith(ctx context.Context, path string, data []byte, o WriteOptions) error {
	if o == (WriteOptions{}) {
		return f.WriteFile(ctx, path, data)
	}
	if len(data) > maxWhole {
		return pathError("write", path, fmt.Errorf("%d bytes are more than the %d that are written with options", len(data), maxWhole))
	}
	if o.Mode != nil && *o.Mode > protocol.MaxMode {
		return pathError("write", path, fmt.Errorf("mode %#o is above %#o: %w", uint32(*o.Mode), protocol.MaxMode, fs.ErrInvalid))
	}
	err := f.client.require(ctx, "options of writing", func(c *protocol.Capabilities) bool { return c.FSWriteOptions })
	if err != nil {
		return pathError("write", path, err)
	}
	if data == nil {
		data = []byte{} // nil would be null
	}
	params := &protocol.WriteFileParams{
		Path: protocol.NewPathURI(path), Data: data, Sandbox: f.sandbox,
		Parents: o.Parents, Exclusive: o.Exclusive, Atomic: o.Atomic,
	}
	if o.Mode != nil {
		params.Mode = new(uint32(*o.Mode))
	}
	return f.change(ctx, "write", path, protocol.MethodFSWriteFile, params)
}

// requireMetadata refuses a request for details that the server does not have.
func (f *FS) requireMetadata(ctx context.Context) error {
	return f.client.require(ctx, "details of files", func(c *protocol.Capabilities) bool { return c.FSMetadata })
}

// StatDetails is [FS.Stat] with type, mode, owner and group. It needs the server's fsMetadata.
func (f *FS) StatDetails(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	return f.details(ctx, "stat", path, protocol.Stat)
}

// Lstat describes path itself, with the same details. For a link it also has what the link leads to. It needs the
// server's fsMetadata.
func (f *FS) Lstat(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	return f.details(ctx, "lstat", path, protocol.Lstat)
}

func (f *FS) details(ctx context.Context, op, path, details string) (*protocol.FileMetadata, error) {
	if err := f.requireMetadata(ctx); err != nil {
		return nil, pathError(op, path, err)
	}
	return f.metadata(ctx, op, path, &protocol.GetMetadataParams{Path: protocol.NewPathURI(path), Details: details, Sandbox: f.sandbox})
}

// Described is one of the files of [FS.StatMany]: Metadata, or the error of its path.
type Described struct {
	Metadata *protocol.FileMetadata
	Err      error
}

// StatMany describes many files, each as [FS.Stat], [FS.StatDetails] or [FS.Lstat] does: details is "",
// protocol.Stat or protocol.Lstat. It makes one request for each 1,024 paths, and needs the server's fsMetadata.
func (f *FS) StatMany(ctx context.Context, paths []string, details string) ([]Described, error) {
	all := make([]Described, 0, len(paths))
	for len(all) < len(paths) {
		some := paths[len(all):min(len(paths), len(all)+protocol.MaxManyPaths)]
		if err := f.requireMetadata(ctx); err != nil {
			return nil, pathError("stat", some[0], err)
		}
		params := &protocol.GetMetadataManyParams{Details: details, Sandbox: f.sandbox}
		for _, path := range some {
			if !strings.HasPrefix(path, "/") {
				return nil, pathError("stat", path, fs.ErrInvalid)
			}
			params.Paths = append(params.Paths, protocol.NewPathURI(path))
		}
		var r protocol.GetMetadataManyResult
		if err := f.ask(ctx, "stat", some[0], protocol.MethodFSGetMetadataMany, params, &r); err != nil {
			return nil, err
		}
		if len(r.Files) != len(some) {
			return nil, pathError("stat", some[0], protocolErrorf("%d files were asked for and %d came", len(some), len(r.Files)))
		}
		for i, file := range r.Files {
			switch {
			case file.Error != nil:
				refused := &protocol.Error{Code: file.Error.Code, Message: file.Error.Message, Data: file.Error.Data}
				all = append(all, Described{Err: pathError("stat", some[i], &ServerError{Err: refused.Bounded()})})
			case file.Metadata != nil:
				all = append(all, Described{Metadata: file.Metadata})
			default:
				return nil, pathError("stat", some[i], protocolErrorf("neither metadata nor an error came"))
			}
		}
	}
	return all, nil
}

// ReadDirLstat lists a directory as [FS.ReadDir] does, but describes the names themselves: links are not followed,
// and those that lead nowhere are in the list. It needs the server's fsReadDirectoryLstat.
func (f *FS) ReadDirLstat(ctx context.Context, path string) ([]protocol.DirectoryEntry, error) {
	err := f.client.require(ctx, "lists of links", func(c *protocol.Capabilities) bool { return c.FSReadDirectoryLstat })
	if err != nil {
		return nil, pathError("readdir", path, err)
	}
	var r protocol.ReadDirectoryResult
	params := &protocol.ReadDirectoryParams{Path: protocol.NewPathURI(path), Entries: protocol.Lstat, Sandbox: f.sandbox}
	err = f.ask(ctx, "readdir", path, protocol.MethodFSReadDirectory, params, &r)
	return r.Entries, err
}

// CanonicalizeMissing resolves all links of a path whose last names may be missing. It needs the server's
// fsCanonicalizeMissing.
func (f *FS) CanonicalizeMissing(ctx context.Context, path string) (string, error) {
	err := f.client.require(ctx, "canonical paths of missing files", func(c *protocol.Capabilities) bool { return c.FSCanonicalizeMissing })
	if err != nil {
		return "", pathError("canonicalize", path, err)
	}
	return f.canonicalize(ctx, path, &protocol.CanonicalizeParams{Path: protocol.NewPathURI(path), AllowMissing: true, Sandbox: f.sandbox})
}
