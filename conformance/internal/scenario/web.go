package scenario

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// A Web is the small server of the scenarios.
type Web struct {
	listener net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
	closed   bool
}

// Serve starts the server.
func Serve() (*Web, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Web{listener: l, conns: map[net.Conn]bool{}}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.conns[c] = true
			if w.closed {
				_ = c.Close()
			}
			w.mu.Unlock()
			w.wg.Go(func() { w.serve(c) })
		}
	})
	return w, nil
}

// Port is where it listens.
func (w *Web) Port() int { return w.listener.Addr().(*net.TCPAddr).Port }

// Close ends the server with its connections.
func (w *Web) Close() {
	_ = w.listener.Close()
	w.mu.Lock()
	w.closed = true
	for c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *Web) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		w.mu.Lock()
		delete(w.conns, c)
		w.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	first, err := in.Peek(1)
	if err != nil {
		return
	}
	if first[0] < 'A' || first[0] > 'Z' {
		_, _ = io.Copy(c, in)
		return
	}
	request, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(request.Body, maxData))
	status, more, content := "404 Not Found", "", "nothing here\n"
	switch request.Method + " " + request.URL.Path {
	case "GET /hello":
		status, more, content = "200 OK", "content-type: text/plain\r\nx-test: 1\r\n", "hello\n"
	case "POST /echo":
		status, content = "200 OK", string(body)
	case "GET /redirect":
		status, more, content = "302 Found", "location: /hello\r\n", ""
	case "GET /large":
		status, content = "200 OK", strings.Repeat("x", 3_000_000)
	}
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n%s\r\n%s", status, len(content), more, content)
}
