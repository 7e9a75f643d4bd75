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

// maxOutput is how many bytes a capture may print, whatever they are.
const maxOutput = 16 << 20

// Shell is the shell of a request: its name for the client, and its path.
type Shell struct{ Name, Path string }

// Known reports whether there are snapshots of such a shell.
func (s Shell) Known() bool {
	_, ok := kinds(s.Name)
	return ok
}

// Start starts the program of a spec. It returns the environment that the process has, which
// need not be that of the spec, and what has to be called after the end of the process.
type Start func(procs.Spec) (p *procs.Process, env []string, release func(), err error)

// Capture runs the startup files of a shell and returns the state that they leave; none if ctx
// ends before they do. spec has the directory and the environment; its program and its input and
// output are set here.
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
	defer p.Close() // kills what startup files have left in its group
	p.Begin()
	select {
	case err = <-c.done:
		if err == nil {
			err = context.Cause(ctx) // it may have ended before the shell did
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	s, err := parse(k, c.output(), mark, asked)
	if err == nil {
		s.undo(env, asked)
	}
	return s, err
}

// collector keeps what a capture prints from the first mark to the third.
type collector struct {
	mark string
	done chan error // gets one value

	mu    sync.Mutex // guards what follows
	total int
	kept  []byte
	from  int // of kept: where to look for the next mark
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
			// What was printed before is none of ours.
			c.kept, c.from = append([]byte(nil), c.kept[c.from+at+len(c.mark):]...), 0
			continue
		}
		if c.from += at + len(c.mark); c.marks == 3 {
			c.kept = c.kept[:c.from-len(c.mark)]
			c.endLocked(nil)
			return
		}
	}
	// A mark may have come in part.
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
