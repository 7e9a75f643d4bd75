package console

import (
	"bytes"
	"context"
	"io"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/program"
)

const (
	ctrlC = 3 // VINTR in termios(3)
	ctrlD = 4 // VEOF
)

// input returns standard input without the keys that are for the console.
func (c *Console) input() io.Reader {
	if !c.command.TTY && c.stdin == nil {
		// The struct hides (*os.File).WriteTo from io.Copy, which would copy in smaller pieces with it.
		return struct{ io.Reader }{c.sys.Stdin}
	}
	typed := make(chan []byte, keystrokes)
	c.typist = &typist{Console: c, typed: typed, keys: keys{wanted: c.command.DetachKeys}}
	return &pieces{next: typed}
}

// copyStdin passes input on to the command. When it ends, copyStdin ends
// the command's standard input. While the connection is lost it waits.
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
		return // what has ended is the console, and the command may go on
	}
	switch {
	case c.command.TTY:
		// The terminal takes Ctrl-D for the end of input only at the start of a line.
		// Within a line the first one just hands over what was typed, and it takes a
		// second one.
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

// keystrokes is how many reads of a terminal may wait for the connection.
const keystrokes = 256

// readAhead reads standard input even while nothing can be sent, because some input is for the
// console: ~. at any time, see [escapes], and Ctrl-C once the user was told that the connection is
// lost, although it is a byte for the command in a raw terminal. A terminal in line mode passes ~.
// on with the end of its line. Questions take their answers before readAhead reads them.
func (r *typist) readAhead(ctx context.Context) {
	for goes := true; goes; {
		if r.stdin != nil && r.stdin.Await(ctx) != nil {
			break
		}
		r.typing <- struct{}{}
		// A question may have been faster.
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
	over    bool // the input has ended; the holder of typing owns it
	escapes escapes
	keys    keys
}

// read reads once. It returns false when nothing more comes, or is wanted.
func (r *typist) read(ctx context.Context) bool {
	p := make([]byte, 4<<10)
	n, err := r.sys.Stdin.Read(p)
	return r.pass(ctx, p[:n]) && err == nil
}

// pass passes on the input that is not for the console.
func (r *typist) pass(ctx context.Context, input []byte) bool {
	if r.lost.Load() && bytes.IndexByte(input, ctrlC) >= 0 && r.command.TTY {
		r.end(SignalError{syscall.SIGINT})
		return false
	}
	asked := nothing
	if r.stdin != nil && (r.command.TTY || r.command.Keep) {
		input, asked = r.escapes.filter(input)
	}
	if asked == nothing && r.stdin != nil && r.command.Keep {
		input, asked = r.keys.filter(input)
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
	if len(input) == 0 || r.over {
		return true
	}
	select {
	case r.typed <- input:
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

// pieces reads what comes out of a channel.
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
	seen bool // last was written
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
