package netproxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// FuzzDestination: whatever a command sends, what goes out says again where it was judged to go,
// has the length that was read, and nothing that is about the connection. Package net/http, as
// a server, agrees with that wherever it takes the request.
func FuzzDestination(f *testing.F) {
	for _, in := range []string{
		"GET http://A.test:81/p?q HTTP/1.1\r\nHost: a.TEST.:81\r\nConnection: x, host\r\nX: 1\r\nTE: y\r\n\r\n",
		"POST /p HTTP/1.0\r\nContent-Length: 3\r\nhost: [::1]:8\r\n\r\nabc",
		"PUT https://u@h HTTP/1.1\r\nTransfer-Encoding: chunked\r\nProxy-Connection: transfer-encoding\r\n\r\n",
		"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET ftp://[::ffff:1.2.3.4]?x HTTP/1.1\r\n\r\n",
		"GET http://a@b@c:80/@d HTTP/1.1\r\nHost: c\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET //h/p HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		q, err := head.NewReader(bytes.NewReader(in)).Request()
		if err != nil {
			return
		}
		d, err := destinationOf(q)
		if err != nil {
			return
		}
		rig.Is(t, rig.Value(rules.Host(d.host)), d.host, "%q goes to", in)
		rig.Is(t, d.port > 0, true, "%q goes to a port", in)
		if q.Method == http.MethodConnect {
			return
		}
		usual := uint16(80)
		if d.encrypt {
			usual = 443
		}
		out := appendRequest(nil, q, d, nil)
		again, err := head.NewReader(bytes.NewReader(out)).Request()
		rig.Must(t, err)
		e, err := destinationAt(again, usual)
		if err != nil || e.host != d.host || e.port != d.port || !bytes.Equal(e.path, d.path) || again.Length != q.Length || again.Method != q.Method || again.Minor != q.Minor {
			t.Fatalf("%q goes out as %q: %+v, length %d, %v", in, out, e, again.Length, err)
		}
		rig.Is(t, slices.ContainsFunc(again.Fields, ofConnection), false, "%q goes out as %q", in, out)
		server, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(out), zeros{})))
		if err != nil {
			return
		}
		length := q.Length
		if q.Length == head.Chunked && !slices.Equal(server.TransferEncoding, []string{"chunked"}) || q.Length != head.Chunked && (server.ContentLength != length || server.TransferEncoding != nil) {
			t.Fatalf("%q goes out as %q: for net/http it has the length %d %q", in, out, server.ContentLength, server.TransferEncoding)
		}
		// In origin form, net/http takes two slashes for an authority in some of its functions,
		// but never for the Host.
		host, port, err := parseAuthority(server.Host, usual)
		if err != nil || host != d.host || port != d.port {
			t.Fatalf("%q goes out as %q: for net/http it goes to %q", in, out, server.Host)
		}
	})
}

// zeros is a body without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
