package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// dialAgent is a connection to an agent that has said hello.
func dialAgent(t *testing.T, url string) rpc.Conn {
	t.Helper()
	conn, err := transport.Dial(rig.Context(t), url, transport.DialConfig{HandshakeTimeout: patience, PeerTimeout: patience})
	rig.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	// An agent that answers nothing may still answer pings.
	late := time.AfterFunc(2*patience, func() {
		t.Error("a connection is needed for too long")
		conn.Close()
	})
	t.Cleanup(func() { late.Stop() })
	rig.Is(t, request(t, conn, `{"id":1,"method":"initialize","params":{"clientName":"e2e"}}`) != nil, true, "there is a session")
	rig.Must(t, conn.Write([]byte(`{"method":"initialized"}`)))
	return conn
}

// dialAgents are so many connections. They are there before the load that is tested: under it a
// machine that is busy anyway takes longer than an agent waits for a handshake.
func dialAgents(t *testing.T, url string, n int) (conns []rpc.Conn) {
	t.Helper()
	for range n {
		conns = append(conns, dialAgent(t, url))
	}
	return conns
}

// request sends a request and returns the result of the next answer, nil with an error of the
// test where there is none. It is no rawclient.Client, which would read when nobody wants an
// answer: these tests have clients that do not.
func request(t *testing.T, conn rpc.Conn, message string) json.RawMessage {
	t.Helper()
	err := conn.Write([]byte(message))
	for err == nil {
		var answer []byte
		if answer, err = conn.Read(); err != nil {
			break
		}
		var m protocol.Message
		if m, err = protocol.Decode(answer); err == nil && m.Kind != protocol.KindNotification {
			if m.Kind != protocol.KindResult {
				t.Errorf("%.300s", answer)
				return nil
			}
			return m.Result
		}
	}
	t.Errorf("%.100s: %v", message, err)
	return nil
}

// stillServes has another client ask now and then, until the load has ended.
func stillServes(t *testing.T, url string, load func()) {
	t.Helper()
	other := dialAgent(t, url)
	done := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for ended := false; !ended; {
			select {
			case <-done:
				ended = true // once more
			case <-time.After(5 * time.Millisecond):
			}
			if request(t, other, `{"id":2,"method":"environment/status"}`) == nil {
				return
			}
		}
	})
	defer asking.Wait()
	defer close(done)
	load()
}

// inGroup starts an agent in a control group of its own with that much memory. Where none can be
// made, the test is skipped.
func inGroup(t *testing.T, memory int) (url string) {
	t.Helper()
	group := makeGroup(t, memory)
	a := startProgram(t, "none", "sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, group, rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	return a.line(t)
}

// makeGroup makes a control group below the one of this process, v1 or v2, that is removed with
// the test.
func makeGroup(t *testing.T, memory int) string {
	t.Helper()
	lines, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skipf("no control groups: %v", err)
	}
	own := map[string]string{} // by controllers
	for line := range strings.Lines(string(lines)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 {
			own[fields[1]] = fields[2]
		}
	}
	parent, file := filepath.Join("/sys/fs/cgroup", own[""]), "memory.max"
	if path, ok := own["memory"]; ok {
		parent, file = filepath.Join("/sys/fs/cgroup/memory", path), "memory.limit_in_bytes"
	} else if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		t.Skipf("no control group with a limit of its memory can be made here: %v", err)
	}
	group := filepath.Join(parent, fmt.Sprintf("e2e-memory-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no control group can be made here: %v", err)
	}
	t.Cleanup(func() {
		rig.Until(t, "its members have ended", func() bool { return syscall.Rmdir(group) != syscall.EBUSY })
	})
	if err := os.WriteFile(filepath.Join(group, file), []byte(strconv.Itoa(memory)), 0); err != nil {
		t.Skipf("the memory of a control group cannot be limited here: %v", err)
	}
	return group
}

// TestMemoryOfContainer puts an agent in 256 MiB under loads that must not end it. It does not
// run beside other tests: it takes what memory there is.
func TestMemoryOfContainer(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	const memory = 256 << 20
	url := inGroup(t, memory)

	t.Run("environment", func(t *testing.T) {
		p, err := dialed(t, url).Start(rig.Context(t), protocol.StartParams{
			Argv: []string{"/usr/bin/env"}, Cwd: protocol.NewPathURI("/"), Env: map[string]string{},
			EnvPolicy: &protocol.EnvPolicy{Inherit: "all", IgnoreDefaultExcludes: true},
		})
		rig.Must(t, err)
		printed := outcome(t, p).stdout
		has(t, printed, "E2E_MARK=")
		lacks(t, printed, "GOMEMLIMIT")
	})

	t.Run("large messages", func(t *testing.T) {
		const clients, size = 6, 30_000_000 // 40 MB of base64
		dir := t.TempDir()
		content := base64.StdEncoding.EncodeToString(make([]byte, size))
		conns := dialAgents(t, url, clients)
		stillServes(t, url, func() {
			var all sync.WaitGroup
			for i, conn := range conns {
				all.Go(func() {
					defer conn.Close()
					path := filepath.Join(dir, strconv.Itoa(i))
					request(t, conn, `{"id":5,"method":"fs/writeFile","params":{"path":"file://`+path+`","dataBase64":"`+content+`"}}`)
					if info, err := os.Stat(path); err != nil || info.Size() != size {
						t.Errorf("%v, %v, want a file of %d bytes", info, err, size)
					}
				})
			}
			all.Wait()
		})
	})

	t.Run("unread files", func(t *testing.T) {
		unreadFiles(t, url)
	})

	t.Run("floods", func(t *testing.T) {
		const clients, enough = 100, 1 << 20
		conns := dialAgents(t, url, clients)
		stillServes(t, url, func() {
			var all sync.WaitGroup
			for _, conn := range conns {
				all.Go(func() {
					defer conn.Close() // the flood goes on, and is kept for its session
					if request(t, conn, `{"id":6,"method":"process/start","params":{"processId":"flood","argv":["/bin/sh","-c","yes 0123456789abcdef; :"],`+
						`"cwd":"file:///","env":{"PATH":"/usr/bin:/bin"},"tty":false}}`) == nil {
						return
					}
					for got := 0; got < enough; {
						message, err := conn.Read()
						if err != nil {
							t.Error(err)
							return
						}
						got += len(message)
						buffer.Recycle(message)
					}
				})
			}
			all.Wait()
		})
	})
}

