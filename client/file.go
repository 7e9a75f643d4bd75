package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strconv"

	"github.com/execagent/execagent/protocol"
)

// maxBlock is how much one request reads or writes of an open file, in bytes
// (rpc.md 5.5).
const maxBlock = 1 << 20

// File is an open file on the server, which keeps at most 128 per connection.
// Its methods may be called at once. It ends with Close or with the
// connection.
type File struct {
	client *Client
	id     string
	path   string
}

// Open opens a file, in mode protocol.OpenRead or protocol.OpenReplace. The
// latter empties or creates it at once, and needs the server's
// fileWriteStreaming. The caller closes the file.
func (f *FS) Open(ctx context.Context, path, mode string) (*File, error) {
	if mode == protocol.OpenReplace {
		err := f.client.require(ctx, "writable file streams",
			func(c *protocol.Capabilities) bool { return c.FileWriteStreaming })
		if err != nil {
			return nil, pathError("open", path, err)
		}
	}
	if f.sandbox != nil {
		err := f.client.require(ctx, "sandboxed file streams",
			func(c *protocol.Capabilities) bool { return c.SandboxedFileStreaming })
		if err != nil {
			return nil, pathError("open", path, err)
		}
	}
	file := &File{client: f.client, id: "f" + strconv.FormatUint(f.client.nextID(), 10), path: path}
	params := &protocol.OpenParams{HandleID: file.id, Path: protocol.NewPathURI(path), Mode: mode, Sandbox: f.sandbox}
	err := f.call(ctx, "open", path, protocol.MethodFSOpen, params, nil)
	if err == nil {
		return file, nil
	}
	if _, refused := errors.AsType[*ServerError](err); !refused {
		file.abandon()
	}
	return nil, err
}

// abandon closes a handle that may be open at the server although the answer to
// Open never came.
func (f *File) abandon() {
	c := f.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.cleanups.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		_ = f.Close(ctx) // nobody waits for the error
	})
}

// Name is the path that was opened.
func (f *File) Name() string { return f.path }

// ReadAt reads like [io.ReaderAt]: when it reads fewer bytes than p has, it returns
// an error, which is [io.EOF] at the end of the file.
func (f *File) ReadAt(ctx context.Context, p []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, pathError("read", f.path, fs.ErrInvalid)
	}
	for n < len(p) {
		want := min(len(p)-n, maxBlock)
		b, err := f.readBlock(ctx, uint64(offset)+uint64(n), want)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], b.Chunk)
		if b.EOF || len(b.Chunk) == 0 {
			if n == len(p) {
				break
			}
			return n, io.EOF
		}
	}
	return n, nil
}

func (f *File) readBlock(ctx context.Context, offset uint64, length int) (*protocol.ReadBlockResult, error) {
	b := new(protocol.ReadBlockResult)
	params := &protocol.ReadBlockParams{HandleID: f.id, Offset: offset, Len: uint64(length)}
	if err := f.client.Call(ctx, protocol.MethodFSReadBlock, params, b); err != nil {
		return nil, pathError("read", f.path, err)
	}
	if len(b.Chunk) > length {
		return nil, pathError("read", f.path, protocolErrorf("%d bytes were asked for and %d came", length, len(b.Chunk)))
	}
	return b, nil
}

// WriteAt writes like [io.WriterAt]. What lies between the end of the file and
// offset becomes zero bytes.
func (f *File) WriteAt(ctx context.Context, p []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, pathError("write", f.path, fs.ErrInvalid)
	}
	for n < len(p) {
		chunk := p[n:min(len(p), n+maxBlock)]
		params := &protocol.WriteBlockParams{HandleID: f.id, Offset: uint64(offset) + uint64(n), Chunk: chunk}
		if err := f.client.Call(ctx, protocol.MethodFSWriteBlock, params, nil); err != nil {
			return n, pathError("write", f.path, err)
		}
		n += len(chunk)
	}
	return n, nil
}

// Close closes the file; closing it again is no error.
func (f *File) Close(ctx context.Context) error {
	err := f.client.Call(ctx, protocol.MethodFSClose, &protocol.HandleParams{HandleID: f.id}, nil)
	return pathError("close", f.path, err)
}

// readBlocks reads a whole file that is too large for one message.
func (f *FS) readBlocks(ctx context.Context, path string) (data []byte, err error) {
	file, err := f.Open(ctx, path, protocol.OpenRead)
	if err != nil {
		return nil, err
	}
	defer file.closeAfter(ctx, &err)
	for {
		b, err := file.readBlock(ctx, uint64(len(data)), maxBlock)
		if err != nil {
			return nil, err
		}
		if data = append(data, b.Chunk...); b.EOF {
			return data, nil
		}
	}
}

// writeBlocks writes a whole file that is too large for one message.
func (f *FS) writeBlocks(ctx context.Context, path string, data []byte) (err error) {
	file, err := f.Open(ctx, path, protocol.OpenReplace)
	if err != nil {
		return err
	}
	defer file.closeAfter(ctx, &err)
	_, err = file.WriteAt(ctx, data, 0)
	return err
}

// closeAfter closes the file, even when ctx has ended. If err points to nil, it is
// set to the error of closing.
func (f *File) closeAfter(ctx context.Context, err *error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if closeErr := f.Close(ctx); *err == nil {
		*err = closeErr
	}
}
