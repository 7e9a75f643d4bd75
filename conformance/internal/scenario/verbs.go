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

// with are the arguments of a verb. The first one that cannot be read is err.
type with struct {
	values map[string]any
	err    error
}

func (w *with) text(name string) string {
	v, _ := w.values[name].(string)
	return v
}

func (w *with) number(name string) int {
	v, _ := w.values[name].(float64)
	return int(v)
}

// flag is a boolean with a default.
func (w *with) flag(name string, absent bool) bool {
	if v, ok := w.values[name].(bool); ok {
		return v
	}
	return absent
}

func (w *with) duration(name string) time.Duration {
	return time.Duration(w.number(name)) * time.Millisecond
}

func (w *with) list(name string) (all []string) {
	values, _ := w.values[name].([]any)
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func (w *with) data(name string) []byte {
	v, ok := w.values[name]
	if !ok {
		return nil
	}
	d, err := data(v)
	w.err = errors.Join(w.err, err)
	return d
}

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

// spec is a command.
func (w *with) spec() (client.Spec, error) {
	for _, name := range []string{"sandbox", "check", "maxOutput", "killAfter"} {
		if _, ok := w.values[name]; ok {
			return client.Spec{}, fmt.Errorf("%w: the Go client has no %s", ErrLacks, name)
		}
	}
	s := client.Spec{Argv: w.list("argv"), Dir: w.text("cwd"), PipeStdin: w.flag("stdin", false), ID: w.text("id")}
	if script, ok := w.values["script"]; ok {
		s.Argv = []string{"sh", "-c", fmt.Sprint(script)}
	}
	env, _ := w.values["env"].(map[string]any)
	for name, v := range env {
		s.Env = append(s.Env, fmt.Sprintf("%s=%v", name, v))
	}
	switch tty := w.values["tty"].(type) {
	case map[string]any:
		size := with{values: tty}
		s.TTY = &client.TTY{Rows: uint16(size.number("rows")), Cols: uint16(size.number("cols"))}
	case bool:
		if tty {
			s.TTY = &client.TTY{}
		}
	}
	return s, nil
}

// ended is the result of a command.
func ended(code int, stdout, stderr []byte) map[string]any {
	result := map[string]any{"exitCode": code, "stdout": stdout, "stderr": stderr, "stdoutTruncated": false, "stderrTruncated": false, "timedOut": false}
	if code > 128 {
		result["signal"] = code - 128
	}
	return result
}

// do carries out a verb.
func (r *runner) do(ctx context.Context, verb string, on any, w *with) (any, error) {
	result, err := r.verb(ctx, verb, on, w)
	return result, errors.Join(w.err, err)
}

func (r *runner) verb(ctx context.Context, verb string, on any, w *with) (any, error) {
	switch on := on.(type) {
	case *process:
		return on.do(ctx, verb, w)
	case *client.File:
		switch verb {
		case "readAt":
			p := make([]byte, w.number("length"))
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
		if verb == "close" {
			return nil, on.Close()
		}
		return changes(ctx, on)
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
		select {
		case <-on.done:
			return on.result, on.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case nil:
		return r.global(ctx, verb, w)
	}
	return nil, fmt.Errorf("%w: the Go client has no verb %s of %T", ErrLacks, verb, on)
}

// global carries out a verb of the client, or of the runner.
func (r *runner) global(ctx context.Context, verb string, w *with) (any, error) {
	files := r.client.FS(nil)
	path := w.text("path")
	switch verb {
	case "run", "shell":
		spec, err := w.spec()
		if err != nil {
			return nil, err
		}
		if d := w.duration("timeout"); d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		result, err := r.client.Run(ctx, spec, w.data("input"))
		if result == nil {
			return nil, err
		}
		return ended(result.ExitCode, result.Stdout, result.Stderr), err
	case "spawn":
		spec, err := w.spec()
		if err != nil {
			return nil, err
		}
		return newProcess(r.client.Spawn(ctx, spec))
	case "attach":
		if _, ok := w.values["after"]; ok {
			return newProcess(r.client.AttachAfter(ctx, w.text("id"), uint64(w.number("after"))))
		}
		return newProcess(r.client.Attach(ctx, w.text("id")))
	case "processes":
		return listed(r.client.Processes(ctx))
	case "readFile":
		return files.ReadFile(ctx, path)
	case "writeFile":
		return nil, files.WriteFile(ctx, path, w.data("data"))
	case "list":
		return entries(files.ReadDir(ctx, path))
	case "stat", "exists":
		m, err := files.Stat(ctx, path)
		switch {
		case verb == "exists" && errors.Is(err, fs.ErrNotExist):
			return false, nil
		case err != nil:
			return nil, err
		case verb == "exists":
			return true, nil
		}
		return map[string]any{"isFile": m.IsFile, "isDirectory": m.IsDirectory, "isSymlink": m.IsSymlink, "size": m.Size}, nil
	case "makeDirectory":
		return nil, files.Mkdir(ctx, path, w.flag("parents", true))
	case "remove":
		err := files.Remove(ctx, path)
		if w.flag("recursive", false) {
			err = files.RemoveAll(ctx, path)
		}
		if w.flag("missingOk", false) && errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	case "rename":
		return nil, files.Rename(ctx, w.text("from"), w.text("to"), w.flag("replace", true))
	case "copy":
		return nil, files.Copy(ctx, w.text("from"), w.text("to"))
	case "realpath":
		return files.Canonicalize(ctx, path)
	case "walk":
		return walked(files.Walk(ctx, path, protocol.WalkOptions{MaxDepth: 64, MaxDirectories: 1000, MaxEntries: 1000}))
	case "openFile":
		return files.Open(ctx, path, map[string]string{"read": protocol.OpenRead, "write": protocol.OpenReplace}[w.text("mode")])
	case "watch":
		return files.Watch(ctx, path, w.flag("recursive", false))
	case "applyPatch":
		return patched(files.ApplyPatch(ctx, w.text("cwd"), w.text("patch"), w.flag("dryRun", false)))
	case "http":
		return r.http(ctx, w)
	case "connectTo":
		return r.client.DialSocket(ctx, w.text("to"), nil)
	case "info":
		info, err := r.client.Info(ctx)
		if err != nil {
			return nil, err
		}
		cwd, cwdErr := info.Cwd.Native()
		home, homeErr := info.UserHomeDir.Native()
		return map[string]any{"os": info.PlatformOS, "cwd": cwd, "home": home}, errors.Join(cwdErr, homeErr)
	case "cut":
		return nil, r.line.cut(ctx, w.duration("for"))
	case "close":
		return nil, r.client.Close()
	case "sleep":
		return nil, sleep(ctx, w.duration("ms"))
	case "localWrite":
		return nil, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, w.data("data"), 0o644))
	case "localRead":
		return os.ReadFile(path)
	case "sequence":
		var b bytes.Buffer
		for i := w.number("from"); i <= w.number("to"); i++ {
			fmt.Fprintln(&b, i)
		}
		return b.Bytes(), nil
	}
	return nil, fmt.Errorf("%w: the Go client has no verb %s", ErrLacks, verb)
}

func listed(all []protocol.ListedProcess, err error) (any, error) {
	list := []any{}
	for _, p := range all {
		one := map[string]any{"id": p.ProcessID, "argv": p.Argv, "exited": p.Exited}
		if p.ExitCode != nil {
			one["exitCode"] = *p.ExitCode
		}
		list = append(list, one)
	}
	return list, err
}

func entries(all []protocol.DirectoryEntry, err error) (any, error) {
	list := []any{}
	for _, e := range all {
		list = append(list, map[string]any{"name": e.FileName, "isFile": e.IsFile, "isDirectory": e.IsDirectory})
	}
	return list, err
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
	members := map[string]any{"output": result.Output, "changes": list}
	if result.Diff != nil {
		members["diff"] = *result.Diff
	}
	return members, err
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
			one := map[string]any{"kind": string(c.Kind), "path": c.Path}
			if c.From != "" {
				one["from"] = c.From
			}
			list = append(list, one)
		}
	}
}

func (r *runner) http(ctx context.Context, w *with) (any, error) {
	params := protocol.HTTPRequestParams{Method: w.text("method"), URL: w.text("url"), BodyBase64: w.data("content")}
	headers, _ := w.values["headers"].(map[string]any)
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
		return ended(code, nil, nil), err
	case "output":
		return p.output(ctx)
	case "readUntil":
		return p.readUntil(w.text("stream"), []byte(w.text("text")))
	}
	return nil, fmt.Errorf("%w: the Go client has no verb %s of a process", ErrLacks, verb)
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
	return ended(code, stdout, stderr), err
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
