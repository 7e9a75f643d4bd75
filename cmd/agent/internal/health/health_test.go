package health

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestProbesIdle: who connects and sends nothing, or no whole request, keeps no probe out,
// and is cut off.
func TestProbesIdle(t *testing.T) {
	t.Parallel()
	p := rig.Value(Listen("127.0.0.1:0", nil, http.NotFoundHandler(), slog.New(slog.DiscardHandler)))
	defer p.Close()
	var last net.Conn
	for i := range 3 * maxProbes {
		conn := rig.Value(net.Dial("tcp", p.address.String()))
		defer conn.Close()
		if i%2 == 1 {
			rig.Must(t, rig.Err(io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost:")))
		}
		last = conn
	}
	// Shorter than the patience with those who are idle.
	client := http.Client{Timeout: probePatience / 2, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 10 {
		response := rig.Value(client.Get("http://" + p.address.String() + "/healthz"))
		response.Body.Close()
		rig.Is(t, response.StatusCode, http.StatusOK, "answered with")
	}
	rig.Must(t, last.SetReadDeadline(time.Now().Add(10*probePatience)))
	if _, err := io.ReadAll(last); err != nil {
		late, ok := err.(net.Error)
		rig.Is(t, ok && late.Timeout(), false, "a connection without a whole request stays open")
	}
}
