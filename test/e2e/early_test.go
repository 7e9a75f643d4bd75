package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestRemoteEarlyCuts: a websocket that is lost while agent exec connects, or before anything was acknowledged, is a
// delay and nothing else, whosever it is: the command runs once, and all of its input and output comes through.
func TestRemoteEarlyCuts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve(t, "ci-0")
	// The handshake ends at about 8 KB, and the command is started within three more.
	const most = 14_000
	// Few at once, however many tests may be: agent exec gives up after ten seconds.
	turns := make(chan struct{}, 4)
	turn := func() (end func()) {
		turns <- struct{}{}
		return func() { <-turns }
	}
	for n := int64(100); n < most; n += 400 {
		t.Run(fmt.Sprintf("harness after %d", n), func(t *testing.T) {
			t.Parallel()
			defer turn()()
			s.execThroughCut(t, "ci-0", n, nil)
		})
	}
	for n := int64(300); n < most; n += 800 {
		t.Run(fmt.Sprintf("executor after %d", n), func(t *testing.T) {
			t.Parallel()
			defer turn()()
			executors := newBalancer(t, []string{s.address})
			environment := fmt.Sprintf("ci-%d", n)
			executor := s.start(t, agentBinary(t), []string{"CODEX_API_KEY=" + s.executor}, nil,
				"--remote", "http://"+executors.address(), "--environment-id", environment)
			executor.says(t, "connected to the rendezvous", 1)
			s.execThroughCut(t, environment, n, executors.cut)
		})
	}
}

// execThroughCut runs a command while something strikes when the harness's websocket has carried n bytes, see cutter.
func (s *site) execThroughCut(t *testing.T, environment string, n int64, strike func()) {
	t.Helper()
	harnesses := newCutter(t, s.address, n, strike)
	ran := filepath.Join(t.TempDir(), "ran")
	cmd := exec.CommandContext(t.Context(), agentBinary(t), "exec", "--registry", "http://"+harnesses.address(),
		"--environment-id", environment, "-e", "RAN="+ran, "--", "sh", "-c", `echo once >>"$RAN"; seq 2000; cat; exit 7`)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "AGENT_REGISTRY_TOKEN=" + s.harness}
	cmd.Stdin = strings.NewReader("input\n")
	var want, stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("%v, want exit code 7", err)
	}
	for i := range 2000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("input\n")
	if !bytes.Equal(stdout.Bytes(), want.Bytes()) {
		t.Errorf("the output has %d bytes, want %d", stdout.Len(), want.Len())
	}
	if text, err := os.ReadFile(ran); string(text) != "once\n" {
		t.Errorf("the command ran %q, %v; want once", text, err)
	}
	if stderr.Len() > 0 {
		t.Errorf("agent writes into the command's standard error:\n%s", &stderr)
	}
	if !harnesses.struck.Load() {
		t.Errorf("nothing was cut: the websocket has carried less than %d bytes", n)
	}
}

// TestExecLogs: agent exec says what happens to its connection only when it is asked to.
func TestExecLogs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve(t, "ci-1")
	for level, want := range map[string]string{"": "", "warn": "level=WARN msg=\"connecting is repeated\""} {
		t.Run("level "+level, func(t *testing.T) {
			t.Parallel()
			harnesses := newCutter(t, s.address, 5000, nil) // in the handshake
			cmd := exec.CommandContext(t.Context(), agentBinary(t), "exec", "--registry", "http://"+harnesses.address(),
				"--environment-id", "ci-1", "--log-level", level, "--", "sh", "-c", "echo of the command >&2")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "AGENT_REGISTRY_TOKEN=" + s.harness, "AGENT_LOG_LEVEL=debug"}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				t.Errorf("%v\n%s", err, &stderr)
			}
			log, found := strings.CutSuffix(stderr.String(), "of the command\n")
			if !found || (log == "") != (want == "") || !strings.Contains(log, want) {
				t.Errorf("standard error is\n%swant %q before that of the command", &stderr, want)
			}
			if strings.Contains(log, s.harness) || strings.Contains(log, "signature") {
				t.Errorf("it shows a secret:\n%s", log)
			}
		})
	}
}

// cutter passes TCP connections on. When so many bytes have passed on the first websocket, both ways counted, it strikes,
// once: it ends that connection, or does what it was told to.
type cutter struct {
	listener net.Listener
	left     atomic.Int64
	struck   atomic.Bool
	strike   func()
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows
	found bool       // the first websocket
	open  map[net.Conn]bool
}

func newCutter(t *testing.T, target string, after int64, strike func()) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, strike: strike, open: map[net.Conn]bool{}}
	c.left.Store(after)
	c.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			c.wg.Go(func() { c.serve(from, target) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.mu.Lock()
		for conn := range c.open {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) address() string { return c.listener.Addr().String() }

func (c *cutter) serve(from net.Conn, target string) {
	defer from.Close()
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	c.mu.Lock()
	c.open[from], c.open[to] = true, true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, from)
		delete(c.open, to)
	}()
	method := make([]byte, len(http.MethodGet))
	if _, err := io.ReadFull(from, method); err != nil {
		return
	}
	cut := func() {}
	c.mu.Lock()
	counted := string(method) == http.MethodGet && !c.found
	c.found = c.found || counted
	c.mu.Unlock()
	if counted {
		cut = func() {
			if !c.struck.CompareAndSwap(false, true) {
				return
			}
			if c.strike != nil {
				c.strike()
				return
			}
			_ = from.Close()
			_ = to.Close()
		}
	}
	if _, err := to.Write(method); err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		c.pass(from, to, counted, cut)
		_ = from.Close()
	})
	c.pass(to, from, counted, cut)
	_ = to.Close()
	back.Wait()
}

// pass copies. What is counted ends at its byte.
func (c *cutter) pass(to io.Writer, from io.Reader, counted bool, cut func()) {
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		rest := buffer[:n]
		if counted && !c.struck.Load() {
			if left := c.left.Add(-int64(n)); left <= 0 {
				before := max(0, n+int(left))
				if _, err := to.Write(rest[:before]); err != nil {
					return
				}
				cut()
				rest = rest[before:]
			}
		}
		if _, err := to.Write(rest); err != nil {
			return
		}
	}
}
