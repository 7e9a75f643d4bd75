package transfer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/filecopy"
	"github.com/execagent/execagent/protocol"
)

const (
	// patience is how long the tool at the agent may take to clean up and to end, after the copy
	// has failed here.
	patience = 5 * time.Second
	// piece is how much is read and written at once, in bytes.
	piece = 256 << 10
	// maxLine bounds a line of the tool, in bytes.
	maxLine = 256 << 10
)

// ErrTold says that not everything was copied, and that the user has been told the files and the
// reasons.
var ErrTold = errors.New("not everything was copied")

// Copy is one copy between this machine and an agent.
type Copy struct {
	Plan
	Client *client.Client
	Dir    string // directory at the agent where relative paths start
	System program.System
	Follow bool // send the targets of links among the sources
	Owners bool // keep the owners
	Quiet  bool // show no progress

	bar  *bar
	tool *client.Process
	// muted says that messages of the tool are no longer passed on, told that a message was passed
	// on.
	muted, told atomic.Bool
}

// Run copies. After an error each target is as before, unless its replacement had arrived completely.
func (c *Copy) Run(ctx context.Context) error {
	if c.stream() && !c.Up && program.NewTerminal(c.System.Stdout) != nil {
		return errors.New("a tar archive cannot be written to a terminal; to print a file use agent cat")
	}
	if !c.Quiet && !c.stream() {
		c.bar = newBar(c.System)
	}
	err := c.run(ctx)
	c.bar.end(err == nil)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// stream reports whether a tar archive is copied.
func (c *Copy) stream() bool { return c.Target == archive && !c.Up || c.Sources[0] == archive && c.Up }

func (c *Copy) run(ctx context.Context) (err error) {
	request := filecopy.Request{Plain: c.stream()}
	if c.Up {
		dir := c.Dir
		if path.Clean(c.Target) == "." {
			// The agent may know its directory by a link, which no copy follows.
			if real, err := c.Client.FS(nil).Canonicalize(ctx, dir); err == nil {
				dir = real
			}
		}
		request.Receive, request.Many, request.Owners = at(dir, c.Target), len(c.Sources) > 1, c.Owners
	} else {
		request.Follow, request.Measure = c.Follow, c.bar != nil
		for _, source := range c.Sources {
			request.Send = append(request.Send, at(c.Dir, source))
		}
	}
	c.tool, err = c.Client.Spawn(ctx, client.Spec{
		Argv: request.Argv(), Builtin: true, PipeStdin: true,
		Dir:       "/", // all paths are absolute, and Dir may be gone
		EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritNone},
	})
	if _, ok := errors.AsType[*client.UnsupportedError](err); ok {
		err = fmt.Errorf("%w, and agent cp needs one: an agent that confines every request has none; use agent cat, or tar with agent exec", err)
	}
	if err != nil {
		return err
	}
	defer c.tool.Close()
	var listening sync.WaitGroup
	listening.Go(c.listen)
	if c.Up {
		err = c.up(ctx)
	} else {
		err = c.down(ctx, request.Send)
	}
	incomplete := errors.Is(err, filecopy.ErrIncomplete)
	if err != nil && !incomplete {
		return c.giveUp(ctx, err, &listening)
	}
	code, err := c.tool.Wait(ctx)
	if err != nil {
		return c.giveUp(ctx, err, &listening)
	}
	listening.Wait()
	if code == 0 && incomplete {
		return ErrTold
	}
	return c.outcome(code, nil)
}

// outcome returns the error of a copy. The tool has ended with code, and this end with err. The
// error of the tool comes first, because err is often only an effect of the tool's end.
func (c *Copy) outcome(code int, err error) error {
	switch {
	case code != 0 && c.told.Load():
		return ErrTold
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("copying failed on the agent with exit code %d", code)
	}
	return nil
}

// giveUp ends the tool, which then removes incomplete files. It returns why the copy has failed.
func (c *Copy) giveUp(ctx context.Context, err error, listening *sync.WaitGroup) error {
	_, gone := errors.AsType[*inputError](err)
	if ctx.Err() != nil || !gone && !errors.Is(err, filecopy.ErrCut) {
		c.muted.Store(true) // the cause is on this machine, and the tool would only report the effect
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = c.tool.Stdout().Close()
	_ = c.tool.CloseStdin(ctx) // the tool takes this for the end
	code, ended := c.tool.Wait(ctx)
	if ended != nil {
		_ = c.tool.Terminate(ctx) // if that fails too, the end of the session kills it
		c.tool.Close()
	}
	listening.Wait()
	if c.muted.Load() || ended != nil {
		return err
	}
	return c.outcome(code, err)
}

// listen passes messages of the tool on, line by line.
func (c *Copy) listen() {
	lines := bufio.NewScanner(c.tool.Stderr()) //nolint:scannererr // the end of the function says why
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if !c.muted.Load() {
			c.told.Store(true)
			c.complain(lines.Text())
		}
	}
	// Scan has failed because the connection has failed, which the copy notices. Or a line was too
	// long; then the exit code says enough.
	_, _ = io.Copy(io.Discard, c.tool.Stderr())
}

