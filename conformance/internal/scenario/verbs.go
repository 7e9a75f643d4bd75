package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// A process is a handle with its two streams, which are read from its start, so that it can be waited for.
type process struct {
	*client.Process
	stdout, stderr io.ReadCloser
}

func newProcess(p *client.Process, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return &process{p, p.Stdout(), p.Stderr()}, nil
}

// ended is the result of a command.
func ended(code int, ending protocol.Ending, stdout, stderr []byte) map[string]any {
	result := map[string]any{"exitCode": code, "signal": nil, "stdout": stdout, "stderr": stderr, "timedOut": ending.TimedOut, "outOfMemory": ending.OutOfMemory}
	if code > 128 {
		result["signal"] = code - 128
	}
	return result
}

// do carries out a verb.
func (r *runner) do(ctx context.Context, verb string, on any, w *with) (any, error) {
	result, err := r.verb(ctx, verb, on, w)
	if wrong := w.end(); wrong != nil && !errors.Is(err, ErrUnknown) {
		return nil, wrong
	}
	return result, err
}

func (r *runner) verb(ctx context.Context, verb string, on any, w *with) (any, error) {
	switch on := on.(type) {
	case *process:
		return on.do(ctx, verb, w)
	case *client.File:
		switch verb {
		case "readAt":
			p := make([]byte, min(w.number("length"), maxData))
			n, err := on.ReadAtContext(ctx, p, int64(w.number("offset")))
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return p[:n], err
		case "writeAt":
			_, err := on.WriteAtContext(ctx, w.data("data"), int64(w.number("offset")))
			return nil, err
		case "close":
			return nil, on.Close()
		}
	case *client.Watch:
		switch verb {
		case "next":
			return changes(ctx, on)
		case "close":
			return nil, on.Close()
		}
	case *client.PortWatch:
		switch verb {
		case "next":
			next, err := on.Next(ctx)
			return map[string]any{"opened": ports(next.Opened), "closed": ports(next.Closed)}, err
		case "close":
			return nil, on.Close()
		}
	case *client.Socket:
		switch verb {
		case "write":
			_, err := on.Write(w.data("data"))
			return nil, err
		case "closeWrite":
			return nil, on.CloseWrite()
		case "readAll":
			return io.ReadAll(on)
		case "close":
			return nil, on.Close()
		}
	case *task:
		if verb != "await" {
			break
		}
		select {
		case <-on.done:
			return on.result, on.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case nil:
		return r.global(ctx, verb, w)
	}
	return nil, fmt.Errorf("%w: verb %s of %T", ErrUnknown, verb, on)
}

// global carries out a verb of the client, or of the runner.
func (r *runner) global(ctx context.Context, verb string, w *with) (any, error) {
	switch verb {
	case "run", "shell":
		return r.command(ctx, verb, w)
	case "spawn":
		spec := w.spec()
		spec.PipeStdin, spec.ID = w.flag("stdin", false), w.text("id")
		if err := w.end(); err != nil {
			return nil, err
		}
		return newProcess(r.client.Spawn(ctx, spec))
	case "attach":
		id := w.text("id")
		if after := w.count("after"); after != nil {
			return newProcess(r.client.AttachAfter(ctx, id, *after))
		}
		return newProcess(r.client.Attach(ctx, id))
	case "processes":
		return listed(r.client.Processes(ctx))
	case "http":
		return r.http(ctx, w)
	case "connectTo":
		return r.client.DialSocket(ctx, w.text("to"), nil)
	case "ports":
		all, _, err := r.client.Ports(ctx, nil)
		return ports(all), err
	case "watchPorts":
		return r.client.WatchPorts(ctx, nil)
	case "info":
		info, err := r.client.Info(ctx)
		if err != nil {
			return nil, err
		}
		cwd, cwdErr := info.Cwd.Native()
		home, homeErr := info.UserHomeDir.Native()
		return map[string]any{"os": info.PlatformOS, "cwd": cwd, "home": home}, errors.Join(cwdErr, homeErr)
	case "cut":
		if at := w.text("at"); at != "" {
			return nil, r.line.cutAt(at, w.text("until"))
		}
		return nil, r.line.cut(ctx, w.duration("for"))
	case "close":
		return nil, r.client.Close()
	case "sleep":
		return nil, sleep(ctx, w.duration("ms"))
	case "localWrite":
		path := w.text("path")
		return nil, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, w.data("data"), 0o644))
	case "localRead":
		return os.ReadFile(w.text("path"))
	case "sequence":
		var b bytes.Buffer
		for i, last := w.number("from"), w.number("to"); i <= last; i++ {
			fmt.Fprintln(&b, i)
		}
		return b.Bytes(), nil
	case "upload", "download", "forward":
		_, _ = w.text("from"), w.text("to")
		return nil, fmt.Errorf("%w: the Go client has no %s", ErrLacks, verb)
	}
	return r.files(ctx, verb, w)
}

