package client_test

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// startAgent starts an agent as a program of its own, so that what is counted here is
// the client's alone, and returns its URL.
func startAgent(t rig.T) string {
	t.Helper()
	return rig.Start(t, exec.CommandContext(t.Context(), rig.Agent(t), "--listen", "ws://127.0.0.1:0")).Line(t)
}

// cpu returns the processor time of this process so far.
func cpu(t rig.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	rig.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCall makes the smallest call, by the client and by a bare peer on a
// connection of its own.
func BenchmarkCall(b *testing.B) {
	url := startAgent(b)
	measure := func(b *testing.B, call func() error) {
		b.ReportAllocs()
		before := cpu(b)
		for b.Loop() {
			rig.Must(b, call())
		}
		b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	}
	b.Run("client", func(b *testing.B) {
		c := rig.Value(client.DialURL(b.Context(), url))
		defer c.Close()
		var r protocol.StatusResult
		measure(b, func() error { return c.Call(b.Context(), protocol.MethodEnvironmentStatus, protocol.Empty{}, &r) })
	})
	b.Run("bare", func(b *testing.B) {
		conn := rig.Value(transport.Dial(b.Context(), url, transport.DialConfig{}))
		defer conn.Close()
		ask := func(message string) error {
			if err := conn.Write([]byte(message)); err != nil {
				return err
			}
			answer, err := conn.Read()
			buffer.Recycle(answer)
			return err
		}
		rig.Must(b, ask(`{"id":1,"method":"initialize","params":{"clientName":"bare","resumeSessionId":null}}`))
		rig.Must(b, conn.Write([]byte(`{"method":"initialized","params":{}}`)))
		measure(b, func() error { return ask(`{"id":2,"method":"environment/status","params":{}}`) })
	})
}

// BenchmarkStdout takes 64 MiB of output, by the client and by somebody who reads the
// connection and looks at nothing.
func BenchmarkStdout(b *testing.B) {
	const size = 64 << 20
	url := startAgent(b)
	argv := []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}
	b.Run("client", func(b *testing.B) {
		c := rig.Value(client.DialURL(b.Context(), url))
		defer c.Close()
		b.SetBytes(size)
		before := cpu(b)
		for b.Loop() {
			p := rig.Value(c.Spawn(b.Context(), client.Spec{Argv: argv}))
			rig.Is(b, fmt.Sprint(p.CopyOutput(b.Context(), io.Discard, io.Discard)), "0 <nil>", "CopyOutput gives")
		}
		b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N)*1e9/size, "cpu-s/GB")
	})
	b.Run("bare", func(b *testing.B) {
		conn := rig.Value(transport.Dial(b.Context(), url, transport.DialConfig{}))
		write := func(format string, args ...any) {
			rig.Must(b, conn.Write(fmt.Appendf(nil, format, args...)))
		}
		write(`{"id":1,"method":"initialize","params":{"clientName":"bare","resumeSessionId":null}}`)
		write(`{"method":"initialized","params":{}}`)
		b.SetBytes(size)
		before, n := cpu(b), 0
		for b.Loop() {
			n++
			write(`{"id":%d,"method":"process/start","params":{"processId":"p%d","argv":["head","-c","%d","/dev/zero"],"cwd":"file:///","env":{"PATH":"/bin:/usr/bin"},"tty":false,"pipeStdin":false}}`, n+1, n, size)
			for closed := false; !closed; {
				message := rig.Value(conn.Read())
				// Only the last message is so short and names this method.
				closed = len(message) < 200 && string(message[:min(len(message), 26)]) == `{"method":"process/closed"`
				buffer.Recycle(message)
			}
		}
		b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N)*1e9/size, "cpu-s/GB")
		_ = conn.Close()
	})
}

// BenchmarkRecovery cuts the connection and waits for the answer to the next call.
func BenchmarkRecovery(b *testing.B) {
	url := startAgent(b)
	var conn rpc.Conn
	c, err := client.Connect(b.Context(), client.Config{Dial: func(ctx context.Context) (rpc.Conn, error) {
		ws, err := transport.Dial(ctx, url, transport.DialConfig{})
		if err != nil {
			return nil, err
		}
		conn = ws
		return ws, nil
	}})
	rig.Must(b, err)
	defer c.Close()
	rig.Value(c.Spawn(b.Context(), client.Spec{Argv: []string{"sleep", "1000"}})).Discard()
	for b.Loop() {
		_, changed := c.State()
		_ = conn.Close()
		<-changed
		rig.Must(b, rig.Err(c.Processes(b.Context())))
	}
}
