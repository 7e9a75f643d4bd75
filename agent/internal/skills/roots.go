package skills

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/sandbox/files"
	"github.com/execagent/execagent/protocol"
)

// maxAnswer bounds the bytes that the files of all roots of one answer take in JSON. The roots
// after the limit get an error (capabilities.md 2.2).
const maxAnswer = 48 << 20

// read reads a root. In a sandbox, a helper process reads it in one request.
func read(ctx context.Context, fs fsops.FS, root string) (*discovery.Root, error) {
	if confined, ok := fs.(*files.FS); ok {
		return confined.Discover(ctx, root)
	}
	return discovery.Read(ctx, fs, root)
}

// Roots returns the capabilities in folders. It reads one folder after the other, each under its
// own sandbox. size is the approximate length of the answer in bytes. Roots returns an error only
// if the context ends, or if there is no memory for the owner.
func (d *Discovery) Roots(ctx context.Context, owner string, asked []protocol.CapabilityRoot) (r protocol.DiscoverRootsResult, size int, err error) {
	release, err := d.cfg.Hold(ctx, owner, maxAnswer+discovery.MaxBundle)
	if err != nil {
		return r, 0, err
	}
	defer release()
	r.Roots = make([]protocol.DiscoveredRoot, len(asked))
	for i, root := range asked {
		found, err := d.root(ctx, owner, &root)
		if ctx.Err() != nil {
			return r, 0, context.Cause(ctx)
		}
		out := protocol.DiscoveredRoot{Skills: []protocol.SkillFiles{}, NamespaceManifests: []protocol.DiscoveredFile{}, Warnings: []string{}}
		n := 0
		switch {
		case err != nil:
			out.Error = new(d.cfg.ErrorText(err))
		case found.Failure != nil:
			out.Error = new(d.warning(root.At, found.Failure))
		default:
			out, n = d.found(root.At, found)
		}
		if size+n > maxAnswer {
			out = protocol.DiscoveredRoot{Skills: []protocol.SkillFiles{}, NamespaceManifests: []protocol.DiscoveredFile{}, Warnings: []string{}}
			out.Error, n = new(fmt.Sprintf("an answer has room for %d bytes, and the roots before this one have taken %d: ask for it alone",
				maxAnswer, size)), 0
		}
		size += n
		out.ID, out.Path = root.ID, root.At.String()
		r.Roots[i] = out
	}
	return r, size, nil
}

func (d *Discovery) root(ctx context.Context, owner string, root *protocol.CapabilityRoot) (*discovery.Root, error) {
	path, err := root.At.Native()
	if err != nil {
		return nil, err
	}
	fs, err := d.cfg.Files(ctx, owner, root.Sandbox)
	if err != nil {
		return nil, err
	}
	return read(ctx, fs, path)
}

// found converts a root to the records of the protocol, and counts the bytes of its JSON.
func (d *Discovery) found(root protocol.PathURI, r *discovery.Root) (out protocol.DiscoveredRoot, size int) {
	file := func(f discovery.File) protocol.DiscoveredFile {
		size += jsonSize(f.Contents) + 2*len(f.Path)
		return protocol.DiscoveredFile{Path: root.Below(f.Path), Contents: f.Contents}
	}
	optional := func(f *discovery.File) *protocol.DiscoveredFile {
		if f == nil {
			return nil
		}
		return new(file(*f))
	}
	if p := r.Plugin; p != nil {
		out.Plugin = &protocol.PluginFiles{Manifest: file(p.Manifest), MCPConfig: optional(p.MCP), AppsConfig: optional(p.Apps)}
	}
	out.Skills = make([]protocol.SkillFiles, len(r.Skills))
	for i, skill := range r.Skills {
		out.Skills[i] = protocol.SkillFiles{Instructions: file(skill.Instructions), Metadata: optional(skill.Metadata)}
	}
	out.NamespaceManifests = make([]protocol.DiscoveredFile, len(r.Namespaces))
	for i, manifest := range r.Namespaces {
		out.NamespaceManifests[i] = file(manifest)
	}
	out.Warnings = make([]string, len(r.Warnings))
	for i := range r.Warnings {
		out.Warnings[i] = d.warning(root, &r.Warnings[i])
		size += len(out.Warnings[i])
	}
	return out, size
}

// jsonSize returns an upper bound for the bytes of a text as a JSON string.
func jsonSize(s string) int {
	n := len(s) + 2
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			n++
		case c < ' ' || c == 0xe2: // U+2028 and U+2029 begin with this byte
			n += len(`\u0000`) - 1
		}
	}
	return n
}

// warning returns the text of a warning for a client. Package capability of the client reads roots
// of agents without discovery and uses the same texts. A test compares the two.
func (d *Discovery) warning(root protocol.PathURI, w *discovery.Warning) string {
	uri, why := root.Below(w.Path).String(), ""
	switch {
	case errors.Is(w.Err, fsops.ErrNotUTF8):
		why = d.cfg.ErrorText(syscall.ENOENT) // the error of the reference for such a name
	case w.Err != nil:
		why = d.cfg.ErrorText(w.Err)
	}
	switch w.Trouble {
	case discovery.NoRoot:
		return "failed to inspect capability root " + uri + ": " + why
	case discovery.NotDirectory:
		return "capability root " + uri + " is not a directory"
	case discovery.NotScanned:
		return "failed to scan capability path " + uri + ": " + why
	case discovery.Truncated:
		return "capability scan reached its traversal limit (root: " + uri + ")"
	case discovery.NotInspected:
		return "failed to inspect capability file " + uri + ": " + why
	case discovery.NotRead:
		return "failed to read capability file " + uri + ": " + why
	case discovery.TooLarge:
		return fmt.Sprintf("capability file %s exceeds the %d-byte limit", uri, discovery.MaxFile)
	case discovery.NoRoom:
		return fmt.Sprintf("capability root bundle exceeds the %d-byte limit (file: %s)", discovery.MaxBundle, uri)
	case discovery.NotText:
		return "capability file " + uri + " is not UTF-8"
	case discovery.NotDotSlash:
		return "ignoring " + w.Member + " in " + uri + ": path must start with `./`"
	case discovery.Outside:
		return "ignoring " + w.Member + " in " + uri + ": path must remain below the capability root"
	}
	return "capability path " + uri + ": " + why
}
