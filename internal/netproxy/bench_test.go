package netproxy

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// relay is what a tunnel cannot do without: it reads a CONNECT, dials, answers, and copies.
func relay(t testing.TB, dial func(network, place string) (net.Conn, error)) string {
	return listen(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		q, err := http.ReadRequest(r)
		if err != nil || q.Method != http.MethodConnect {
			return
		}
		there, err := dial("tcp", q.Host)
		if err != nil {
			return
		}
		defer there.Close()
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(conn, there)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		if n := r.Buffered(); n > 0 {
			_, _ = io.CopyN(there, r, int64(n))
		}
		_, _ = io.Copy(there, conn)
		_ = there.(*net.TCPConn).CloseWrite()
		<-done
	})
}

// through connects by a proxy.
func through(b *testing.B, proxy, place string) net.Conn {
	conn, err := net.Dial("tcp", proxy)
	rig.Must(b, err)
	buf := make([]byte, 100)
	n := 0
	if _, err = io.WriteString(conn, "CONNECT "+place+" HTTP/1.1\r\nHost: "+place+"\r\n\r\n"); err == nil {
		n, err = conn.Read(buf)
	}
	if err != nil || string(buf[:12]) != "HTTP/1.1 200" {
		b.Fatal(string(buf[:n]), err)
	}
	return conn
}

// BenchmarkFirstByte is a connection to a destination, to the first byte that comes back, by turns
// through the relay and through the proxy: it says the median of each, their ratio, and the
// processor time that each takes together with both ends.
func BenchmarkFirstByte(b *testing.B) {
	s := listen(b, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	ways := []string{relay(b, net.Dial), start(b, allow("127.0.0.1", "*.example.org")).addr}
	var took [2][]time.Duration
	var processor [2]time.Duration
	for b.Loop() {
		for i, way := range ways {
			before, begin := processorTime(), time.Now()
			conn := through(b, way, s)
			_, _ = io.WriteString(conn, "x")
			rig.Must(b, rig.Err(io.ReadFull(conn, make([]byte, 1))))
			took[i] = append(took[i], time.Since(begin))
			_ = conn.Close()
			processor[i] += processorTime() - before
		}
	}
	var median [2]float64
	for i := range took {
		slices.Sort(took[i])
		median[i] = float64(took[i][len(took[i])/2].Nanoseconds())
		name := []string{"relay", "proxy"}[i]
		b.ReportMetric(median[i], name+"-ns")
		b.ReportMetric(float64(processor[i].Nanoseconds())/float64(len(took[i])), name+"-cpu-ns")
	}
	b.ReportMetric(median[1]/median[0], "proxy/relay")
}

// BenchmarkTunnel moves much through a tunnel. Processor time is that of all ends together:
// what a tunnel takes is what is above that of the direct connection.
func BenchmarkTunnel(b *testing.B) {
	const chunk = 256 << 20
	s := listen(b, func(conn net.Conn) {
		block := make([]byte, 128<<10)
		for {
			if _, err := io.ReadFull(conn, block[:1]); err != nil {
				return
			}
			for range chunk / len(block) {
				if _, err := conn.Write(block); err != nil {
					return
				}
			}
		}
	})
	g := start(b, allow("127.0.0.1"))
	bare := relay(b, net.Dial)
	for _, c := range []struct{ name, proxy string }{{"direct", ""}, {"relay", bare}, {"proxy", g.addr}} {
		b.Run(c.name, func(b *testing.B) {
			var conn net.Conn
			if c.proxy == "" {
				var err error
				conn, err = net.Dial("tcp", s)
				rig.Must(b, err)
			} else {
				conn = through(b, c.proxy, s)
			}
			defer conn.Close()
			buf := make([]byte, 128<<10)
			b.SetBytes(chunk)
			before := processorTime()
			for b.Loop() {
				_, _ = conn.Write([]byte("x"))
				for left := chunk; left > 0; {
					n, err := conn.Read(buf)
					rig.Must(b, err)
					left -= n
				}
			}
			b.ReportMetric((processorTime()-before).Seconds()/(float64(b.N)*chunk/(1<<30)), "cpu-s/GiB")
		})
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRequests is 1,000 plain requests, one after the other on one connection: directly,
// through httputil.ReverseProxy, and through the proxy.
func BenchmarkRequests(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello, this is an answer of usual size\n")
	}))
	b.Cleanup(s.Close)
	reverse := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, ErrorLog: log.New(io.Discard, "", 0)})
	b.Cleanup(reverse.Close)
	g := start(b, allow("127.0.0.1", "*.example.org"))
	for _, c := range []struct{ name, proxy string }{{"direct", ""}, {"ReverseProxy", reverse.URL}, {"proxy", "http://" + g.addr}} {
		b.Run(c.name, func(b *testing.B) {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			if c.proxy != "" {
				u, _ := url.Parse(c.proxy)
				transport.Proxy = http.ProxyURL(u)
			}
			for b.Loop() {
				for range 1000 {
					q, _ := http.NewRequest(http.MethodGet, s.URL+"/path?query", nil)
					a, err := transport.RoundTrip(q)
					rig.Must(b, err)
					if body, _ := io.ReadAll(a.Body); a.StatusCode != 200 || len(body) == 0 {
						b.Fatal(a.Status, len(body))
					}
					_ = a.Body.Close()
				}
			}
		})
	}
}
