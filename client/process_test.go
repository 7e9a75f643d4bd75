package client_test

import (
	"bytes"
	"context"
	"errors"
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
		if code != 3 || err != nil || stdout.String() != "out\n" || stderr.String() != "err\n" {
			t.Errorf("got %d, %v, %q and %q", code, err, &stdout, &stderr)
		}
		if code, err := p.Wait(t.Context()); code != 3 || err != nil {
			t.Errorf("Wait gives %d, %v", code, err)
		}
		for e, err := range p.Events(t.Context()) {
			t.Errorf("after Closed there is %v, %v", e, err)
		}
	})
}

func TestEvents(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		p := start(t, c, shell("for i in 1 2 3 4 5; do echo $i; echo $i >&2; done"))
		var kinds []client.EventKind
		var seq uint64
		for e, err := range p.Events(t.Context()) {
			rig.Must(t, err)
			if seq++; e.Seq != seq {
				t.Errorf("event %d comes where %d should", e.Seq, seq)
			}
			if e.Kind != client.Output {
				kinds = append(kinds, e.Kind)
			}
		}
		rig.Same(t, "after the output", []client.EventKind{client.Exited, client.Closed}, kinds)
	})
}

// TestEventsGoOn: a consumer that stops and comes back has missed nothing.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		params := shell("echo 1; read x; echo 2")
		params.PipeStdin = true
		p := start(t, c, params)
		var got strings.Builder
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
			got.Write(e.Data)
		}
		rig.Is(t, got.String(), "1\n2\n", "")
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
		var got bytes.Buffer
		code, err := p.CopyOutput(t.Context(), &got, io.Discard)
		if code != 0 || err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("got %d, %v and %d bytes, want %d", code, err, got.Len(), len(want))
		}
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
			if refused, ok := errors.AsType[*client.WriteError](err); !ok || refused.Status != protocol.WriteStdinClosed {
				t.Errorf("%s gives %v", name, err)
			}
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
			if err := tt.end(t.Context(), p); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			if code, err := p.Wait(t.Context()); code != tt.want || err != nil {
				t.Errorf("%s: Wait gives %d, %v, want %d", tt.name, code, err, tt.want)
			}
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
		if code, err := p.CopyOutput(t.Context(), &got, io.Discard); code != 0 || err != nil || got != size {
			t.Errorf("got %d, %v and %d bytes, want %d", code, err, got, size)
		}
		p = start(t, c, shell("head -c %d /dev/zero; exit 5", size))
		p.Discard()
		if code, err := p.Wait(t.Context()); code != 5 || err != nil {
			t.Errorf("with Discard Wait gives %d, %v", code, err)
		}
		p = start(t, c, shell("head -c %d /dev/zero", size))
		p.Close()
		if _, err := p.Wait(t.Context()); err == nil {
			t.Error("Wait after Close gives no error")
		}
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
		if _, err := c.Start(t.Context(), params); err == nil {
			t.Error("an id can be used twice")
		}
		p.Close() // the id is free here, but not at the server
		if _, err := c.Start(t.Context(), params); err == nil || !strings.Contains(err.Error(), "already exists") {
			t.Errorf("an id that the server knows gives %v", err)
		}
		params = shell("true")
		params.Argv[0] = "/missing"
		params.ProcessID = "two"
		if _, err := c.Start(t.Context(), params); err == nil {
			t.Error("a missing program can be started")
		}
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
		if len(r.Chunks) != 1 || string(r.Chunks[0].Chunk) != "out\n" || !r.Closed {
			t.Errorf("got %+v", r)
		}
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

func BenchmarkOutput(b *testing.B) {
	c := connect(b, client.Config{Dial: overPipe(b, newAgent(b))})
	const size = 16 << 20
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		var got countWriter
		p := start(b, c, shell("head -c %d /dev/zero", size))
		if _, err := p.CopyOutput(b.Context(), &got, io.Discard); err != nil || got != size {
			b.Fatal(got, err)
		}
	}
}
