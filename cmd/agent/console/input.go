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

// copyStdin passes standard input on to the command. When it ends, copyStdin ends
// the command's standard input. While the connection is lost it waits.
func (c *Console) copyStdin(ctx context.Context) {
	var in io.Reader = onlyReader{c.sys.Stdin}
	if c.stdin != nil {
		in = c.stdin.Foreground(c.sys.Stdin)
	}
	if c.command.TTY || c.stdin != nil && c.command.Keep {
		in = c.readAhead(in)
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
		program.Complain(c.sys.Stderr, "the server has no way to end the command's standard input; see -n")
	}
}

// keystrokes is how many reads of a terminal may wait for the connection.
const keystrokes = 256

// readAhead reads a terminal also while nothing can be sent, for the sake of what is typed
// for us: in a raw terminal Ctrl-C is a byte for the command, but once the user was told
// that the connection is lost, it ends the console. So does ~. at any time, see [escapes]. A
// terminal that edits lines hands ~. over with the end of its line.
func (c *Console) readAhead(in io.Reader) io.Reader {
	typed := make(chan []byte, keystrokes)
	go func() {
		defer close(typed)
		var escapes escapes
		keys := keys{wanted: c.command.DetachKeys}
		for {
			p := make([]byte, 4<<10)
			n, err := in.Read(p)
			if c.lost.Load() && bytes.IndexByte(p[:n], ctrlC) >= 0 {
				c.end(SignalError{syscall.SIGINT})
				return
			}
			input, asked := p[:n], nothing
			if c.stdin != nil {
				input, asked = escapes.filter(input)
			}
			if asked == nothing && c.stdin != nil && c.command.Keep {
				input, asked = keys.filter(input)
			}
			switch {
			case asked == leave && c.command.Keep:
				c.end(ErrDetached)
				return
			case asked == leave:
				c.end(errLeft)
				return
			case asked == list && c.command.Keep:
				c.Say(escapesHelpKept)
			case asked == list:
				c.Say(escapesHelp)
			}
			if len(input) > 0 {
				select {
				case typed <- input:
				case <-c.ctx.Done():
					return
				}
			}
			if err != nil {
				return // there is no more input
			}
		}
	}()
	return &pieces{next: typed}
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

// onlyReader hides (*os.File).WriteTo from io.Copy, which would copy in smaller
// pieces with it.
type onlyReader struct{ io.Reader }

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
