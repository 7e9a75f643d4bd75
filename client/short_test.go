package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestShortOfMemory: a client of another make has filled the memory for requests that wait, with
// input that its process does not read. It gets errors, and its process gets nothing behind them.
// Every stream of our client carries what it was given, in order and once.
func TestShortOfMemory(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{Environ: os.Environ(), ContentBytes: 4 << 20})
	l := rig.Value(transport.Listen(transport.Config{URL: "ws://127.0.0.1:0", Budget: rpc.NewBudget(1)}))
	served := make(chan error, 1)
	go func() { served <- a.Serve(context.Background(), l) }()
	t.Cleanup(func() { rig.Check(t, l.Close(), a.Close(), <-served) })
	dial := func(ctx context.Context) (rpc.Conn, error) {
		return transport.Dial(ctx, l.URL(), transport.DialConfig{HandshakeTimeout: patience})
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	rig.Must(t, syscall.Mkfifo(path("gate"), 0o600))
	gate := rig.Value(os.OpenFile(path("gate"), os.O_RDWR, 0))
	defer gate.Close()
	// reads describes a process that reads its input once the gate has a line for it.
	reads := func(command string) protocol.StartParams {
		params := shell("read x <gate; exec %s", command)
		params.Cwd, params.PipeStdin = protocol.NewPathURI(dir), true
		return params
	}

	alien := rpc.NewPeer(rig.Value(dial(t.Context())), rpc.Config{})
	over := make(chan error, 1)
	go func() { over <- alien.Serve(context.Background()) }()
	call := func(method string, params any) error { return alien.Call(t.Context(), method, params, nil) }
	hears := reads("cat >heard")
	hears.ProcessID, hears.Env, hears.EnvPolicy = "p", map[string]string{"PATH": os.Getenv("PATH")}, nil
	rig.Must(t, call(protocol.MethodInitialize, &protocol.InitializeParams{ClientName: "alien"}),
		alien.Notify(protocol.MethodInitialized, protocol.Empty{}), call(protocol.MethodProcessStart, &hears))
	var chunks [300][]byte
	var writes [300]*rpc.Pending
	for i := range writes {
		chunks[i] = bytes.Repeat(fmt.Appendf(nil, "%8d\n", i), 5<<10)
		if i == 30 { // the pipe and the queue of the agent are full
			chunks[i] = bytes.Repeat(chunks[i], 30)
		}
		params := protocol.WriteParams{ProcessID: "p", WriteID: fmt.Sprint(i), Chunk: chunks[i]}
		writes[i] = rig.Value(alien.Begin(protocol.MethodProcessWrite, &params))
	}
	rig.Says(t, writes[299].Wait(t.Context(), nil), "first send that request again", "the last write")

	c := reach(t, dial)
	data := make([]byte, 2<<20)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	begun := make(chan struct{})
	deaf := serveEach(t, "unix", path("deaf"), func(conn net.Conn) { <-begun; rig.Echo(conn) })
	var streams sync.WaitGroup
	for _, write := range []func(p *client.Process, in *client.Feed) error{
		func(_ *client.Process, in *client.Feed) error {
			return errors.Join(rig.Err(in.Write(data)), in.Close())
		},
		func(p *client.Process, _ *client.Feed) error {
			return errors.Join(p.Write(t.Context(), data), p.CloseStdin(t.Context()))
		},
		func(p *client.Process, _ *client.Feed) error {
			return errors.Join(rig.Err(io.Copy(p.Stdin(), bytes.NewReader(data))), p.CloseStdin(t.Context()))
		},
	} {
		for range 2 {
			p := start(t, c, reads("sha256sum"))
			streams.Go(func() { rig.Check(t, write(p, p.Feed(t.Context()))) })
			streams.Go(func() {
				rig.Is(t, string(rig.Value(io.ReadAll(p.Stdout()))), fmt.Sprintf("%x  -\n", sha256.Sum256(data)), "the sum of what a process reads")
			})
			streams.Go(func() { roundTrip(t, c, deaf, len(data)) })
		}
	}
	// Meanwhile files, another socket and a command go on.
	for _, size := range []int{1, 6} {
		want := bytes.Repeat(data, size)
		rig.Must(t, c.FS(nil).WriteFile(t.Context(), path("f"), want))
		rig.Is(t, bytes.Equal(rig.Value(c.FS(nil).ReadFile(t.Context(), path("f"))), want), true, "a file of %d bytes is what was written", len(want))
	}
	roundTrip(t, c, serveEach(t, "tcp", "127.0.0.1:0", rig.Echo), len(data))
	rig.Is(t, string(rig.Value(c.Run(t.Context(), client.Spec{Argv: []string{"echo", "here"}}, nil)).Stdout), "here\n", "a command prints")
	close(begun)
	rig.Must(t, rig.Err(gate.WriteString(strings.Repeat("go\n", 7))))
	streams.Wait()

	taken := 0
	for taken < 299 && writes[taken].Wait(t.Context(), nil) == nil {
		taken++
	}
	write := protocol.WriteParams{ProcessID: "p", WriteID: "late", Chunk: []byte("late\n")}
	rig.Says(t, call(protocol.MethodProcessWrite, &write), "first send that request again", "another write")
	exit := protocol.ReadParams{ProcessID: "p", WaitMs: new(uint64(patience.Milliseconds())), ExitOnly: true}
	rig.Must(t, call(protocol.MethodProcessCloseStdin, &protocol.ProcessParams{ProcessID: "p"}), call(protocol.MethodProcessRead, &exit))
	rig.Is(t, bytes.Equal(rig.Value(os.ReadFile(path("heard"))), bytes.Join(chunks[:taken], nil)), true, "the process has read the first %d writes", taken)
	alien.Close()
	<-over
}
