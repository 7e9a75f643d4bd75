package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/filecopy"
	"github.com/execagent/execagent/protocol"
)

// Files are the files of an agent.
type Files struct {
	Client *client.Client
	Dir    string // relative paths are below this directory
}

// at makes a path absolute. The path may begin with a colon, as for agent cp.
func (f *Files) at(name string) string {
	name = strings.TrimPrefix(name, ":")
	if strings.HasPrefix(name, "/") {
		return name
	}
	return path.Join(f.Dir, name)
}

// Failures are the errors of single paths. The request has succeeded for all other paths.
type Failures []error

func (f Failures) Error() string { return errors.Join(f...).Error() }

// each calls do for one path after the other, and goes on after an error.
func (f *Files) each(ctx context.Context, names []string, do func(ctx context.Context, name, path string) error) error {
	var failed Failures
	for _, name := range names {
		if err := do(ctx, name, f.at(name)); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			failed = append(failed, Explain(name, err))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// Explain returns the error of a path in words for the user.
func Explain(name string, err error) error {
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		text, _, _ := strings.Cut(refused.Err.Message, " (os error ")
		return fmt.Errorf("%s: %s", filecopy.Quote(name), text)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fmt.Errorf("%s: %w", filecopy.Quote(name), err)
}

// twice sends a request that changes something, and sends it again each time the connection is lost
// before the answer. done reports whether the error of a repeated request means that an earlier
// request has succeeded.
func (f *Files) twice(ctx context.Context, method string, params any, done func(error) bool) error {
	for sent := false; ; {
		err := f.Client.Call(ctx, method, params, nil)
		lost, ok := errors.AsType[*client.DisconnectedError](err)
		switch {
		case err != nil && sent && done(err):
			return nil
		case !ok || f.Client.Err() != nil:
			return err
		}
		sent = sent || lost.Sent
	}
}

// Remove deletes files and links; with all also whole directories. With force a missing file is no
// error.
func (f *Files) Remove(ctx context.Context, names []string, all, force bool) error {
	return f.each(ctx, names, func(ctx context.Context, name, path string) error {
		if strings.Trim(path, "/.") == "" {
			return errors.New("is not removed, because it is the root directory")
		}
		if isDot(name) {
			return errors.New("is not removed, because it ends in . or .. and not in a name")
		}
		if all && f.around(ctx, path) {
			return errors.New("is not removed, because it holds the agent's working directory")
		}
		params := &protocol.RemoveParams{Path: protocol.NewPathURI(path), Recursive: &all, Force: &force}
		if !all {
			// For a link whose target is missing, the server says that the file does not exist.
			info, err := f.Client.FS(nil).Stat(ctx, path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err == nil && info.IsDirectory && !info.IsSymlink {
				return errors.New("is a directory: use -r")
			}
		}
		missing := func(err error) bool { return errors.Is(err, fs.ErrNotExist) }
		return f.twice(ctx, protocol.MethodFSRemove, params, missing)
	})
}

// isDot reports whether a path, as it was typed, ends in . or .. or stands for the working directory.
func isDot(name string) bool {
	name = strings.TrimRight(strings.TrimPrefix(name, ":"), "/")
	last := name[strings.LastIndexByte(name, '/')+1:]
	return last == "" || last == "." || last == ".."
}

// around reports whether a path, with its links followed, is the working directory or a directory
// above it. For a path that is itself a link it returns false, because only the link would be
// removed.
func (f *Files) around(ctx context.Context, name string) bool {
	real := func(name string) string {
		if resolved, err := f.Client.FS(nil).Canonicalize(ctx, name); err == nil {
			return resolved
		}
		return name // it does not exist; for another error, the request to remove reports the reason
	}
	name = path.Join(real(path.Dir(path.Clean(name))), path.Base(name))
	dir := real(f.Dir)
	return dir == name || strings.HasPrefix(dir, name+"/")
}

// Mkdir makes directories; with parents also their parents, and an existing directory is no error.
func (f *Files) Mkdir(ctx context.Context, names []string, parents bool) error {
	return f.each(ctx, names, func(ctx context.Context, name, path string) error {
		params := &protocol.CreateDirectoryParams{Path: protocol.NewPathURI(path), Recursive: &parents}
		there := func(error) bool {
			info, err := f.Client.FS(nil).Stat(ctx, path)
			return err == nil && info.IsDirectory
		}
		return f.twice(ctx, protocol.MethodFSCreateDirectory, params, there)
	})
}

// writeError says that the output cannot be written.
type writeError struct{ Err error }

func (e *writeError) Error() string { return "writing to standard output: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *writeError) Unwrap() error { return e.Err }

// block is how much of a file is read with one request, in bytes.
const block = 1 << 20

// Cat writes the contents of files.
func (f *Files) Cat(ctx context.Context, w io.Writer, names []string) error {
	var broken *writeError
	err := f.each(ctx, names, func(ctx context.Context, _, path string) error {
		if broken != nil {
			return nil
		}
		err := f.cat(ctx, w, path)
		if write, ok := errors.AsType[*writeError](err); ok {
			broken = write
			return nil
		}
		return err
	})
	if broken != nil {
		return broken
	}
	return err
}

// cat writes a file. After a lost connection it continues where it was, if the file is the same.
func (f *Files) cat(ctx context.Context, w io.Writer, path string) error {
	info, err := f.Client.FS(nil).Stat(ctx, path)
	if err != nil {
		return err
	}
	if info.IsDirectory {
		return errors.New("is a directory")
	}
	buf := make([]byte, block)
	for at := int64(0); ; {
		n, err := f.copyFrom(ctx, w, path, at, buf)
		at += n
		if _, lost := errors.AsType[*client.DisconnectedError](err); !lost || f.Client.Err() != nil {
			return err
		}
		now, err := f.Client.FS(nil).Stat(ctx, path)
		if err != nil {
			return err
		}
		if now.Size < info.Size || now.CreatedAtMs != info.CreatedAtMs || now.ModifiedAtMs != info.ModifiedAtMs {
			return errors.New("has changed while the connection was lost")
		}
	}
}

// copyFrom writes a file from an offset on, and returns how many bytes it has written.
func (f *Files) copyFrom(ctx context.Context, w io.Writer, path string, at int64, buf []byte) (written int64, err error) {
	file, err := f.Client.FS(nil).Open(ctx, path, protocol.OpenRead)
	if err != nil {
		return 0, err
	}
	defer file.Close() // nothing was written to it
	for {
		n, err := file.ReadAtContext(ctx, buf, at+written)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return written, &writeError{err}
			}
			written += int64(n)
		}
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return written, err
		}
	}
}
