package capability

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/discovery/layout"
	"github.com/execagent/execagent/protocol"
)

const (
	// together is how many files are read at once.
	together = 8
	// maxSkills is how many skills are read with file calls, two or more for each.
	maxSkills = 2048
)

// readFiles reads a root with file calls, for agents without discovery (client.md 5.5): the root,
// its manifest and the declared files, one walk, the skills, the namespaces. The rules and bounds
// are those of an agent.
func (p *place) readFiles(ctx context.Context, root Root) finding[Found] {
	native, err := root.Path.Native()
	if err != nil {
		return failed(err)
	}
	var r *fileReader
	err = p.persist(ctx, func(ctx context.Context) error {
		r = &fileReader{client: p.client, fs: p.client.FS(p.sandbox), sandbox: p.sandbox, root: native, at: root.Path, out: &Found{}}
		return r.read(ctx)
	})
	if err != nil {
		return failed(err)
	}
	return checked(r.out)
}

// fileReader reads one root.
type fileReader struct {
	client  *client.Client
	fs      *client.FS
	sandbox *protocol.Sandbox
	root    string
	at      protocol.PathURI // root as it was given
	used    int              // bytes of layout.MaxBundle
	out     *Found
}

// read fills out. The error says why there is no root, or no connection.
func (r *fileReader) read(ctx context.Context) error {
	info, err := r.fs.Stat(ctx, r.root)
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		return fmt.Errorf("failed to inspect capability root %s: %w", r.at, refused)
	}
	if err != nil {
		return err
	}
	if !info.IsDirectory {
		return fmt.Errorf("capability root %s is not a directory", r.at)
	}
	manifest, err := r.manifest(ctx, r.root)
	if err != nil {
		return err
	}
	if manifest != nil {
		if err := r.plugin(ctx, manifest); err != nil {
			return err
		}
	}
	tree, err := r.walk(ctx)
	if err != nil {
		return err
	}
	if err := r.skills(ctx, tree.Skills); err != nil {
		return err
	}
	return r.namespaces(ctx, manifest, tree.Manifests)
}

// manifest returns the best manifest of a folder that can be read; nil: none.
func (r *fileReader) manifest(ctx context.Context, folder string) (*protocol.DiscoveredFile, error) {
	places := layout.Manifests(folder)
	at, err := r.inspect(ctx, places)
	for i := 0; i < len(at) && err == nil; i++ {
		var file *protocol.DiscoveredFile
		if file, err = r.load(ctx, &at[i]); file != nil {
			return file, nil
		}
	}
	return nil, err
}

// plugin reads the files that a manifest declares.
func (r *fileReader) plugin(ctx context.Context, manifest *protocol.DiscoveredFile) (err error) {
	declared := layout.Declare(r.root, manifest.Contents)
	for _, ignored := range declared.Ignored {
		why := "path must start with `./`"
		if ignored.Outside {
			why = "path must remain below the capability root"
		}
		r.warn("ignoring %s in %s: %s", ignored.Member, manifest.Path, why)
	}
	r.out.Plugin = &protocol.PluginFiles{Manifest: *manifest}
	if declared.MCP != "" {
		if r.out.Plugin.MCPConfig, err = r.file(ctx, declared.MCP); err != nil {
			return err
		}
	}
	r.out.Plugin.AppsConfig, err = r.file(ctx, declared.Apps)
	return err
}

func (r *fileReader) walk(ctx context.Context) (layout.Tree, error) {
	result, err := r.fs.Walk(ctx, r.root, protocol.WalkOptions{
		MaxDepth: layout.MaxDepth, MaxDirectories: layout.MaxDirectories, MaxEntries: layout.MaxEntries, FollowDirectorySymlinks: true,
	})
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		r.warn("failed to scan capability path %s: %s", r.at, refused.Err.Message)
		return layout.Tree{}, nil
	}
	if err != nil {
		return layout.Tree{}, err
	}
	for _, e := range result.Errors {
		r.warn("failed to scan capability path %s: %s", r.at.Below(e.Path), e.Message)
	}
	tree := layout.Sort(r.root, func(yield func(string) bool) {
		for _, e := range result.Entries {
			inside := r.root == "/" || strings.HasPrefix(e.Path, r.root+"/")
			if !e.Directory && inside && !yield(e.Path) {
				return
			}
		}
	})
	if result.Truncated || len(tree.Skills) > maxSkills || len(tree.Manifests) > maxSkills {
		r.warn("capability scan reached its traversal limit (root: %s)", r.at)
		tree.Skills = tree.Skills[:min(len(tree.Skills), maxSkills)]
		tree.Manifests = tree.Manifests[:min(len(tree.Manifests), maxSkills)]
	}
	return tree, nil
}

// skills reads each SKILL.md, and the metadata of each readable one.
func (r *fileReader) skills(ctx context.Context, paths []string) error {
	for some := range slices.Chunk(paths, together) {
		files, err := r.files(ctx, some)
		if err != nil {
			return err
		}
		var metadata []string
		for _, path := range some {
			if files[path] != nil {
				metadata = append(metadata, layout.Metadata(path))
			}
		}
		more, err := r.files(ctx, metadata)
		if err != nil {
			return err
		}
		for _, path := range some {
			if file := files[path]; file != nil {
				r.out.Skills = append(r.out.Skills, protocol.SkillFiles{Instructions: *file, Metadata: more[layout.Metadata(path)]})
			}
		}
	}
	return nil
}

