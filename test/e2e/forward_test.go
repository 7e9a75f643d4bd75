package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// upper sends back all that has come when that has ended, and a few words behind it.
func upper(conn net.Conn) {
	all, err := io.ReadAll(conn)
	if err == nil {
		_, _ = conn.Write(append(all, "that was it"...))
	}
}

// throughUpper sends bytes to upper, and compares what comes back.
func throughUpper(to io.Writer, end func() error, from io.Reader) error {
	sent := make([]byte, 2_000_000)
	_, _ = rand.Read(sent)
	if _, err := to.Write(sent); err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	got, err := io.ReadAll(from)
	if err == nil && !bytes.Equal(got, append(sent, "that was it"...)) {
		err = fmt.Errorf("%d bytes of %d came back, or other ones", len(got), len(sent))
	}
	return err
}

// dial connects, for as long as patience.
func dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, patience)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// TestPortForward: ports and sockets here are those there, while every connection to the agent is
// cut after some bytes.
func TestPortForward(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		dir := t.TempDir()
		there := rig.Listen(t, "tcp", "127.0.0.1:0", upper).(*net.TCPAddr)
		rig.Listen(t, "unix", filepath.Join(dir, "there"), upper)
		nobody := rig.FreeAddress(t)
		var stderr rig.Transcript
		here := filepath.Join(dir, "here")
		cmd := w.command(t, "port-forward", fmt.Sprintf(":%d", there.Port), here+":"+there.String(), "0:"+filepath.Join(dir, "there"), ":"+nobody)
		cmd.Stderr = &stderr
		p := connect(t, cmd)
		var local []string
		for i, remote := range []string{fmt.Sprintf("localhost:%d", there.Port), there.String(), filepath.Join(dir, "there"), nobody} {
			from, to, _ := strings.Cut(p.line(t), " -> ")
			if to != remote || (i == 1) != (from == here) {
				t.Fatalf("%q is forwarded to %q, want %q", from, to, remote)
			}
			local = append(local, from)
		}
		if info, err := os.Stat(here); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket has %v, %v", info.Mode(), err)
		}
		stop := w.proxy.CutEach(1_000_000)
		var trips sync.WaitGroup
		for i, address := range local[:3] {
			trips.Go(func() {
				network := "tcp"
				if i == 1 {
					network = "unix"
				}
				for range 2 {
					conn, err := dial(network, address)
					if err == nil {
						err = throughUpper(conn, conn.(interface{ CloseWrite() error }).CloseWrite, conn)
						_ = conn.Close()
					}
					rig.Is(t, err != nil, false, "%s: %v", address, err)
				}
			})
		}
		trips.Wait()
		stop()
		rig.Is(t, withoutWaits(stderr.String()), "", "it says")
		// Nobody is there: the connection is reset, and the reason told.
		if conn, err := dial("tcp", local[3]); err == nil { // it may be reset already
			if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("read %d bytes of nobody, %v", n, err)
			}
			_ = conn.Close()
		}
		want := fmt.Sprintf("agent: %s -> %s: Connection refused (os error 111)\n", local[3], nobody)
		rig.Until(t, "the refusal is told", func() bool { return withoutWaits(stderr.String()) == want })
		if connections, _ := w.proxy.Seen(); connections < 4 {
			t.Errorf("%d connections", connections)
		}
		// One that is open ends with the program, on both sides.
		conn, err := dial("tcp", local[0])
		rig.Must(t, err)
		defer conn.Close()
		rig.Is(t, p.Stop(t), 0, "exit code")
		rig.Is(t, rig.Err(os.Stat(here)), fs.ErrNotExist, "the socket afterwards")
	})
}

// TestPortForwardReset: a reset at one end is a reset at the other end, so that nobody takes a part for
// the whole.
func TestPortForwardReset(t *testing.T) {
	t.Parallel()
	w := directly(t)
	ten := []byte("ten bytes.")
	reset := func(conn net.Conn) {
		rig.Check(t, conn.(*net.TCPConn).SetLinger(0))
		_ = conn.Close()
	}
	uploaded := make(chan error, 1)
	down := rig.Listen(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		_, _ = conn.Write(ten)
		_, _ = io.ReadFull(conn, make([]byte, 1)) // the client has the bytes
		reset(conn)
	})
	up := rig.Listen(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		_, err := io.ReadFull(conn, make([]byte, len(ten)))
		rig.Check(t, err)
		_, _ = conn.Write(ten[:1])
		_, err = conn.Read(make([]byte, 1))
		uploaded <- err
	})
	p := connect(t, w.command(t, "port-forward", ":"+down.String(), ":"+up.String()))
	local := func() net.Conn {
		from, _, _ := strings.Cut(p.line(t), " -> ")
		conn, err := dial("tcp", from)
		rig.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn := local()
	rig.Must(t, rig.Err(io.ReadFull(conn, make([]byte, len(ten)))))
	rig.Must(t, rig.Err(conn.Write(ten[:1])))
	rig.Is[error](t, rig.Err(conn.Read(make([]byte, 1))), syscall.ECONNRESET, "a download")

	conn = local()
	rig.Must(t, rig.Err(conn.Write(ten)))
	rig.Must(t, rig.Err(conn.Read(make([]byte, 1))))
	reset(conn)
	rig.Is[error](t, rig.Within(t, rig.Patience, "the end of the upload", uploaded), syscall.ECONNRESET, "an upload")
}

