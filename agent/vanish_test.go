package agent

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// TestVanish lets a client disappear in the middle of things. The agent ends
// the connection and serves the next one; after the end of the session no
// goroutine, descriptor or process is left. It is not parallel, since it counts
// those of the whole program.
func TestVanish(t *testing.T) {
	server := httptest.NewServer(webHandler())
	defer server.Close()
	tree := t.TempDir()
	for i := range 20 {
		dir := filepath.Join(tree, fmt.Sprint(i))
		for j := range 50 {
			rig.Must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint(j)), 0o777))
		}
	}
	chunk := object{"processId": "p", "chunk": make([]byte, 256<<10)}
	tests := []struct {
		name string
		// do sends what the client does not wait for.
		do func(c *raw)
	}{
		{"nothing", func(*raw) {}},
		{"start", func(c *raw) { c.call(1, "process/start", sh("p", "sleep 600 & sleep 600")) }},
		{"start on a terminal", func(c *raw) {
			start := sh("p", "sleep 600")
			start["tty"] = true
			c.call(1, "process/start", start)
		}},
		{"flood", func(c *raw) {
			c.call(1, "process/start", sh("p", "cat /dev/zero"))
			c.next()
		}},
		{"blocked write", func(c *raw) {
			c.call(1, "process/start", sh("p", "exec sleep 600"))
			for i := range 20 {
				chunk["writeId"] = fmt.Sprint(i)
				c.call(2+i, "process/write", chunk)
			}
			c.call("b", "process/closeStdin", object{"processId": "p"})
		}},
		{"waiting read", func(c *raw) {
			c.call(1, "process/start", sh("p", "exec sleep 600"))
			c.call(2, "process/read", object{"processId": "p", "waitMs": 600_000})
		}},
		{"walk", func(c *raw) {
			for i := range 8 {
				c.call(i, "fs/walk", object{"path": uri(tree), "options": object{
					"maxDepth": 64, "maxDirectories": 10_000, "maxEntries": 50_000, "followDirectorySymlinks": false}})
			}
		}},
		{"open files", func(c *raw) {
			for i := range 20 {
				c.call(i, "fs/open", object{"handleId": fmt.Sprint(i), "path": "file:///etc/passwd"})
			}
		}},
		{"streamed body", func(c *raw) {
			c.call(1, "http/request", object{"method": "GET", "url": server.URL + "/endless", "requestId": "e", "streamResponse": true})
			c.call(2, "http/request", object{"method": "GET", "url": server.URL + "/slow", "requestId": "s", "streamResponse": true})
			c.next()
		}},
		{"buffered body", func(c *raw) {
			c.call(1, "http/request", object{"method": "GET", "url": server.URL + "/slow", "requestId": "s"})
		}},
		{"watch", func(c *raw) {
			c.call(1, "fs/watchMissing", object{"watchId": 1, "missing": []string{uri(filepath.Join(tree, "missing"))}})
			c.next()
		}},
		{"watched tree", func(c *raw) {
			c.call(1, "fs/watch", object{"watchId": "w", "path": uri(tree), "recursive": true})
			c.call(2, "fs/createDirectory", object{"path": uri(filepath.Join(tree, "new")), "recursive": true})
			c.next()
		}},
		{"fatal message", func(c *raw) {
			c.call(1, "process/start", sh("p", "exec sleep 600"))
			c.send(`{"method":"no/such"}`)
		}},
	}
	vanish := func(t *testing.T, do func(c *raw), read bool) {
		r := newHarness(t, Config{SessionTTL: 10 * time.Millisecond})
		c, _, lose := r.opens(t, nil)
		do(c)
		if read { // give the last request time to begin
			c.call("last", "environment/status", object{})
			for m := c.next(); m.ID != "last"; m = c.next() {
			}
		}
		lose()
		r.attach("").must("environment/status", object{}, nil)
		r.close()
		server.CloseClientConnections()
	}
	vanish(t, func(c *raw) { // a first round, for what is made only once
		c.call(1, "process/start", sh("p", ":"))
		c.call(2, "fs/watchMissing", object{"watchId": 1, "missing": []string{"file:///missing"}})
		c.call(3, "http/request", object{"method": "GET", "url": server.URL + "/hello", "requestId": "s"})
	}, true)
	for _, tt := range tests {
		for _, read := range []bool{false, true} {
			if tt.name == "fatal message" && read {
				continue
			}
			t.Run(fmt.Sprintf("%s, read %v", tt.name, read), func(t *testing.T) {
				goroutines := goleak.IgnoreCurrent()
				files := descriptors(t)
				vanish(t, tt.do, read)
				rig.Must(t, goleak.Find(goroutines))
				rig.Until(t, "no descriptor is left", func() bool { return descriptors(t) <= files })
				rig.Until(t, "no process is left", func() bool { return len(rig.Children(os.Getpid())) == 0 })
			})
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	return len(rig.Value(os.ReadDir("/proc/self/fd")))
}

// TestVanishBeforeReading closes connections at once, without a word.
func TestVanishBeforeReading(t *testing.T) {
	r := newHarness(t, Config{})
	for range 50 {
		conn, served := r.dial()
		_ = conn.Close()
		waitFor(t, served, "the agent to let go")
	}
	ours, theirs := rpc.Pipe()
	_ = theirs.Close()
	rig.Is(t, r.agent.ServeConn(t.Context(), theirs) != nil, true, "a connection that our own side has closed is an error")
	_ = ours.Close()
}