// namespaces collects the manifests that name skills.
func (r *fileReader) namespaces(ctx context.Context, own *protocol.DiscoveredFile, below []string) (err error) {
	folder := "" // whose manifest own is
	if own == nil {
		for above := range layout.Above(r.root) {
			if own, err = r.manifest(ctx, above); own != nil || err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	if own != nil {
		r.out.Namespaces = append(r.out.Namespaces, *own)
		manifest, _ := own.Path.Native() // it is one of ours
		folder = layout.Folder(manifest)
	}
	for some := range slices.Chunk(below, together) {
		files, err := r.files(ctx, some)
		if err != nil {
			return err
		}
		for _, path := range some {
			if file := files[path]; file != nil && layout.Folder(path) != folder {
				r.out.Namespaces = append(r.out.Namespaces, *file)
			}
		}
	}
	return nil
}

// file reads one file; nil: it could not be read.
func (r *fileReader) file(ctx context.Context, path string) (*protocol.DiscoveredFile, error) {
	files, err := r.files(ctx, []string{path})
	return files[path], err
}

// files reads some files, all at once.
func (r *fileReader) files(ctx context.Context, paths []string) (map[string]*protocol.DiscoveredFile, error) {
	all, err := r.inspect(ctx, paths)
	if err != nil {
		return nil, err
	}
	var reading sync.WaitGroup
	for i := range all {
		reading.Go(func() { r.fetch(ctx, &all[i]) })
	}
	reading.Wait()
	files := map[string]*protocol.DiscoveredFile{}
	for i := range all {
		if files[all[i].path], err = r.take(&all[i]); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// fetched is a file on its way.
type fetched struct {
	path string
	size uint64
	data []byte
	err  error
}

// inspect returns the files among some paths, in order.
func (r *fileReader) inspect(ctx context.Context, paths []string) (all []fetched, err error) {
	type answer struct {
		info *protocol.FileMetadata
		err  error
	}
	answers := make([]answer, len(paths))
	var asking sync.WaitGroup
	for i, path := range paths {
		asking.Go(func() { answers[i].info, answers[i].err = r.fs.Stat(ctx, path) })
	}
	asking.Wait()
	for i, a := range answers {
		refused, ok := errors.AsType[*client.ServerError](a.err)
		switch {
		case a.err == nil && a.info.IsFile:
			all = append(all, fetched{path: paths[i], size: a.info.Size})
		case ok && !isAbsent(refused):
			r.warn("failed to inspect capability file %s: %s", r.at.Below(paths[i]), refused.Err.Message)
		case a.err != nil && !ok:
			return nil, a.err
		}
	}
	return all, nil
}

// isAbsent reports whether there is no such file, or a file where a folder should be.
func isAbsent(refused *client.ServerError) bool {
	cause := refused.Err.Cause()
	return errors.Is(refused, fs.ErrNotExist) || cause != nil && cause.Name == "ENOTDIR"
}

// load reads a file that was inspected.
func (r *fileReader) load(ctx context.Context, f *fetched) (*protocol.DiscoveredFile, error) {
	r.fetch(ctx, f)
	return r.take(f)
}

// fetch reads a file, unless it is too large.
func (r *fileReader) fetch(ctx context.Context, f *fetched) {
	if f.size > layout.MaxFile || f.size > uint64(layout.MaxBundle-r.used) {
		return // take says so
	}
	params := &protocol.PathParams{Path: protocol.NewPathURI(f.path), Sandbox: r.sandbox}
	var result protocol.ReadFileResult
	f.err = r.client.Call(ctx, protocol.MethodFSReadFile, params, &result)
	f.data = result.Data
	f.size = uint64(len(f.data)) // it may have grown
}

// take takes a fetched file, or warns with the reason why not. The error is an error of the
// connection.
func (r *fileReader) take(f *fetched) (*protocol.DiscoveredFile, error) {
	uri := r.at.Below(f.path)
	refused, ok := errors.AsType[*client.ServerError](f.err)
	switch {
	case ok && isAbsent(refused): // it has disappeared in the meantime
	case ok:
		r.warn("failed to read capability file %s: %s", uri, refused.Err.Message)
	case f.err != nil:
		return nil, f.err
	case f.size > layout.MaxFile:
		r.warn("capability file %s exceeds the %d-byte limit", uri, layout.MaxFile)
	case f.size > uint64(layout.MaxBundle-r.used):
		r.warn("capability root bundle exceeds the %d-byte limit (file: %s)", layout.MaxBundle, uri)
	case !utf8.Valid(f.data):
		r.warn("capability file %s is not UTF-8", uri)
	default:
		r.used += len(f.data)
		return &protocol.DiscoveredFile{Path: uri, Contents: string(f.data)}, nil
	}
	return nil, nil
}

func (r *fileReader) warn(format string, args ...any) {
	r.out.Warnings = append(r.out.Warnings, cut(fmt.Sprintf(format, args...)))
}
