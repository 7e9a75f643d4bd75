package rig

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOutside: a failure ends the function, everything is cleaned up, and the error says what
// failed.
func TestOutside(t *testing.T) {
	t.Parallel()
	var dir string
	var program *Program
	cause := errors.New("broken")
	err := Outside(t.Context(), func(o T) {
		dir = o.TempDir()
		program = Start(o, exec.Command("sh", "-c", "echo first; echo second; exec sleep 300"))
		Is(t, program.Line(o)+" "+program.Line(o), "first second", "lines")
		o.Errorf("one thing")
		o.Fatalf("another: %w", cause)
		t.Error("it goes on")
	})
	Is(t, err, cause, "")
	Is(t, strings.Contains(err.Error(), "one thing"), true, "%v has both", err)
	Is(t, Err(os.Stat(dir)), os.ErrNotExist, "the folder is left")
	Is(t, program.Gone(), true, "the program is gone")
}

// TestProxy: what a proxy counts, refuses and cuts. That it passes things on whole, the tests of
// remote mode see.
func TestProxy(t *testing.T) {
	t.Parallel()
	const body = 100_000
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, strings.Repeat("x", body))
		}
	}))
	defer server.Close()
	client := &http.Client{Timeout: Patience, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	p := NewProxy(t, FreeAddress(t), server.Listener.Addr().String()) // at the first one nobody listens
	url := "http://" + p.Address()

	for _, path := range []string{"/environment/x/register", "/environment/x/connect"} { // on one connection
		response, err := client.Post(url+path, "text/plain", strings.NewReader("some"))
		Must(t, err)
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		Is(t, string(text), "some", "%s, %v", path, err)
	}
	// For the proxy, a connection that begins with GET is a websocket.
	get := func() (status, size int, err error) {
		client.CloseIdleConnections()
		response, err := client.Get(url)
		Must(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return response.StatusCode, len(text), err
	}
	p.Refuse(1)
	whole := func(want int) {
		t.Helper()
		status, size, err := get()
		Check(t, err)
		Is(t, status, want, "status")
		Is(t, size == body, want == http.StatusOK, "%d bytes come: they are all", size)
	}
	cut := func() {
		t.Helper()
		_, size, err := get()
		Is(t, size > 0 && size < body/2 && err != nil, true, "%d bytes, %v: a part comes", size, err)
	}
	whole(http.StatusUnauthorized)
	whole(http.StatusOK)
	p.CutAfter(body/2, nil)
	cut()
	Is(t, p.Struck(), true, "it has struck")
	whole(http.StatusOK)
	stop := p.CutEach(body / 4)
	cut()
	cut()
	stop()
	whole(http.StatusOK)
	websockets, registrations := p.Seen()
	Is(t, fmt.Sprint(websockets, registrations), "7 1", "websockets and registrations")
}

// TestFreeAddress: at an address that is free connections are refused, one program after the other
// can listen there, and nobody who asks for any port gets that one.
func TestFreeAddress(t *testing.T) {
	t.Parallel()
	const ports = 8
	fewPorts(t, ports)
	address := FreeAddress(t)
	for range 2 {
		Is[error](t, Err(net.Dial("tcp", address)), syscall.ECONNREFUSED, "before anybody listens")
		l, err := net.Listen("tcp", address)
		Must(t, err)
		conn, err := net.Dial("tcp", address)
		Must(t, err)
		conn.Close()
		l.Close()
	}
	for range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return // all others are taken
		}
		defer l.Close()
		if l.Addr().String() == address {
			break
		}
	}
	t.Errorf("%s is given to others", address)
}

// fewPorts has the test's goroutine in a network where only so many ports are given to those who
// ask for any.
func fewPorts(t *testing.T, n int) {
	t.Helper()
	before, err := os.Open("/proc/thread-self/ns/net")
	Must(t, err)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		before.Close()
		t.Skipf("a network namespace cannot be made here: %v", err)
	}
	t.Cleanup(func() {
		// The thread goes on: programs that it has started would end with it.
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		runtime.UnlockOSThread()
		before.Close()
	})
	Must(t, exec.Command("ip", "link", "set", "lo", "up").Run())
	Must(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "40000 %d", 40000+n-1), 0))
}

// TestRows: what the cells of a table may be.
func TestRows(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cases.txt")
	Must(t, os.WriteFile(file, []byte("above\n-- other --\nx\n-- table --\n# none\n\na b   \"\"\n\"a  b\"  `\"c\"`\n\" \\x00\"  #\n"), 0o600))
	Same(t, "rows", [][]string{{"a b", ""}, {"a  b", `"c"`}, {" \x00", "#"}}, Rows(t, file, "table", 2))
	for _, cells := range []string{`"a"b`, `"a" b`} {
		Is(t, len(cellsOf(cells)), 0, "cells of %s", cells)
	}
}