// TestLittleMemory: copies in both directions and commands that read much, at once and with an agent
// that has little memory, are exact, directly and through a registry.
func TestLittleMemory(t *testing.T) {
	t.Parallel()
	const little = "GOMEMLIMIT=96MiB" // what an agent takes in a container of 128 MiB
	site := rig.NewSite(t)
	site.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + site.Executor, little}, nil, "--remote", site.URL(), "--environment-id", "ci-1")
	url := startProgram(t, "none", "env", little, rig.Agent(t), "--listen", "ws://127.0.0.1:0").line(t)
	size, memories := 6<<20, []int{}
	if rig.Runs(rig.Nightly) {
		size, memories = 64<<20, []int{64, 128, 256}
	}
	data := make([]byte, size)
	_, _ = rand.Read(data) // it has no error
	for _, memory := range memories {
		t.Run(fmt.Sprint(memory, " MiB"), func(t *testing.T) {
			copies(t, data, 4, "AGENT_URL="+inGroup(t, memory<<20))
		})
	}
	t.Run("direct", func(t *testing.T) {
		t.Parallel()
		copies(t, data, 2, little, "AGENT_URL="+url)
	})
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		copies(t, data, 2, little, "AGENT_REGISTRY="+site.URL(), "AGENT_ENVIRONMENT_ID=ci-1", "AGENT_REGISTRY_TOKEN="+site.Harness)
	})
}

// copies copies a file to the agent and back, so many times at once, beside a command that reads late.
func copies(t *testing.T, data []byte, each int, environ ...string) {
	dir := t.TempDir()
	rig.Must(t, os.WriteFile(filepath.Join(dir, "from"), data, 0o600))
	run := func(want string, args ...string) {
		cmd := rig.Command(t, rig.Agent(t), args...)
		cmd.Env, cmd.Dir = append(environ, "PATH="+os.Getenv("PATH")), dir
		cmd.Stdin = bytes.NewReader(data)
		rig.Is(t, says(t, cmd), want, "%s prints", args[0])
	}
	var all sync.WaitGroup
	for i := range each {
		all.Go(func() { run("", "cp", "-q", "from", ":"+filepath.Join(dir, fmt.Sprint("to", i))) })
		all.Go(func() { run("", "cp", "-q", ":"+filepath.Join(dir, "from"), fmt.Sprint("back", i)) })
	}
	all.Go(func() {
		run(fmt.Sprintf("%x  -\n", sha256.Sum256(data)), "exec", "--", "sh", "-c", "sleep 0.2; exec sha256sum")
	})
	all.Wait()
	for i := range each {
		for _, file := range []string{"to", "back"} {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(file, i)))
			rig.Is(t, err == nil && bytes.Equal(got, data), true, "%s%d is what was copied (%v)", file, i, err)
		}
	}
}

// unreadFiles has clients ask for large files, again and again, without reading an answer, while
// another client is served.
func unreadFiles(t *testing.T, url string) {
	const clients, requests, size = 20, 8, 12_000_000
	path := filepath.Join(t.TempDir(), "file")
	rig.Must(t, os.WriteFile(path, make([]byte, size), 0o600))
	conns := dialAgents(t, url, clients)
	stillServes(t, url, func() {
		for _, conn := range conns {
			defer conn.Close()
			for range requests {
				rig.Must(t, conn.Write([]byte(`{"id":7,"method":"fs/readFile","params":{"path":"file://`+path+`"}}`)))
			}
		}
		// After one answer the agent has begun the next on each, or refused to. All are read at
		// once: who reads nothing does not answer pings either, and is given up in the end.
		var reading sync.WaitGroup
		for _, conn := range conns {
			reading.Go(func() {
				rig.Check(t, rig.Err(conn.Read()))
			})
		}
		reading.Wait()
	})
}

// TestMemoryOfUnreadFiles: file content that clients do not read takes no more memory than its
// own size.
func TestMemoryOfUnreadFiles(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	const most = 300 << 10 // KiB
	a := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
	url := a.line(t)
	unreadFiles(t, url)
	resident := memoryOf(t, a.Process.Pid, "VmHWM")
	rig.Is(t, resident > most, false, "%d KiB were resident, want at most %d", resident, most)
	t.Logf("%d MiB were resident", resident>>10)
}
