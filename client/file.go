package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/execagent/execagent/protocol"
)

// maxBlock is the most bytes of an open file that one request reads or writes
// (rpc.md 5.5).
const maxBlock = 1 << 20

// File is an open file on the server, which keeps at most 128 per connection.
// Its methods may be called concurrently. It is an [io.ReaderAt] and an [io.WriterAt].
//
// It ends with Close or with the connection, because the server then closes its
// files, and opening the name again could open another file. The error is then a
// [DisconnectedError].
type File struct {
	connection *connection
	id         string
	path       string
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
	if !strings.HasPrefix(path, "/") {
		return nil, pathError("open", path, fs.ErrInvalid)
	}
	file := &File{id: "f" + strconv.FormatUint(f.client.nextID(), 10), path: path}
	params := &protocol.OpenParams{HandleID: file.id, Path: protocol.NewPathURI(path), Mode: mode, Sandbox: f.sandbox}
	for {
		l, err := f.client.connected(ctx)
		if err != nil {
			return nil, pathError("open", path, err)
		}
		file.connection = l
		err = l.called(ctx, protocol.MethodFSOpen, params, nil)
		if unsent(err) {
			continue
		}
		if err == nil {
			return file, nil
		}
		if _, refused := errors.AsType[*ServerError](err); !refused && !isLoss(err) {
			file.abandon()
		}
		return nil, pathError("open", path, err)
	}
}

// abandon closes a handle that may be open at the server, although no answer to
// Open came.
func (f *File) abandon() {
	f.connection.client.begin(func() { _ = f.Close() }) // nobody waits for the error
}

// Name is the path that was opened.
func (f *File) Name() string { return f.path }

// ReadAt is [File.ReadAtContext] without a time limit.
func (f *File) ReadAt(p []byte, offset int64) (n int, err error) {
	return f.ReadAtContext(context.Background(), p, offset)
}

// ReadAtContext reads like [io.ReaderAt]: when it reads fewer bytes than p has, it
// returns an error, which is [io.EOF] at the end of the file.
func (f *File) ReadAtContext(ctx context.Context, p []byte, offset int64) (n int, err error) {
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
	if err := f.connection.called(ctx, protocol.MethodFSReadBlock, params, b); err != nil {
		return nil, pathError("read", f.path, err)
	}
	if len(b.Chunk) > length {
		return nil, pathError("read", f.path, protocolErrorf("%d bytes were asked for and %d came", length, len(b.Chunk)))
	}
	return b, nil
}

// WriteAt is [File.WriteAtContext] without a time limit.
func (f *File) WriteAt(p []byte, offset int64) (n int, err error) {
	return f.WriteAtContext(context.Background(), p, offset)
}

// WriteAtContext writes like [io.WriterAt]. A gap between the end of the file and
// offset becomes zero bytes.
func (f *File) WriteAtContext(ctx context.Context, p []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, pathError("write", f.path, fs.ErrInvalid)
	}
	for n < len(p) {
		chunk := p[n:min(len(p), n+maxBlock)]
		params := &protocol.WriteBlockParams{HandleID: f.id, Offset: uint64(offset) + uint64(n), Chunk: chunk}
		if err := f.connection.called(ctx, protocol.MethodFSWriteBlock, params, nil); err != nil {
			return n, pathError("write", f.path, err)
		}
		n += len(chunk)
	}
	return n, nil
}

// Close closes the file, within 10 s. Closing it again is no error, nor is closing
// it after the connection is gone.
func (f *File) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	err := f.connection.called(ctx, protocol.MethodFSClose, &protocol.HandleParams{HandleID: f.id}, nil)
	if isLoss(err) {
		return nil
	}
	return pathError("close", f.path, err)
}

// readBlocks reads a whole file that is too large for one message.
func (f *FS) readBlocks(ctx context.Context, path string) ([]byte, error) {
	file, err := f.Open(ctx, path, protocol.OpenRead)
	if err != nil {
		return nil, err
	}
	defer file.Close() // an error of closing does not matter after reading
	var data []byte
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
func (f *FS) writeBlocks(ctx context.Context, path string, data []byte) error {
	file, err := f.Open(ctx, path, protocol.OpenReplace)
	if err != nil {
		return err
	}
	_, err = file.WriteAtContext(ctx, data, 0)
	return errors.Join(err, file.Close())
}
