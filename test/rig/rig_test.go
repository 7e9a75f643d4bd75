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
		if a, b := program.Line(o), program.Line(o); a != "first" || b != "second" {
			t.Errorf("the lines are %q and %q", a, b)
		}
		o.Errorf("one thing")
		o.Fatalf("another: %w", cause)
		t.Error("it goes on")
	})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "one thing") {
		t.Errorf("%v", err)
	}
	Is(t, Err(os.Stat(dir)), os.ErrNotExist, "the folder is left")
	if !program.Gone() {
		t.Error("the program is left")
	}
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
		if string(text) != "some" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
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
	for _, want := range []int{http.StatusUnauthorized, http.StatusOK} {
		if status, _, err := get(); status != want || err != nil {
			t.Errorf("status %d, %v, want %d", status, err, want)
		}
	}
	p.CutAfter(body/2, nil)
	if _, size, err := get(); size == 0 || size >= body/2 || err == nil || !p.Struck() {
		t.Errorf("%d bytes come through a connection that was cut, %v", size, err)
	}
	if _, size, err := get(); size != body || err != nil {
		t.Errorf("%d bytes come through the next one, %v", size, err)
	}
	stop := p.CutEach(body / 4)
	for range 2 {
		if _, size, err := get(); size == 0 || size >= body/2 || err == nil {
			t.Errorf("%d bytes come through a connection that is cut like each, %v", size, err)
		}
	}
	stop()
	if _, size, err := get(); size != body || err != nil {
		t.Errorf("%d bytes come through a later one, %v", size, err)
	}
	if websockets, registrations := p.Seen(); websockets != 7 || registrations != 1 {
		t.Errorf("%d websockets and %d registrations, want 7 and 1", websockets, registrations)
	}
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
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	Must(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "40000 %d", 40000+n-1), 0))
}
