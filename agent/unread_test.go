package agent

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestOthersOfUnreadAnswers: clients ask for large files and do not read the
// answers, but send more requests, long ones or many. Other clients are served
// meanwhile, and the first ones get all answers once they read.
func TestOthersOfUnreadAnswers(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	big := filepath.Join(t.TempDir(), "big")
	rig.Must(t, os.WriteFile(big, nil, 0o600))
	rig.Must(t, os.Truncate(big, size))
	request := func(method string, length int) []byte {
		return fmt.Appendf(nil, `{"id":7,"method":%q,"params":{"path":"file://%s"}%s}`, method, big, strings.Repeat(" ", length))
	}
	for name, more := range map[string]struct {
		method           string
		requests, length int
	}{
		"long requests": {"fs/readFile", 2, 4 << 20},
		"many requests": {"fs/getMetadata", 40, 60 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The clients answer no ping before they read, and see none, which on a busy machine
			// is late.
			const peerTimeout = time.Hour
			l, err := transport.Listen(transport.Config{URL: "ws://127.0.0.1:0", Budget: rpc.NewBudget(8 << 20), PeerTimeout: peerTimeout})
			rig.Must(t, err)
			r := newHarness(t, Config{})
			served := make(chan error, 1)
			go func() { served <- r.agent.Serve(t.Context(), l) }()
			dial := func() rpc.Conn {
				c, err := transport.Dial(t.Context(), l.URL(), transport.DialConfig{PeerTimeout: peerTimeout})
				rig.Must(t, err)
				t.Cleanup(func() { c.Close() })
				ask(t, c, []byte(`{"id":7,"method":"initialize","params":{"clientName":"x"}}`))
				rig.Must(t, c.Write([]byte(`{"method":"initialized"}`)))
				return c
			}
			var clients []rpc.Conn
			written := make(chan error)
			const unread = 6
			for range unread {
				c := dial()
				clients = append(clients, c)
				go func() {
					err := c.Write(request("fs/readFile", 0))
					for range more.requests {
						if err == nil { // the server stops where nobody reads on
							err = c.Write(request(more.method, more.length))
						}
					}
					written <- err
				}()
			}
			for range 20 {
				other := dial()
				data := base64.StdEncoding.EncodeToString(make([]byte, 100<<10))
				ask(t, other, fmt.Appendf(nil, `{"id":7,"method":"fs/writeFile","params":{"path":"file://%s","dataBase64":%q}}`,
					filepath.Join(filepath.Dir(big), name), data))
			}
			for _, c := range clients {
				for i := range 1 + more.requests {
					answer, err := c.Read()
					if err != nil || bytes.Contains(answer[:min(100, len(answer))], []byte("error")) {
						t.Fatalf("answer %d of a client that reads late is %.100s, %v", i, answer, err)
					}
					buffer.Recycle(answer)
				}
				rig.Must(t, <-written)
			}
			for _, c := range clients {
				c.Close()
			}
			l.Close()
			<-served
		})
	}
}

// ask sends a request and waits for its answer, which must not be an error.
func ask(t *testing.T, c rpc.Conn, request []byte) {
	t.Helper()
	rig.Must(t, c.Write(request))
	answer, err := c.Read()
	rig.Must(t, err)
	if m, err := protocol.Decode(answer); err != nil || m.Kind != protocol.KindResult {
		t.Fatalf("%.200s, %v", answer, err)
	}
}
