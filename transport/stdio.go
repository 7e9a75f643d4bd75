package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/rpc"
)

const lineReadBuffer = 64 << 10 // what a Linux pipe holds, pipe(7)

// Lines is a [rpc.Conn] that reads and writes one JSON object a line
// (rpc.md 1.4). It writes LF and reads LF or CRLF; it skips blank lines, and
// takes a last line without an ending. [Stdio] and [StartCommand] make them.
type Lines struct {
	label string
	in    *bufio.Reader
	inEnd io.Closer

	// Only the reader uses these.
	intake  *rpc.Intake // closed with the connection
	readErr error       // of an earlier Read

	writing sync.Mutex // held while a line is being sent
	out     io.WriteCloser
	outErr  error // of an earlier Write, which may have sent half a line; protected by writing

	close    sync.Once
	closed   chan struct{}
	closeErr error
}

// Stdio returns a connection over in and out, which it owns: Close closes them.
// An agent passes os.Stdin and os.Stdout, a test any kind of pipe. The memory
// of its messages counts in budget, which may be nil.
//
// Close unblocks Read and Write on pipes and sockets. For that, Stdio makes an
// *os.File of these kinds non-blocking, also for every other process that shares
// its open file description. A Read from a terminal cannot be unblocked and
// continues until the next line; a Read from a regular file never blocks.
func Stdio(in io.ReadCloser, out io.WriteCloser, budget *rpc.Budget) *Lines {
	if f, ok := in.(*os.File); ok {
		in = pollable(f)
	}
	if f, ok := out.(*os.File); ok {
		out = pollable(f)
	}
	return newLines(in, out, "stdio", budget)
}

func newLines(in io.ReadCloser, out io.WriteCloser, label string, budget *rpc.Budget) *Lines {
	return &Lines{
		label:  label,
		in:     bufio.NewReaderSize(in, lineReadBuffer),
		inEnd:  in,
		intake: rpc.NewIntake(budget, 0, nil), // no time limit, because no other peer waits for this one
		out:    out,
		closed: make(chan struct{}),
	}
}

// Read returns the next line without its ending, see [rpc.Conn]. A line above
// [maxMessage] is [ErrTooLarge].
func (c *Lines) Read() ([]byte, error) {
	for c.readErr == nil {
		line, err := c.readLine()
		if err != nil {
			c.readErr = err
			if c.isClosed() {
				c.readErr = net.ErrClosed
			}
			break
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
		c.intake.Recycle(line)
	}
	return nil, c.readErr
}

func (c *Lines) readLine() ([]byte, error) {
	if err := c.intake.Begin(); err != nil {
		return nil, err
	}
	for {
		part, err := c.in.ReadSlice('\n')
		if c.intake.Len()+len(part) > maxMessage+len("\r\n") {
			c.intake.Drop()
			return nil, ErrTooLarge
		}
		for len(part) > 0 {
			space, err := c.intake.Space(len(part), maxMessage+len("\r\n"))
			if err != nil {
				c.intake.Drop()
				return nil, err
			}
			n := copy(space, part)
			c.intake.Filled(n)
			part = part[n:]
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (!errors.Is(err, io.EOF) || c.intake.Len() == 0):
			c.intake.Drop()
			return nil, err
		}
		line := trimEnding(c.intake.Message())
		if len(line) > maxMessage {
			c.intake.Recycle(line)
			return nil, ErrTooLarge
		}
		return line, nil
	}
}

func trimEnding(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

// Write sends a message as a line, see [rpc.Conn]. It refuses a message with a line
// feed, because that would end the line.
func (c *Lines) Write(message []byte) error {
	if bytes.IndexByte(message, '\n') >= 0 {
		return errors.New("message holds a line feed")
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.outErr == nil {
		c.outErr = c.writeLineLocked(message)
	}
	if c.isClosed() {
		return net.ErrClosed
	}
	return c.outErr
}

func (c *Lines) writeLineLocked(message []byte) error {
	if c.isClosed() {
		return net.ErrClosed
	}
	if len(message) >= lineReadBuffer {
		// Copying would cost more than a second system call.
		if _, err := c.out.Write(message); err != nil {
			return err
		}
		_, err := c.out.Write([]byte("\n"))
		return err
	}
	line := append(append(buffer.Get(len(message)+1), message...), '\n')
	_, err := c.out.Write(line)
	buffer.Recycle(line)
	return err
}

// WriteParts sends a message as a line, see [rpc.PartsWriter]. The message must
// contain no line feed; WriteParts does not check that.
func (c *Lines) WriteParts(size int, parts iter.Seq[[]byte]) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.outErr == nil {
		c.outErr = writeParts(c.out, nil, size, parts)
	}
	if c.outErr == nil {
		_, c.outErr = c.out.Write([]byte("\n"))
	}
	if c.isClosed() {
		return net.ErrClosed
	}
	return c.outErr
}

// Intake returns the intake that assembles the messages, see [rpc.Metered].
func (c *Lines) Intake() *rpc.Intake { return c.intake }

// Close closes both files, at once.
func (c *Lines) Close() error {
	c.close.Do(func() {
		close(c.closed)
		c.intake.Close()
		c.closeErr = errors.Join(c.inEnd.Close(), c.out.Close())
	})
	return c.closeErr
}

// String is the label of the connection in logs and error texts: "stdio".
func (c *Lines) String() string { return c.label }

func (c *Lines) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// pollable returns a file for the open file description of f whose Close unblocks
// Read and Write: for pipes and sockets a duplicate that the runtime polls, else f
// itself. The runtime opens the standard files as blocking files, whose Close
// waits for a Read under way.
func pollable(f *os.File) io.ReadWriteCloser {
	if f.SetDeadline(time.Time{}) == nil {
		return f
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return f
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return f
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return f
	}
	return &duplicate{File: os.NewFile(uintptr(fd), f.Name()), original: f}
}

// duplicate is a second descriptor of the open file description of original.
// original stays open too, so that its number is not given to another file.
type duplicate struct {
	*os.File
	original *os.File
}

func (d *duplicate) Close() error {
	return errors.Join(d.File.Close(), d.original.Close())
}