func (c *Copy) complain(what any) {
	c.bar.clear()
	program.Complain(c.System.Stderr, what)
}

// note tells the user that a file is left out here.
func (c *Copy) note(path string, err error) {
	c.complain(fmt.Sprintf("%s: %v", filecopy.Quote(path), err))
}

// up sends the sources to the agent.
func (c *Copy) up(ctx context.Context) error {
	_ = c.tool.Stdout().Close() // the tool writes nothing there
	in := &input{c.tool.Feed(ctx)}
	var err error
	if c.stream() {
		err = c.pass(ctx, in)
	} else {
		s := filecopy.Sender{Sources: c.Sources, Follow: c.Follow, Measure: c.bar != nil, Note: c.note, Progress: c.bar.progress}
		err = s.Send(ctx, in)
	}
	if err != nil && !errors.Is(err, filecopy.ErrIncomplete) {
		return err
	}
	return errors.Join(err, in.close())
}

// pass sends the archive on standard input.
func (c *Copy) pass(ctx context.Context, in *input) error {
	passed := make(chan error, 1)
	go func() {
		// A read of standard input cannot be interrupted, so this goroutine may last until the
		// program ends. The struct hides the method with which io.Copy would copy in smaller
		// pieces.
		archive := bufio.NewReaderSize(struct{ io.Reader }{c.System.Stdin}, piece)
		err := checkArchive(archive)
		if err == nil {
			_, err = io.Copy(in, archive)
		}
		passed <- err
	}()
	select {
	case err := <-passed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// packers are programs that compress archives, by the first bytes of their output.
var packers = map[string]string{
	"\x1f\x8b": "gzip", "\x28\xb5\x2f\xfd": "zstd", "\xfd7zXZ\x00": "xz", "BZh": "bzip2",
}

// checkArchive refuses input that does not begin like a tar archive. Empty input is an empty
// archive.
func checkArchive(r *bufio.Reader) error {
	const header = 512
	begin, _ := r.Peek(header) // an error comes again with the next read
	for magic, packer := range packers {
		if bytes.HasPrefix(begin, []byte(magic)) {
			return fmt.Errorf("the archive is compressed: unpack it with %s -d first", packer)
		}
	}
	_, err := tar.NewReader(bytes.NewReader(begin)).Next()
	if errors.Is(err, tar.ErrHeader) || len(begin) > 0 && len(begin) < header {
		return errors.New("standard input is not a tar archive")
	}
	return nil
}

// down receives the sources from the agent.
func (c *Copy) down(ctx context.Context, sources []string) error {
	defer context.AfterFunc(ctx, func() { _ = c.tool.Stdout().Close() })()
	out := newOutput(ctx, c.tool)
	defer out.end()
	if c.stream() {
		// As in pass, the struct hides the method that copies in smaller pieces.
		_, err := io.CopyBuffer(struct{ io.Writer }{c.System.Stdout}, out, make([]byte, piece))
		if errors.Is(err, syscall.EPIPE) {
			return console.SignalError{Signal: syscall.SIGPIPE}
		}
		return err
	}
	r := filecopy.Receiver{
		Target: c.Target, Many: len(sources) > 1, Names: filecopy.Names(sources), Owners: c.Owners, Note: c.note, Progress: c.bar.progress,
	}
	return r.Receive(ctx, out)
}

// inputError says that writing to the tool failed, mostly because the tool has ended.
type inputError struct{ err error }

func (e *inputError) Error() string { return e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// input is the standard input of the tool.
type input struct{ feed *client.Feed }

func (in *input) Write(p []byte) (n int, err error) {
	if n, err = in.feed.Write(p); err != nil {
		err = &inputError{err}
	}
	return n, err
}

func (in *input) close() error {
	if err := in.feed.Close(); err != nil {
		return &inputError{err}
	}
	return nil
}

// output is the standard output of the tool. It tells the tool how many bytes have arrived.
type output struct {
	io.Reader
	received uint64
	acked    uint64
	due      chan uint64 // holds at most one number, the newest
	ended    chan struct{}
}

func newOutput(ctx context.Context, tool *client.Process) *output {
	o := &output{Reader: tool.Stdout(), due: make(chan uint64, 1), ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		for received := range o.due {
			// If that fails, the tool or the connection has ended, and the next read says so.
			_ = tool.Write(ctx, filecopy.Acknowledge(received))
		}
	}()
	return o
}

func (o *output) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	o.received += uint64(n)
	if o.received-o.acked >= filecopy.Window/4 {
		select {
		case <-o.due: // the earlier number was not sent yet
		default:
		}
		o.due <- o.received
		o.acked = o.received
	}
	return n, err
}

// end waits until the last acknowledgement is sent.
func (o *output) end() {
	close(o.due)
	<-o.ended
}
