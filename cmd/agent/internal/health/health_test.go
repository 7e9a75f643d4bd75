package health

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestProbesIdle: who connects and sends nothing, or no whole request, keeps no probe out,
// and is cut off.
func TestProbesIdle(t *testing.T) {
	t.Parallel()
	p, err := Listen("127.0.0.1:0", nil, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var last net.Conn
	for i := range 3 * maxProbes {
		conn, err := net.Dial("tcp", p.address.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 1 {
			if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost:"); err != nil {
				t.Fatal(err)
			}
		}
		last = conn
	}
	// Shorter than the patience with those who are idle.
	client := http.Client{Timeout: probePatience / 2, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 10 {
		response, err := client.Get("http://" + p.address.String() + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("answered with %d", response.StatusCode)
		}
	}
	if err := last.SetReadDeadline(time.Now().Add(10 * probePatience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(last); err != nil {
		if late, ok := err.(net.Error); ok && late.Timeout() {
			t.Error("a connection without a whole request stays open")
		}
	}
}
