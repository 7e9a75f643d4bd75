package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/procs"
)

// maxOutput bounds the total output of a capture, in bytes.
const maxOutput = 16 << 20

// Shell is the shell of a request: its name for the client, and its path.
type Shell struct{ Name, Path string }

// Known reports whether this package can capture the state of such a shell.
func (s Shell) Known() bool {
	_, ok := kinds(s.Name)
	return ok
}

// Start starts the program of a spec. env is the environment of the process, which may differ from
// that of the spec. The caller must call release after the end of the process.
type Start func(procs.Spec) (p *procs.Process, env []string, release func(), err error)

// Capture runs the startup files of a shell and returns the state that they leave. It fails if ctx
// ends before the startup files do. spec has the directory and the environment; Capture sets its
// program, its input and its output.
func Capture(ctx context.Context, shell Shell, spec procs.Spec, start Start) (*State, error) {
	k, ok := kinds(shell.Name)
	if !ok {
		return nil, fmt.Errorf("no snapshots of %.64q", shell.Name)
	}
	mark := rand.Text()
	c := &collector{mark: mark + "\x00", done: make(chan error, 1)}
	spec.Argv = []string{shell.Path, "-lc", strings.ReplaceAll(k.dump, "MARK", mark)}
	spec.Arg0, spec.TTY, spec.Stdin = nil, false, false
	spec.Sink, spec.RetainBytes = c.take, 1
	asked := slices.Clone(spec.Env)
	p, env, release, err := start(spec)
	if err != nil {
		return nil, err
	}
	defer release()
	defer p.Close() // kills the processes that startup files have left in its process group
	p.Begin()
	select {
	case err = <-c.done:
		if err == nil {
			err = context.Cause(ctx) // ctx may have ended before the shell did
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	s, err := parse(k, c.output(), mark, asked)
	if err == nil {
		s.Undo(env, asked)
	}
	return s, err
}

// collector keeps the output of a capture between the first mark and the third.
type collector struct {
	mark string
	done chan error // receives one value

	mu    sync.Mutex // guards the fields below
	total int
	kept  []byte
	from  int // offset in kept from which to search the next mark
	marks int
	over  bool
}

// take is the sink of the process.
func (c *collector) take(e procs.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	switch e.Kind {
	case procs.Output:
		if c.total += len(e.Data); c.total > maxOutput {
			c.endLocked(fmt.Errorf("more than %d bytes of output", maxOutput))
			return
		}
		if e.Stream == procs.Stdout {
			c.keepLocked(e.Data)
		}
	case procs.Exited:
		if e.ExitCode != 0 {
			c.endLocked(fmt.Errorf("the startup files have ended with code %d", e.ExitCode))
		}
	case procs.Closed:
		c.endLocked(errors.New("the shell has ended before its state was printed"))
	}
}

func (c *collector) keepLocked(data []byte) {
	c.kept = append(c.kept, data...)
	for {
		at := bytes.Index(c.kept[c.from:], []byte(c.mark))
		if at < 0 {
			break
		}
		if c.marks++; c.marks == 1 {
			// The output before the first mark comes from startup files.
			c.kept, c.from = append([]byte(nil), c.kept[c.from+at+len(c.mark):]...), 0
			continue
		}
		if c.from += at + len(c.mark); c.marks == 3 {
			c.kept = c.kept[:c.from-len(c.mark)]
			c.endLocked(nil)
			return
		}
	}
	// The end of the data may be a part of a mark.
	if tail := len(c.kept) - len(c.mark) + 1; tail > c.from {
		if c.from = tail; c.marks == 0 {
			c.kept, c.from = append(c.kept[:0], c.kept[tail:]...), 0
		}
	}
}

func (c *collector) endLocked(err error) {
	c.over = true
	c.done <- err
}

func (c *collector) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.kept)
}
