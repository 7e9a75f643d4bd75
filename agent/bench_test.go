package agent

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// All benchmarks go over rpc.Pipe: what they measure is the agent, not a
// transport.

func BenchmarkRoundTrip(b *testing.B) {
	c := newHarness(b, Config{}).attach("")
	params := &protocol.PathParams{Path: protocol.NewPathURI("/")}
	b.ReportAllocs()
	for b.Loop() {
		c.must(protocol.MethodFSGetMetadata, params, nil)
	}
}

// BenchmarkConfinedStat measures a file request under a policy.
func BenchmarkConfinedStat(b *testing.B) {
	dir := b.TempDir()
	request, err := json.Marshal(object{"id": 1, "method": protocol.MethodFSGetMetadata, "params": object{"path": uri(dir), "sandbox": managed("restricted",
		special("root", "read"), special("slash_tmp", "write"), special("tmpdir", "write"), at(dir, "write"), at(dir+"/vault", "deny"), glob(dir+"/**/*.env"))}})
	rig.Must(b, err)
	conn, _ := newHarness(b, Config{}).dial()
	benchHello(b, conn)
	send := func() {
		rig.Must(b, conn.Write(request))
		benchRead(b, conn)
	}
	send() // starts the helper
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
}

// BenchmarkStart measures a process from its start to its closed, without a proxy and with one.
func BenchmarkStart(b *testing.B) {
	for _, tt := range []struct{ name, more string }{
		{"plain", ""},
		{"proxy", `,"networkProxy":{"proxy":{"enabled":true,"enableSocks5":true,"enableSocks5Udp":false,"allowUpstreamProxy":false,` +
			`"dangerouslyAllowAllUnixSockets":false,"mode":"full","domains":{"a.org":"allow"},"allowLocalBinding":false}}`},
	} {
		b.Run(tt.name, func(b *testing.B) {
			r := newHarness(b, Config{})
			conn, _ := r.dial()
			benchHello(b, conn)
			b.ReportAllocs()
			id := 0
			for b.Loop() {
				id++
				benchSend(b, conn, `{"id":%d,"method":"process/start","params":{"processId":"%[1]d","argv":["/bin/true"],"cwd":"file:///","env":{},"tty":false%s}}`, id, tt.more)
				for message := "x"; !hasMethod(message, protocol.MethodProcessClosed); {
					message = benchRead(b, conn)
				}
			}
		})
	}
}

// BenchmarkSnapshot compares starts of a shell without startup files, with the state of one that
// defines 200 functions, and with that file itself, which also takes a tenth of a second.
func BenchmarkSnapshot(b *testing.B) {
	profile := "export A=1\nfor i in $(seq 200); do eval \"f$i() { echo \\\"\\$1\\\" | tr a-z A-Z; if [ -n \\\"\\$2\\\" ]; then echo two; fi; }\"; done\nsleep 0.1\n"
	home := bashHome(b, profile)
	for _, tt := range []struct{ name, flag, more string }{
		{"none", "-c", ""},
		{"restored", "-lc", `,"shellSnapshot":{"scopeId":"s","shell":{"name":"bash","path":"/bin/bash"}}`},
		{"login", "-lc", ""},
	} {
		b.Run(tt.name, func(b *testing.B) {
			r := newHarness(b, Config{})
			conn, _ := r.dial()
			benchHello(b, conn)
			id := 0
			start := func() {
				id++
				benchSend(b, conn, `{"id":%d,"method":"process/start","params":{"processId":"%[1]d","argv":["/bin/bash",%q,"true"],"cwd":"file://%s",`+
					`"env":{"HOME":%[3]q,"PATH":"/usr/bin:/bin"},"tty":false%s}}`, id, tt.flag, home, tt.more)
				for message := "x"; !hasMethod(message, protocol.MethodProcessClosed); {
					message = benchRead(b, conn)
				}
			}
			start() // captures
			for b.Loop() {
				start()
			}
		})
	}
}

// BenchmarkKeystroke measures one byte to a terminal and its echo back.
func BenchmarkKeystroke(b *testing.B) {
	r := newHarness(b, Config{})
	conn, _ := r.dial()
	benchHello(b, conn)
	benchSend(b, conn, `{"id":1,"method":"process/start","params":{"processId":"p","argv":["/bin/sleep","600"],"cwd":"file:///","env":{},"tty":true}}`)
	benchRead(b, conn)
	b.ReportAllocs()
	id := 1
	for b.Loop() {
		id++
		// Backspace on an empty line echoes nothing; a letter and a kill
		// character keep the line short.
		key := []string{"YQ==", "FQ=="}[id%2]
		benchSend(b, conn, `{"id":%d,"method":"process/write","params":{"processId":"p","writeId":"%[1]d","chunk":%q}}`, id, key)
		for answer, echo := false, false; !answer || !echo; {
			if hasMethod(benchRead(b, conn), protocol.MethodProcessOutput) {
				echo = true
			} else {
				answer = true
			}
		}
	}
}

func benchHello(b *testing.B, conn rpc.Conn) {
	b.Helper()
	benchSend(b, conn, `{"id":0,"method":"initialize","params":{"clientName":"bench"}}`)
	benchRead(b, conn)
	benchSend(b, conn, `{"method":"initialized"}`)
}

func benchSend(b *testing.B, conn rpc.Conn, format string, args ...any) {
	b.Helper()
	rig.Must(b, conn.Write(fmt.Appendf(nil, format, args...)))
}

// benchRead returns the next message, which must not be an error.
func benchRead(b *testing.B, conn rpc.Conn) string {
	b.Helper()
	data := rig.Value(conn.Read())
	message := string(data)
	buffer.Recycle(data)
	if len(message) > 8 && message[:8] == `{"error"` {
		b.Fatal(message)
	}
	return message
}

// hasMethod reports whether a message is a notification of that method.
func hasMethod(message, method string) bool {
	prefix := `{"method":"` + method + `"`
	return len(message) >= len(prefix) && message[:len(prefix)] == prefix
}
