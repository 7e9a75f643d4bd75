package netask

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/protocol"
)

// Terminal opens the terminal of the user; nil where there is none.
func Terminal() *os.File {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	raw, err := tty.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) { _, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		_ = tty.Close()
		return nil
	}
	return tty
}

// maxLine bounds an answer, in bytes.
const maxLine = 256

// refusedByUser is the reason of a user's no.
const refusedByUser = "refused by the user"

var errGone = errors.New("the terminal is gone")

// ask asks the user. keep tells that the answer is for the rest of the run.
func (a *asker) ask(ctx context.Context, r protocol.PolicyRequest) (choice protocol.PolicyChoice, keep bool, err error) {
	no := protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new(refusedByUser)}
	for {
		_, err := fmt.Fprintf(a.terminal, "agent: the command wants to reach %s, port %d (%s): [o]nce, [a]lways in this run, [N]o? ", r.Host, r.Port, r.Protocol)
		if err != nil {
			return no, false, err
		}
		if a.line == nil {
			a.read()
		}
		select {
		case line, ok := <-a.line:
			a.line = nil
			if !ok {
				return no, true, errGone
			}
			switch strings.ToLower(strings.TrimSpace(line)) {
			case "o", "once", "y", "yes":
				return protocol.PolicyChoice{Type: protocol.PolicyAllow}, false, nil
			case "a", "always":
				return protocol.PolicyChoice{Type: protocol.PolicyAllow}, true, nil
			case "n", "no", "":
				return no, true, nil
			}
		case <-ctx.Done():
			_, _ = fmt.Fprintln(a.terminal) // what the user types now answers the next question
			return no, false, context.Cause(ctx)
		}
	}
}

// read reads one line: what comes after it may be for the command.
func (a *asker) read() {
	line := make(chan string, 1)
	a.line = line
	a.reading.Go(func() {
		defer close(line)
		buf := make([]byte, maxLine)
		if n, err := a.terminal.Read(buf); err == nil {
			line <- string(buf[:n])
		}
	})
}
