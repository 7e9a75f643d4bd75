package console

import (
	"bytes"
	"context"
	"io"
	"syscall"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
)

const (
	ctrlC = 3 // VINTR in termios(3)
	ctrlD = 4 // VEOF
)

// input returns standard input without the keys that are for the console.
func (c *Console) input() io.Reader {
	if !c.command.TTY && c.stdin == nil {
		// The struct hides (*os.File).WriteTo from io.Copy, because io.Copy would copy smaller
		// pieces with it.
		return struct{ io.Reader }{c.sys.Stdin}
	}
	typed := make(chan []byte, keystrokes)
	c.typist = &typist{Console: c, typed: typed, keys: keys{wanted: c.command.DetachKeys}}
	return &pieces{next: typed}
}

// copyStdin passes input on to the command. When the input ends, copyStdin closes the command's
// standard input. While the connection is lost, copyStdin waits.
func (c *Console) copyStdin(ctx context.Context, in io.Reader) {
	if c.typist != nil {
		go c.typist.readAhead(ctx)
	}
	last := &lastByte{w: c.command.Process.Stdin()}
	// If reading fails, there is no more input. If writing fails, the command or the
	// connection has ended; copyOutput notices that.
	if _, err := io.Copy(last, in); last.err != nil && err != nil {
		return
	}
	if ctx.Err() != nil || c.command.Keep && c.stdin.Gone() {
		return // the console has ended, and the command may go on
	}
	switch {
	case c.command.TTY:
		// A terminal treats Ctrl-D as the end of input only at the start of a line. Within a line,
		// the first Ctrl-D only passes the line so far to the command, so a second Ctrl-D is
		// needed.
		eof := []byte{ctrlD}
		if last.seen && last.last != '\n' {
			eof = []byte{ctrlD, ctrlD}
		}
		_ = c.command.Process.Write(ctx, eof)
	case c.command.Capabilities.ProcessCloseStdin:
		_ = c.command.Process.CloseStdin(ctx)
	default:
		program.Complain(c.sys.Stderr, "the server cannot end the command's standard input; use -n to pass on none")
	}
}

// keystrokes is how many chunks of terminal input may wait for the connection.
const keystrokes = 256

// readAhead reads standard input even while nothing can be sent, because some input is for the
// console: ~. at any time, see [escapes], and Ctrl-C once the user was told that the connection is
// lost, or once the command has ended. Before that, Ctrl-C in a raw terminal is a byte for the
// command. A terminal in line mode passes ~. on only at the end of the line. A question reads its
// answer before readAhead does. A job that waits has to want its terminal first.
func (r *typist) readAhead(ctx context.Context) {
	select {
	case <-r.reads:
	case <-ctx.Done():
	}
	for goes := true; goes; {
		if r.stdin != nil && r.stdin.Await(ctx) != nil {
			break
		}
		r.typing <- struct{}{}
		// A question may have read the input first.
		goes = r.stdin != nil && !r.stdin.Ready() || r.read(ctx)
		r.typing.free()
	}
	r.typing <- struct{}{}
	defer r.typing.free()
	r.over = true
	close(r.typed)
}

// typist passes the user's input on to the command.
type typist struct {
	*Console
	typed   chan<- []byte
	over    bool // the input has ended; guarded by typing
	escapes escapes
	keys    keys
	// For releaseLater, guarded by typing.
	typings int // counts what was typed
	later   *time.Timer
}

// read reads once and passes the input on. It reports whether reading should go on.
func (r *typist) read(ctx context.Context) bool {
	p := make([]byte, 4<<10)
	n, err := r.sys.Stdin.Read(p)
	return r.pass(ctx, p[:n]) && err == nil
}

// pass passes on the input that is not for the console. It reports whether the console goes on.
func (r *typist) pass(ctx context.Context, input []byte) bool {
	if (r.lost.Load() || r.exited.Load()) && r.command.TTY && r.stdin != nil && bytes.IndexByte(input, ctrlC) >= 0 {
		r.end(SignalError{syscall.SIGINT})
		return false
	}
	asked := nothing
	if r.stdin != nil && (r.command.TTY || r.command.Keep) && r.command.Job == nil {
		input, asked = r.escapes.filter(input)
	}
	if asked == nothing && r.stdin != nil && r.command.Keep {
		input, asked = r.keys.filter(input)
		r.releaseLater(ctx)
	}
	switch asked {
	case leave:
		r.leave()
		return false
	case list:
		help := escapesHelp
		if r.command.Keep {
			help = escapesHelpKept
		}
		r.Say(help)
	}
	return r.forward(ctx, input)
}

// keyPatience is how long the first of the keys that leave wait for the next one. Then they go to
// the command, which may know them, too.
const keyPatience = 500 * time.Millisecond

// releaseLater passes on keys that are held back, unless more is typed first.
func (r *typist) releaseLater(ctx context.Context) {
	r.typings++
	if r.later != nil {
		r.later.Stop()
	}
	if n := r.typings; r.keys.matched > 0 {
		r.later = time.AfterFunc(keyPatience, func() {
			if ctx.Err() != nil || !r.typing.take(ctx) {
				return
			}
			defer r.typing.free()
			if r.typings == n {
				r.forward(ctx, r.keys.release())
			}
		})
	}
}

// forward passes input on to the command. It reports whether the console goes on.
func (r *typist) forward(ctx context.Context, input []byte) bool {
	if len(input) == 0 || r.over {
		return true
	}
	select {
	case r.typed <- input:
		select {
		case r.keyed <- struct{}{}:
		default:
		}
		return true
	case <-ctx.Done():
		return false
	}
}

// leave ends the console because the user wants it.
func (c *Console) leave() {
	if c.command.Keep {
		c.end(ErrDetached)
	} else {
		c.end(errLeft)
	}
}

// pieces reads chunks from a channel.
type pieces struct {
	next <-chan []byte
	rest []byte
}

func (p *pieces) Read(into []byte) (int, error) {
	if len(p.rest) == 0 {
		var ok bool
		if p.rest, ok = <-p.next; !ok {
			return 0, io.EOF
		}
	}
	n := copy(into, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// lastByte writes to w and remembers the last byte and the last error.
type lastByte struct {
	w    io.Writer
	last byte
	seen bool // last is set
	err  error
}

func (l *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		l.last, l.seen = p[len(p)-1], true
	}
	var n int
	n, l.err = l.w.Write(p)
	return n, l.err
}
