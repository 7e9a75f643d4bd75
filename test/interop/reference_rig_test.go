package interop_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/relay/noise"
)

// patience bounds every wait for something that has to happen.
const patience = 5 * time.Minute

// rig is our registry with keys, for any number of reference executors.
type rig struct {
	codex    string // the reference
	registry string // program
	data     string
	home     string // CODEX_HOME of all executors
	address  string
	executor string // keys
	harness  string
}

// newRig builds and starts a registry that ends with the test.
func newRig(t *testing.T, codex string) *rig {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "make", "-C", "../..", "build-registry", "BIN="+bin).CombinedOutput(); err != nil {
		t.Fatalf("building the registry: %v\n%s", err, out)
	}
	r := &rig{codex: codex, registry: filepath.Join(bin, "registry"), data: filepath.Join(t.TempDir(), "data")}
	// The reference makes helpers of its own there, but never in the folder for temporary files.
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if r.home, err = os.MkdirTemp(cache, "execagent-interop-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(r.home); err != nil {
			t.Error(err)
		}
	})
	r.executor, r.harness = r.createKey(t, "executor"), r.createKey(t, "harness")
	cmd := exec.Command(r.registry, "serve", "--listen", "127.0.0.1:0", "--data", r.data)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the registry does not say where it listens: %v", err)
	}
	r.address = strings.TrimPrefix(strings.TrimSpace(line), "http://")
	return r
}

func (r *rig) createKey(t *testing.T, role string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), r.registry, "keys", "create", "--data", r.data, "--role", role, "--environment", "*").Output()
	if err != nil {
		t.Fatalf("creating a key: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// environments is what the registry says of who is online.
func (r *rig) environments(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), r.registry, "environments", "--data", r.data).Output()
	if err != nil {
		t.Fatalf("listing the environments: %v", err)
	}
	return string(out)
}

// A program is one that has been started, with what it prints on standard error.
type program struct {
	*exec.Cmd
	printed *transcript
	ended   chan struct{} // closed when it has
}

// start starts a program; what is left of it at the end of the test is killed.
func start(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{Cmd: cmd, printed: &transcript{}, ended: make(chan struct{})}
	cmd.Stderr = p.printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_, _ = cmd.Process.Wait() // how it ended is of no interest
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(cmd.Args, " "), p.printed)
		}
	})
	return p
}

// terminate sends SIGTERM and waits for the end.
func (p *program) terminate(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatal("it does not end after SIGTERM")
	}
}

// transcript collects what a program prints.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// serve starts the reference as executor of an environment, by way of address.
func (r *rig) serve(t *testing.T, environment, address string) *program {
	t.Helper()
	cmd := exec.Command(r.codex, "exec-server", "--remote", "http://"+address, "--environment-id", environment)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.home, "CODEX_HOME=" + r.home, "CODEX_API_KEY=" + r.executor}
	return start(t, cmd)
}

// dialer is a harness of the environment, by way of address.
func (r *rig) dialer(t *testing.T, environment, address string) *relay.Dialer {
	t.Helper()
	identity, err := noise.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	registry, err := relay.NewRegistry(relay.RegistryConfig{
		BaseURL: "http://" + address, EnvironmentID: environment, Tokens: auth.APIKey(r.harness),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Close)
	return &relay.Dialer{Registry: registry, Identity: identity}
}

// connect opens a session, or with an id comes back to one. The executor may still be on its way: the dialer asks until it
// is there.
func connect(t *testing.T, d *relay.Dialer, sessionID string) (*client.Client, error) {
	t.Helper()
	c, err := client.Connect(t.Context(), client.Config{Dial: d.Dial, ResumeSessionID: sessionID, ConnectTimeout: patience})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() }) // the connection may have been cut
	}
	return c, err
}

// mustConnect is connect for a new session.
func (r *rig) mustConnect(t *testing.T, environment, address string) *client.Client {
	t.Helper()
	c, err := connect(t, r.dialer(t, environment, address), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// proxy passes TCP connections on to the registry and can cut them.
type proxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu       sync.Mutex
	conns    []net.Conn
	upgrades int // requests for a websocket so far
	refuse   int // how many of the next ones are answered with 401
	posts    map[string]int
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, posts: make(map[string]int)}
	p.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.wg.Go(func() { p.serve(from) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// serve passes one connection on, request by request until the websocket.
func (p *proxy) serve(from net.Conn) {
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = from.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, from, to)
	p.mu.Unlock()
	p.wg.Go(func() {
		_, _ = io.Copy(from, to) // ends with the connection
		_ = from.Close()
	})
	defer to.Close()
	defer from.Close()
	reader := bufio.NewReader(from)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if request.Method == http.MethodGet {
			if p.admit() {
				var text bytes.Buffer
				writeRequest(&text, request)
				if _, err = to.Write(text.Bytes()); err == nil {
					_, _ = io.Copy(to, reader)
				}
			} else {
				_, _ = io.WriteString(from, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
			}
			return
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.posts[request.URL.Path[strings.LastIndexByte(request.URL.Path, '/')+1:]]++
		p.mu.Unlock()
		var text bytes.Buffer
		writeRequest(&text, request)
		text.Write(body)
		if _, err := to.Write(text.Bytes()); err != nil {
			return
		}
	}
}

// writeRequest writes a request's head as it came, but for the order of its headers.
func writeRequest(w io.Writer, r *http.Request) {
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.RequestURI, r.Host)
	if r.ContentLength > 0 {
		fmt.Fprintf(w, "Content-Length: %d\r\n", r.ContentLength)
	}
	_ = r.Header.Write(w) // into memory
	_, _ = io.WriteString(w, "\r\n")
}

// admit counts a request for a websocket and tells whether it is let through.
func (p *proxy) admit() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upgrades++
	if p.refuse == 0 {
		return true
	}
	p.refuse--
	return false
}

// refuseNext has the next n requests for a websocket answered with 401.
func (p *proxy) refuseNext(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = n
}

// seen tells how many websockets and registrations there were.
func (p *proxy) seen() (upgrades, registrations int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upgrades, p.posts["register"]
}

// cut ends every open connection.
func (p *proxy) cut() {
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // it may have ended
	}
}

// until waits for something that comes about elsewhere.
func until(t *testing.T, what string, happened func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waiting until %s: it takes too long", what)
		}
	}
}
