package main

import (
	"bytes"
	"context"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestListenUnix: a registry at a UNIX socket serves a proxy on this machine, and no other user but
// those that are named.
func TestListenUnix(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "registry") // the path of a socket is short
	rig.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	rig.Must(t, os.Chmod(dir, 0o755))
	path, data := filepath.Join(dir, "socket"), filepath.Join(dir, "data")
	server := start(t, "--listen=unix://"+path, "--trust-proxy", "--data", data)
	rig.Is(t, server.url, "unix://"+path, "it listens at")
	proxy := &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "registry"})
			r.SetXForwarded()
		},
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}},
	}}
	front := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	go proxy.Serve(front)
	t.Cleanup(func() { proxy.Close() })
	key := strings.TrimSpace(mustRun(t, "keys", "create", "--role=harness", "--environment=*", "--data", data))
	rig.Is(t, accepted(t, "http://"+front.Addr().String(), key), 200, "by a proxy a key is answered")
	if told := mustRun(t, "status", "--url=unix://"+path); !strings.Contains(told, "state: ready\n") || !strings.Contains(told, "limit streams: 20000\n") {
		t.Errorf("status tells\n%s", told)
	}
	rig.Is(t, rig.Value(os.Stat(path)).Mode().Perm(), 0o600, "the mode of the socket")
	server.stop(t)
	rig.Is(t, rig.Err(os.Lstat(path)), fs.ErrNotExist, "the socket at the end")

	if os.Geteuid() != 0 {
		t.Skip("other users are tried by root only")
	}
	program := filepath.Join(dir, "client") // other users cannot reach the test's own file
	rig.Must(t, rig.WriteProgram(program, rig.Value(os.ReadFile("/proc/self/exe"))))
	const one, other = 65533, 65532
	server = start(t, "--listen=unix://"+path, "--trust-proxy", "--allow-uid=65533", "--data", data)
	for uid, want := range map[uint32]bool{one: true, other: false} {
		cmd := exec.Command(program, "-test.run=^TestUnixClient$")
		cmd.Env = []string{"REGISTRY_TEST_SOCKET=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		rig.Is(t, bytes.Contains(out, []byte("HTTP/1.1 200")), want, "uid %d is served: %s, %v", uid, out, err)
	}
	server.stop(t)
}

// TestUnixClient is not a test: it is another user's client of TestListenUnix.
func TestUnixClient(t *testing.T) {
	path := os.Getenv("REGISTRY_TEST_SOCKET")
	if path == "" {
		t.Skip("this is a program of TestListenUnix")
	}
	conn := rig.Value(net.Dial("unix", path))
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: registry\r\n\r\n")); err != nil {
		t.Log(err) // the server has closed it
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	t.Logf("%q, %v", answer[:n], err)
	os.Stdout.Write(answer[:n])
}
