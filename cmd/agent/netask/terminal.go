package netask

import (
	"bytes"
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
		a.forget()
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

// forget drops what was typed before a question: the command sees that something was typed for it,
// and could have its question answered by that.
func (a *asker) forget() {
	tty, ok := a.terminal.(*os.File)
	if !ok {
		return
	}
	if raw, err := tty.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCIFLUSH) }) // it fails on no terminal
	}
}

// read reads one line, and nothing behind it, which may be for the command. The command may have
// switched the terminal so that each letter comes by itself: also then only Enter ends a line.
func (a *asker) read() {
	line := make(chan string, 1)
	a.line = line
	a.reading.Go(func() {
		defer close(line)
		text := make([]byte, 0, maxLine)
		for len(text) < maxLine && !bytes.ContainsAny(text, "\r\n") {
			n, err := a.terminal.Read(text[len(text) : len(text)+1])
			if err != nil {
				return
			}
			text = text[:len(text)+n]
		}
		line <- string(text)
	})
}
