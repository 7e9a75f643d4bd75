package agent

import (
	"bufio"
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

// typeWords are the words of the protocol for types of files.
var typeWords = map[fsops.Type]string{
	fsops.Regular: protocol.TypeFile, fsops.Directory: protocol.TypeDirectory, fsops.Symlink: protocol.TypeSymlink,
	fsops.Fifo: protocol.TypeFifo, fsops.Socket: protocol.TypeSocket,
	fsops.BlockDevice: protocol.TypeBlockDevice, fsops.CharacterDevice: protocol.TypeCharacterDevice,
}

const (
	// detailCost is what the details of an entry cost in a listing, in memory and in the message, in bytes.
	detailCost = 192
	// metadataCost is what the metadata of a file costs without its names, or an error.
	metadataCost = 512
	// maxManyError is the longest message of an error among many, in bytes.
	maxManyError = 1024
)

// describer describes files of one request.
type describer struct {
	files   fsops.FS
	details string
	links   fsops.Links
	// users and groups are names by number; nil: not read yet.
	users, groups map[uint32]string
}

func newDescriber(files fsops.FS, follow *bool, details string) *describer {
	d := &describer{files: files, details: details, links: links(follow)}
	switch {
	case details != protocol.Lstat:
	case d.links == fsops.RefuseLinks:
		d.links = fsops.KeepRefuse
	default:
		d.links = fsops.KeepLast
	}
	return d
}

// describe returns the metadata of a file.
func (d *describer) describe(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	found, err := d.files.Stat(ctx, path, d.links)
	if err != nil {
		return nil, err
	}
	m := &protocol.FileMetadata{
		IsDirectory: found.IsDirectory, IsFile: found.IsFile, IsSymlink: found.IsSymlink,
		Size: found.Size, CreatedAtMs: found.CreatedAtMs, ModifiedAtMs: found.ModifiedAtMs,
	}
	if d.details == "" {
		return m, nil
	}
	m.Type = typeWords[found.Type]
	if !found.Known {
		return m, nil
	}
	if d.users == nil {
		d.users, d.groups = d.names(ctx, "/etc/passwd"), d.names(ctx, "/etc/group")
	}
	m.Mode, m.UID, m.GID = new(uint32(found.Mode)), new(found.UID), new(found.GID)
	m.Owner, m.Group = d.users[found.UID], d.groups[found.GID]
	m.LinkTarget = strings.ToValidUTF8(found.Target, "\uFFFD")
	return m, nil
}

// Bounds of the files that names reads, in bytes.
const (
	maxAccounts    = 1 << 20
	maxAccountName = 256
)

// names reads names from a file such as passwd(5): the first field is a name, and the third its number. It
// reads the file as the request may, so a policy that hides the file hides the names.
func (d *describer) names(ctx context.Context, path string) map[uint32]string {
	names := map[uint32]string{}
	fd, err := d.files.OpenRead(ctx, path, fsops.FollowLinks)
	if err != nil {
		return names
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxAccounts)) //nolint:scannererr // a file that cannot be read to its end has fewer names
	lines.Buffer(nil, maxAccounts)                            // a group can have thousands of members
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), ":", 4)
		// Both kinds of file have a field after the number, without which the number may be cut.
		if len(fields) < 4 || len(fields[0]) > maxAccountName {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := names[uint32(id)]; err == nil && !known {
			names[uint32(id)] = strings.ToValidUTF8(fields[0], "\uFFFD")
		}
	}
	return names
}

func (c *connection) getMetadata(ctx context.Context, p protocol.GetMetadataParams) (*protocol.FileMetadata, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	return newDescriber(files, p.FollowSymlinks, p.Details).describe(ctx, path)
}

// manyResult gives back its share of memory when it has been sent.
type manyResult struct {
	protocol.GetMetadataManyResult
	share answers.Share
}

func (r *manyResult) Sent() { r.share.Release() }

func (c *connection) getMetadataMany(ctx context.Context, p protocol.GetMetadataManyParams) (*manyResult, error) {
	files, err := c.agent.filesUnder(ctx, p.Sandbox, &c.policies)
	if err != nil {
		return nil, err
	}
	d := newDescriber(files, p.FollowSymlinks, p.Details)
	r := &manyResult{share: c.share(c.listings)}
	r.Files = make([]protocol.FileOrError, len(p.Paths))
	var cost int64
	for i, uri := range p.Paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		path, err := uri.Native()
		if err == nil {
			r.Files[i].Metadata, err = d.describe(ctx, path)
		}
		if err != nil {
			e := *c.wireError(err)
			if len(e.Message) > maxManyError {
				e.Message = strings.ToValidUTF8(e.Message[:maxManyError], "") + "..."
			}
			r.Files[i].Error = &protocol.ErrorObject{Code: e.Code, Message: e.Message, Data: e.Data}
			cost += metadataCost + int64(len(e.Message))
			continue
		}
		m := r.Files[i].Metadata
		cost += metadataCost + answers.ListedCost(len(m.Owner)+len(m.Group)+len(m.LinkTarget))
	}
	if err := r.share.List(ctx, cost); err != nil {
		return nil, err
	}
	return r, nil
}