// TestProxyCommand: standard input and output are those of a connection there, while the
// connection to the agent is cut in the middle.
func TestProxyCommand(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		there := rig.Listen(t, "tcp", "127.0.0.1:0", upper).(*net.TCPAddr)
		path := filepath.Join(t.TempDir(), "there")
		rig.Listen(t, "unix", path, upper)
		for _, args := range [][]string{{"localhost", fmt.Sprint(there.Port)}, {path}} {
			var stderr bytes.Buffer
			cmd := w.command(t, "proxy-command", args...)
			cmd.Stderr = &stderr
			w.proxy.CutAfter(1_000_000, nil)
			p := connect(t, cmd)
			rig.Check(t, throughUpper(p.stdin, p.stdin.Close, p.stdout))
			rig.Is(t, ending(withoutWaits(stderr.String()), p.Exit(t)), "", "proxy-command")
			rig.Is(t, w.proxy.Struck(), true, "something was cut")
		}
		port := port(t)
		rig.Is(t, says(t, w.command(t, "proxy-command", "localhost", port)),
			fmt.Sprintf("agent: localhost:%s: Connection refused (os error 111)\nexit 1\n", port), "nobody there")
	})
}

// TestPortForwardHere: a port that is taken here ends it at once. All addresses of IPv4 are not those
// of IPv6, and that others can connect is said.
func TestPortForwardHere(t *testing.T) {
	t.Parallel()
	w := directly(t)
	taken := rig.Listen(t, "tcp", "127.0.0.1:0", func(net.Conn) {}).(*net.TCPAddr)
	rig.Is(t, says(t, w.command(t, "port-forward", fmt.Sprintf("%d:80", taken.Port))),
		fmt.Sprintf("agent: listen tcp4 %v: bind: address already in use\nexit 1\n", taken), "a port that is taken")
	var stderr rig.Transcript
	cmd := w.command(t, "port-forward", "--address", "0.0.0.0", ":80")
	cmd.Stderr = &stderr
	if line := connect(t, cmd).line(t); !strings.HasPrefix(line, "0.0.0.0:") {
		t.Errorf("it listens on %s", line)
	}
	want := "agent: everybody who can reach this machine at 0.0.0.0 can use the forwarded ports\n"
	rig.Until(t, "who can connect is told", func() bool { return withoutWaits(stderr.String()) == want })
}

// connectTo is agent connect to an environment of the site.
func connectTo(t *testing.T, s *rig.Site, environment string, flags ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"connect", "--registry", s.URL(), "--environment-id", environment}, flags...)
	cmd := rig.Command(t, rig.Agent(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "AGENT_REGISTRY_TOKEN=" + s.Harness, "XDG_RUNTIME_DIR=" + t.TempDir()}
	return cmd
}

// TestConnectStdio: a program that speaks only lines on standard input and output reaches an
// agent behind a registry.
func TestConnectStdio(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	cmd := connectTo(t, s, "ci-1")
	c, err := client.Connect(rig.Context(t), client.Program(transport.CommandConfig{Argv: cmd.Args, Env: cmd.Env}))
	rig.Must(t, err)
	rig.Is(t, answer(t, c, "through both", "cat"), "through both", "cat")
	rig.Check(t, c.Close())

	// An environment without an executor.
	rig.Is(t, says(t, connectTo(t, s, "ci-2", "--wait", "0")), "agent: environment ci-2: no executor is connected\nexit 1\n", "connect")
}

// TestConnectWebSocket: several programs that speak WebSocket reach an agent behind a registry,
// each by a connection of its own. They need the token that is made for them.
func TestConnectWebSocket(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	var stderr rig.Transcript
	cmd := connectTo(t, s, "ci-1", "--listen", "127.0.0.1:0")
	cmd.Stderr = &stderr
	p := rig.Start(t, cmd)
	url := p.Line(t)
	rig.Until(t, "where the token is, is told", func() bool { return strings.HasSuffix(stderr.String(), "\n") })
	_, file, ok := strings.Cut(strings.TrimSpace(stderr.String()), "agent: clients need the token in the file ")
	info, err := os.Stat(file)
	if !ok || err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token is in %q: %v, %v", stderr.String(), info, err)
	}
	token := rig.Value(os.ReadFile(file))
	rig.Is(t, rig.Err(client.DialURL(rig.Context(t), url)) != nil, true, "a client without the token is refused")
	ids := map[string]bool{}
	for range 3 {
		c := dialed(t, url, client.Token(strings.TrimSpace(string(token))))
		ids[c.SessionID()] = true
		rig.Is(t, answer(t, c, "", "echo", "here"), "here\n", "the command")
	}
	rig.Is(t, len(ids), 3, "sessions")
	rig.Is(t, says(t, rig.Command(t, rig.Agent(t), "exec", "--url", url, "--token-file", file, "--", "echo", "by exec")), "by exec\n", "exec")
	p.Terminate(t)
	rig.Is(t, rig.Err(os.Stat(file)), fs.ErrNotExist, "the token afterwards")
}
