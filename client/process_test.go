package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func start(t testing.TB, c *client.Client, params protocol.StartParams) *client.Process {
	t.Helper()
	p, err := c.Start(t.Context(), params)
	rig.Must(t, err)
	return p
}

func TestCopyOutput(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		p := start(t, c, shell("echo out; echo err >&2; exit 3"))
		rig.Is(t, p.Started().SandboxType, protocol.SandboxNone, "SandboxType")
		var stdout, stderr bytes.Buffer
		code, err := p.CopyOutput(t.Context(), &stdout, &stderr)
		rig.Must(t, err)
		rig.Is(t, fmt.Sprintf("%d %s%s", code, &stdout, &stderr), "3 out\nerr\n", "code and output")
		rig.Is(t, fmt.Sprint(p.Wait(t.Context())), "3 <nil>", "Wait gives")
		for e, err := range p.Events(t.Context()) {
			t.Errorf("after Closed there is %v, %v", e, err)
		}
	})
}

// TestEventsGoOn: events have numbers without a gap, and the last two tell the end. A consumer that
// stops and comes back has missed nothing.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		params := shell("echo 1; read x; for i in 2 3; do echo $i; echo $i >&2; done")
		params.PipeStdin = true
		p := start(t, c, params)
		var got strings.Builder
		var kinds []client.EventKind
		seq := uint64(1)
		for e, err := range p.Events(t.Context()) {
			rig.Must(t, err)
			got.Write(e.Data)
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range p.Events(ctx) {
			rig.Is(t, err, context.Canceled, "with a context that has ended")
		}
		rig.Must(t, p.Write(t.Context(), []byte("\n")))
		for e, err := range p.Events(t.Context()) {
			rig.Must(t, err)
			seq++
			rig.Is(t, e.Seq, seq, "the number of an event")
			switch {
			case e.Kind != client.Output:
				kinds = append(kinds, e.Kind)
			case e.Stream == protocol.StreamStdout:
				got.Write(e.Data)
			}
		}
		rig.Is(t, got.String(), "1\n2\n3\n", "the output")
		rig.Same(t, "after the output", []client.EventKind{client.Exited, client.Closed}, kinds)
	})
}

func TestStdin(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		params := shell("cat")
		params.PipeStdin = true
		p := start(t, c, params)
		want := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
		written := make(chan error, 1)
		go func() {
			stdin := p.Stdin()
			_, err := stdin.Write(want)
			written <- errors.Join(err, stdin.Close())
		}()
		ends(t, p, string(want), 0)
		rig.Must(t, <-written)
	})
}

func TestWriteWithoutStdin(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		p := start(t, c, shell("sleep 100"))
		for name, err := range map[string]error{
			"Write": p.Write(t.Context(), []byte("x")), "CloseStdin": p.CloseStdin(t.Context()),
		} {
			rig.Is(t, isClosed(err), true, "%s gives %v", name, err)
		}
	})
}

func TestEndings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		end  func(context.Context, *client.Process) error
		want int
	}{
		{"interrupt", func(ctx context.Context, p *client.Process) error { return p.Signal(ctx, protocol.SignalInterrupt) }, 130},
		{"user1", func(ctx context.Context, p *client.Process) error { return p.Signal(ctx, protocol.SignalUser1) }, 138},
		{"terminate", func(ctx context.Context, p *client.Process) error { return p.Terminate(ctx) }, 137},
	}
	eachTransport(t, func(t *testing.T, c *client.Client) {
		for _, tt := range tests {
			// Not a shell: the children of one can lose a signal before they become
			// what they shall be.
			p := start(t, c, protocol.StartParams{Argv: []string{"sleep", "100"}, Cwd: protocol.NewPathURI("/")})
			rig.Check(t, tt.end(t.Context(), p))
			rig.Is(t, fmt.Sprint(p.Wait(t.Context())), fmt.Sprint(tt.want, nil), "%s: Wait gives", tt.name)
		}
	})
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		params := shell("stty size; read x; stty size")
		params.TTY, params.Rows, params.Cols = true, new(uint16(33)), new(uint16(101))
		p := start(t, c, params)
		var got strings.Builder
		for e, err := range p.Events(t.Context()) {
			rig.Must(t, err)
			if got.Write(e.Data); got.String() == "33 101\r\n" {
				rig.Must(t, p.Resize(t.Context(), 7, 9))
				rig.Must(t, p.Write(t.Context(), []byte("\n")))
			}
		}
		rig.Is(t, got.String(), "33 101\r\n\r\n7 9\r\n", "")
	})
}

// TestPressure: a consumer that does not take events stops the connection, loses
// nothing, and sets it free again.
func TestPressure(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		const size = 32 << 20
		p := start(t, c, shell("head -c %d /dev/zero", size))
		var got countWriter
		rig.Is(t, fmt.Sprint(p.CopyOutput(t.Context(), &got, io.Discard)), "0 <nil>", "CopyOutput gives")
		rig.Is(t, got, size, "bytes")
		p = start(t, c, shell("head -c %d /dev/zero; exit 5", size))
		p.Discard()
		rig.Is(t, fmt.Sprint(p.Wait(t.Context())), "5 <nil>", "with Discard Wait gives")
		p = start(t, c, shell("head -c %d /dev/zero", size))
		p.Close()
		rig.Is(t, rig.Err(p.Wait(t.Context())) != nil, true, "Wait fails after Close")
		rig.Check(t, rig.Err(c.Status(t.Context())))
	})
}

type countWriter int

func (w *countWriter) Write(p []byte) (int, error) {
	*w += countWriter(len(p))
	return len(p), nil
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		params := shell("sleep 100")
		params.ProcessID = "one"
		p := start(t, c, params)
		rig.Is(t, rig.Err(c.Start(t.Context(), params)) != nil, true, "an id cannot be used twice")
		p.Close() // the id is free here, but not at the server
		rig.Says(t, rig.Err(c.Start(t.Context(), params)), "already exists", "an id that the server knows")
		params = shell("true")
		params.Argv[0] = "/missing"
		params.ProcessID = "two"
		rig.Is(t, rig.Err(c.Start(t.Context(), params)) != nil, true, "a missing program is not started")
		params.Argv[0] = "/bin/sh"
		start(t, c, params) // the failed start has freed its id
	})
}

func TestRead(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		p := start(t, c, shell("echo out"))
		rig.Must(t, rig.Err(p.Wait(t.Context())))
		r, err := p.Read(t.Context(), protocol.ReadParams{})
		rig.Must(t, err)
		rig.Is(t, len(r.Chunks) == 1 && string(r.Chunks[0].Chunk) == "out\n" && r.Closed, true, "got %+v", r)
	})
}

func BenchmarkTrue(b *testing.B) {
	c := connect(b, client.Config{Dial: overPipe(b, newAgent(b))})
	b.ReportAllocs()
	for b.Loop() {
		p := start(b, c, protocol.StartParams{Argv: []string{"/bin/true"}, Cwd: protocol.NewPathURI("/")})
		rig.Must(b, rig.Err(p.Wait(b.Context())))
	}
}
