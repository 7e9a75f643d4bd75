package transport

import (
	"bytes"
	"os"
	"testing"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func BenchmarkWebSocketRoundTrip(b *testing.B) {
	client, server := webSocketPair(b, Config{}, DialConfig{})
	benchmarkRoundTrip(b, client, server)
}

func BenchmarkStdioRoundTrip(b *testing.B) {
	c := startCommand(b, CommandConfig{Argv: []string{os.Args[0], "echo-lines"}})
	benchmarkRoundTrip(b, c, nil)
}

// benchmarkRoundTrip sends an empty message from near and takes it back. far
// is nil where another process answers.
func benchmarkRoundTrip(b *testing.B, near, far rpc.Conn) {
	if far != nil {
		go func() {
			for {
				message, err := far.Read()
				if err != nil {
					return
				}
				if far.Write(message) != nil {
					return
				}
				buffer.Recycle(message)
			}
		}()
	}
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, near.Write([]byte("{}")))
		message, err := near.Read()
		rig.Must(b, err)
		buffer.Recycle(message)
	}
}

// BenchmarkWebSocketPush is output on its way to a client.
func BenchmarkWebSocketPush(b *testing.B) {
	client, server := webSocketPair(b, Config{}, DialConfig{})
	benchmarkOneWay(b, server, client, 64<<10)
}

// BenchmarkWebSocketRead is a large request on its way to the server, which
// must unmask and check it.
func BenchmarkWebSocketRead(b *testing.B) {
	client, server := webSocketPair(b, Config{}, DialConfig{})
	benchmarkOneWay(b, client, server, 1<<20)
}

func benchmarkOneWay(b *testing.B, from, to rpc.Conn, size int) {
	message := bytes.Repeat([]byte("x"), size)
	go func() {
		for from.Write(message) == nil {
		}
	}()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		got, err := to.Read()
		rig.Must(b, err)
		buffer.Recycle(got)
	}
}