// command runs a command to its end.
func (r *runner) command(ctx context.Context, verb string, w *with) (any, error) {
	w.lacks("check")
	spec, input, patience := w.spec(), w.data("input"), w.duration("timeout")
	if verb == "shell" {
		spec.Argv = []string{"sh", "-c", w.text("script")}
	}
	if err := w.end(); err != nil {
		return nil, err
	}
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	got, err := r.client.Run(ctx, spec, input)
	if got == nil {
		return nil, err
	}
	result := ended(got.ExitCode, got.Ending, got.Stdout, got.Stderr)
	result["stdoutOmitted"], result["stdoutTruncated"] = got.StdoutOmitted, got.StdoutOmitted > 0
	result["stderrOmitted"], result["stderrTruncated"] = got.StderrOmitted, got.StderrOmitted > 0
	return result, err
}

// files carries out a verb of the client that is about files.
func (r *runner) files(ctx context.Context, verb string, w *with) (any, error) {
	files := r.client.FS(nil)
	switch verb {
	case "rename":
		return nil, files.Rename(ctx, w.text("from"), w.text("to"), w.flag("replace", true))
	case "copy":
		return nil, files.Copy(ctx, w.text("from"), w.text("to"))
	case "statMany":
		details := protocol.Stat
		if !w.flag("follow", true) {
			details = protocol.Lstat
		}
		return described(files.StatMany(ctx, w.list("paths"), details))
	case "applyPatch":
		return patched(files.ApplyPatch(ctx, w.text("cwd"), w.text("patch"), w.flag("dryRun", false)))
	}
	path := w.text("path")
	switch verb {
	case "readFile":
		return files.ReadFile(ctx, path)
	case "writeFile":
		o := client.WriteOptions{Parents: w.flag("parents", false), Exclusive: w.flag("exclusive", false), Atomic: w.flag("atomic", false)}
		if mode := w.count("mode"); mode != nil {
			o.Mode = new(fs.FileMode(*mode))
		}
		return nil, files.WriteFileWith(ctx, path, w.data("data"), o)
	case "list":
		if !w.flag("follow", true) {
			return entries(files.ReadDirLstat(ctx, path))
		}
		return entries(files.ReadDir(ctx, path))
	case "stat":
		if !w.flag("follow", true) {
			return metadata(files.Lstat(ctx, path))
		}
		return metadata(files.StatDetails(ctx, path))
	case "exists":
		_, err := files.Stat(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return true, err
	case "makeDirectory":
		return nil, files.Mkdir(ctx, path, w.flag("parents", true))
	case "remove":
		remove, missingOk := files.Remove, w.flag("missingOk", false)
		if w.flag("recursive", false) {
			remove = files.RemoveAll
		}
		err := remove(ctx, path)
		if missingOk && errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	case "realpath":
		if w.flag("missingOk", false) {
			return files.CanonicalizeMissing(ctx, path)
		}
		return files.Canonicalize(ctx, path)
	case "search":
		return searched(files.Search(ctx, path, w.search()))
	case "walk":
		return walked(files.Walk(ctx, path, protocol.WalkOptions{MaxDepth: uint64(value(w, "maxDepth", 64.0)), MaxDirectories: 1000, MaxEntries: 1000}))
	case "openFile":
		return files.Open(ctx, path, map[string]string{"read": protocol.OpenRead, "write": protocol.OpenReplace}[w.text("mode")])
	case "watch":
		return files.Watch(ctx, path, w.flag("recursive", false))
	}
	return nil, fmt.Errorf("%w: verb %s", ErrUnknown, verb)
}

func listed(all []protocol.ListedProcess, err error) (any, error) {
	list := []any{}
	for _, p := range all {
		one := map[string]any{"id": p.ProcessID, "argv": p.Argv, "exited": p.Exited, "exitCode": nil}
		if p.ExitCode != nil {
			one["exitCode"] = *p.ExitCode
		}
		list = append(list, one)
	}
	return list, err
}

// ports are ports as results have them.
func ports(all []protocol.Port) any {
	list := []any{}
	for _, p := range all {
		list = append(list, map[string]any{"port": p.Port, "address": p.Address, "uid": known(p.UID), "pid": known(p.PID), "program": known(p.Program)})
	}
	return list
}

// known is a value that may be absent.
func known[T any](v *T) any {
	if v == nil {
		return nil
	}
	return *v
}

func entries(all []protocol.DirectoryEntry, err error) (any, error) {
	list := []any{}
	for _, e := range all {
		list = append(list, map[string]any{"name": e.FileName, "isFile": e.IsFile, "isDirectory": e.IsDirectory, "type": e.Type, "size": known(e.Size), "mode": known(e.Mode)})
	}
	return list, err
}

func metadata(m *protocol.FileMetadata, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	members := map[string]any{
		"isFile": m.IsFile, "isDirectory": m.IsDirectory, "isSymlink": m.IsSymlink, "size": m.Size, "type": m.Type, "mode": known(m.Mode),
		"uid": known(m.UID), "gid": known(m.GID), "owner": m.Owner, "group": m.Group, "linkTarget": nil,
	}
	if m.LinkTarget != "" {
		members["linkTarget"] = m.LinkTarget
	}
	return members, nil
}

func described(all []client.Described, err error) (any, error) {
	list := []any{}
	for _, one := range all {
		member, failed := metadata(one.Metadata, one.Err)
		if failed != nil {
			member = map[string]any{"errno": cause(failed).Errno}
		}
		list = append(list, member)
	}
	return list, err
}

// search are the arguments of a search.
func (w *with) search() protocol.SearchParams {
	params := protocol.SearchParams{
		Globs: w.list("globs"), Literal: w.flag("literal", false), IgnoreCase: w.flag("ignoreCase", false), Hidden: w.flag("hidden", false),
		NoIgnore: w.flag("noIgnore", false), Before: w.count("before"), After: w.count("after"), MaxMatches: w.count("maxMatches"),
	}
	if pattern, ok := take[string](w, "pattern"); ok {
		params.Pattern = &pattern
	}
	if kind, ok := take[string](w, "kind"); ok {
		params.Kind = new(protocol.FileKind(kind))
	}
	return params
}

func searched(found *protocol.SearchResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	files := []any{}
	for _, f := range found.Files {
		matches := []any{}
		for _, m := range f.Matches {
			matches = append(matches, map[string]any{
				"line": m.Line, "column": m.Column, "length": m.Length, "text": m.Text, "cut": m.Cut, "before": texts(m.Before), "after": texts(m.After),
			})
		}
		files = append(files, map[string]any{"path": f.Path, "kind": string(f.Kind), "matches": matches})
	}
	members := map[string]any{"files": files, "truncated": nil, "filesRead": found.FilesRead, "binaryFiles": found.BinaryFiles}
	if found.Truncated != "" {
		members["truncated"] = found.Truncated
	}
	return members, nil
}

func texts(all []string) any {
	list := []any{}
	for _, one := range all {
		list = append(list, one)
	}
	return list
}

func walked(found *protocol.WalkResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	list := []any{}
	for _, e := range found.Entries {
		list = append(list, map[string]any{"path": e.Path, "isDirectory": e.Directory})
	}
	return list, nil
}

func patched(result *protocol.ApplyPatchResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	list := []any{}
	for _, c := range result.Changes {
		path, pathErr := c.Path.Native()
		err = errors.Join(err, pathErr)
		list = append(list, map[string]any{"kind": c.Kind, "path": path})
	}
	return map[string]any{"output": result.Output, "changes": list, "diff": known(result.Diff)}, err
}

// calm is how long no change comes before a watch has told all.
const calm = 300 * time.Millisecond

// changes are all changes until nothing new has come for a while.
func changes(ctx context.Context, watch *client.Watch) (any, error) {
	list, overflow := []any{}, false
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if len(list) > 0 || overflow {
			wait, cancel = context.WithTimeout(ctx, calm)
		}
		more, err := watch.Next(wait)
		cancel()
		if wait != ctx && errors.Is(err, context.DeadlineExceeded) {
			return map[string]any{"overflow": overflow, "changes": list}, nil
		}
		if err != nil {
			return nil, err
		}
		overflow = overflow || more.Overflow
		for _, c := range more.List {
			one := map[string]any{"kind": string(c.Kind), "path": c.Path, "from": nil}
			if c.From != "" {
				one["from"] = c.From
			}
			list = append(list, one)
		}
	}
}

