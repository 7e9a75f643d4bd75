package suite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// destinations are the servers that commands of the network cases reach, or do not reach.
type destinations struct {
	values    map[string]string // by the name of their placeholder
	listeners []net.Listener
	free      func() // gives the dead port back

	mu    sync.Mutex
	seen  []string // what has come
	size  int      // of seen, in bytes
	conns map[net.Conn]struct{}
	done  bool
	wg    sync.WaitGroup
}

// listen starts servers. dir is for a socket.
func listen(dir string) (*destinations, error) {
	dead, free, err := deadPort()
	if err != nil {
		return nil, fmt.Errorf("a port that refuses: %w", err)
	}
	d := &destinations{values: map[string]string{"DEAD": strconv.Itoa(dead)}, free: free, conns: map[net.Conn]struct{}{}}
	for _, server := range []struct {
		name, network, address string
		serve                  func(net.Conn)
	}{
		{"HTTP", "tcp", "127.0.0.1:0", func(c net.Conn) { d.describe(c, "http") }},
		{"HTTP2", "tcp", "127.0.0.1:0", func(c net.Conn) { d.describe(c, "http2") }},
		{"UNIX", "unix", filepath.Join(dir, "u.sock"), func(c net.Conn) { d.describe(c, "unix") }},
		{"TCP", "tcp", "127.0.0.1:0", d.echo},
	} {
		l, err := net.Listen(server.network, server.address)
		if err != nil {
			d.close()
			return nil, fmt.Errorf("listening: %w", err)
		}
		d.values[server.name] = l.Addr().String()
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			d.values[server.name] = strconv.Itoa(tcp.Port)
		}
		d.listeners = append(d.listeners, l)
		d.wg.Go(func() { d.accept(l, server.serve) })
	}
	return d, nil
}

// close ends the servers with their connections.
func (d *destinations) close() {
	d.free()
	for _, l := range d.listeners {
		_ = l.Close()
	}
	d.mu.Lock()
	d.done = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func (d *destinations) accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		if d.done || len(d.conns) >= maxConns {
			_ = c.Close()
		}
		d.conns[c] = struct{}{}
		d.mu.Unlock()
		d.wg.Go(func() {
			serve(c)
			_ = c.Close()
			d.mu.Lock()
			delete(d.conns, c)
			d.mu.Unlock()
		})
	}
}

const (
	// maxSeen bounds what servers of a case keep of what has come, and maxConns their connections.
	maxSeen  = 16 << 20
	maxConns = 256
	// maxRequests bounds what one connection brings, in bytes.
	maxRequests = 4 << 20
)

// note keeps what has come. With too much of it the servers end.
func (d *destinations) note(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.size += len(text) + 64; d.size <= maxSeen {
		d.seen = append(d.seen, text)
		return
	}
	d.done = true
	for c := range d.conns {
		_ = c.Close()
	}
}

// count returns how many requests had a text.
func (d *destinations) count(text string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.seen {
		if strings.Contains(s, text) {
			n++
		}
	}
	return n
}

// all returns what has come.
func (d *destinations) all() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.seen, "; ")
}

// echo sends back what comes.
func (d *destinations) echo(c net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		d.note("tcp " + string(buf[:n]))
		if _, err := c.Write(append([]byte("ECHO:"), buf[:n]...)); err != nil {
			return
		}
	}
}

// describe answers requests with what they were, as they were: with their headers in the order in
// which these have come, which net/http would not tell.
func (d *destinations) describe(c net.Conn, server string) {
	in := bufio.NewReader(io.LimitReader(c, maxRequests))
	for {
		description, head, err := describeOne(in, server)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				d.note("broken: " + err.Error())
			}
			return
		}
		d.note(description)
		answer := "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(description)) + "\r\n\r\n"
		if !head {
			answer += description
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

func describeOne(in *bufio.Reader, server string) (description string, head bool, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", false, err
	}
	var order []string
	values := map[string]string{}
	for {
		field, err := in.ReadString('\n')
		if err != nil {
			return "", false, io.ErrUnexpectedEOF
		}
		name, value, ok := strings.Cut(strings.TrimRight(field, "\r\n"), ":")
		if !ok {
			break
		}
		name = strings.ToLower(name)
		if _, known := values[name]; !known {
			order = append(order, name)
		}
		values[name] = strings.TrimSpace(value)
	}
	var body []byte
	switch {
	case values["transfer-encoding"] != "":
		if body, err = io.ReadAll(httputil.NewChunkedReader(in)); err == nil {
			_, err = in.ReadString('\n') // after the last chunk, without trailers
		}
	case values["content-length"] != "":
		n, convert := strconv.Atoi(values["content-length"])
		if convert != nil || n < 0 || n > 1<<20 {
			return "", false, fmt.Errorf("length %q", values["content-length"])
		}
		body = make([]byte, n)
		_, err = io.ReadFull(in, body)
	}
	if err != nil {
		return "", false, err
	}
	var headers []string
	for _, name := range order {
		headers = append(headers, quote(name)+": "+quote(values[name]))
	}
	line = strings.TrimRight(line, "\r\n")
	return fmt.Sprintf(`{"srv": %s, "line": %s, "headers": {%s}, "body": %s}`, quote(server), quote(line), strings.Join(headers, ", "), quote(string(body))),
		strings.HasPrefix(line, http.MethodHead+" "), nil
}

func quote(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // of a string it cannot fail
	return strings.TrimSpace(b.String())
}