func (r *runner) http(ctx context.Context, w *with) (any, error) {
	params := protocol.HTTPRequestParams{Method: w.text("method"), URL: w.text("url"), BodyBase64: w.data("content")}
	headers, _ := take[map[string]any](w, "headers")
	for name, v := range headers {
		params.Headers = append(params.Headers, protocol.HTTPHeader{Name: name, Value: fmt.Sprint(v)})
	}
	if !w.flag("redirects", true) {
		params.RedirectPolicy = protocol.RedirectStop
	}
	answer, err := r.client.HTTP(ctx, params)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(answer.Body)
	got := map[string]any{}
	for _, h := range answer.Headers {
		got[strings.ToLower(h.Name)] = h.Value
	}
	return map[string]any{"status": answer.Status, "headers": got, "content": content}, errors.Join(err, answer.Body.Close())
}

// do carries out a verb of a process.
func (p *process) do(ctx context.Context, verb string, w *with) (any, error) {
	switch verb {
	case "write":
		return nil, p.Write(ctx, w.data("data"))
	case "closeStdin":
		return nil, p.CloseStdin(ctx)
	case "signal":
		return nil, p.Signal(ctx, protocol.Signal(w.text("name")))
	case "resize":
		return nil, p.Resize(ctx, uint16(w.number("rows")), uint16(w.number("cols")))
	case "kill":
		return nil, p.Terminate(ctx)
	case "close":
		p.Close()
		return nil, nil
	case "wait":
		if d := w.duration("timeout"); d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		code, err := p.Wait(ctx)
		return ended(code, p.Ending(), nil, nil), err
	case "output":
		return p.output(ctx)
	case "readUntil":
		return p.readUntil(w.text("stream"), []byte(w.text("text")))
	}
	return nil, fmt.Errorf("%w: verb %s of a process", ErrUnknown, verb)
}

// output reads both streams to their ends, and waits.
func (p *process) output(ctx context.Context) (any, error) {
	var stderr []byte
	var stderrErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		stderr, stderrErr = io.ReadAll(p.stderr)
	}()
	stdout, err := io.ReadAll(p.stdout)
	<-done
	if err := errors.Join(err, stderrErr); err != nil {
		return nil, err
	}
	code, err := p.Wait(ctx)
	return ended(code, p.Ending(), stdout, stderr), err
}

// readUntil reads a stream up to and with a text. It ends with the stream, which ends with the client.
func (p *process) readUntil(stream string, text []byte) (any, error) {
	from := p.stdout
	if stream == "stderr" {
		from = p.stderr
	}
	var read []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(read, text) && len(read) < maxData {
		if _, err := io.ReadFull(from, one); err != nil {
			return nil, fmt.Errorf("reading %s: %w after %.200q", stream, err, read)
		}
		read = append(read, one[0])
	}
	return read, nil
}
