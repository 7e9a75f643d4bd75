package egress

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// asking returns a network whose client answers so.
func asking(t *testing.T, ms uint64, ask func(context.Context, *protocol.PolicyRequestParams, *protocol.PolicyAnswer) error) *Network {
	t.Helper()
	plan, err := Of(&protocol.NetworkProxy{Proxy: protocol.ProxyParams{Enabled: true}, PolicyDecisionTimeoutMs: &ms}, "p")
	rig.Must(t, err)
	return &Network{plan: plan, client: Client{Ask: func(ctx context.Context, method string, params, result any) error {
		rig.Is(t, method, protocol.MethodNetworkPolicyRequest, "method")
		return ask(ctx, params.(*protocol.PolicyRequestParams), result.(*protocol.PolicyAnswer))
	}}}
}

// TestDecide: the client is asked what network.md 4.1 says, and its answer counts.
func TestDecide(t *testing.T) {
	t.Parallel()
	q := netproxy.Question{Protocol: rules.Connect, Host: "a.org", Port: 443}
	gone := errors.New("gone")
	for _, tt := range []struct {
		answer protocol.PolicyChoice
		err    error
		want   netproxy.Answer
	}{
		{protocol.PolicyChoice{Type: "allow"}, nil, netproxy.Answer{Decision: rules.Allow}},
		{protocol.PolicyChoice{Type: "deny", Reason: new("r")}, nil, netproxy.Answer{Decision: rules.Deny, Reason: "r"}},
		{protocol.PolicyChoice{Type: "ask", Reason: new("")}, nil, netproxy.Answer{Decision: rules.Ask}},
		{protocol.PolicyChoice{}, gone, netproxy.Answer{}},
	} {
		w := asking(t, 1, func(_ context.Context, asked *protocol.PolicyRequestParams, answer *protocol.PolicyAnswer) error {
			want := protocol.PolicyRequestParams{ProcessID: "p", Request: protocol.PolicyRequest{Protocol: "https_connect", Host: "a.org", Port: 443}}
			rig.Is(t, *asked, want, "asked")
			answer.Decision = tt.answer
			return tt.err
		})
		got, err := w.decide(t.Context(), q)
		rig.Is(t, got, tt.want, "%+v", tt.answer)
		rig.Is(t, err, tt.err, "%+v", tt.answer)
	}
}

// TestDecideWaits: a client has the time that it has named, and 5 s more.
func TestDecideWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := asking(t, 3000, func(ctx context.Context, _ *protocol.PolicyRequestParams, _ *protocol.PolicyAnswer) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		begun := time.Now()
		rig.Is(t, rig.Err(w.decide(t.Context(), netproxy.Question{})), context.DeadlineExceeded, "")
		rig.Is(t, time.Since(begun), 8*time.Second, "it took")
	})
}

// TestOwn: the agent's ports are its own at all addresses of this host, and nobody's elsewhere;
// those of a proxy are so while it is open.
func TestOwn(t *testing.T) {
	t.Parallel()
	n := &Networks{Ports: []uint16{7000, 8000}, OpenPorts: []uint16{8000}}
	release := n.listensAt([]uint16{31000, 31001})
	for _, tt := range []struct {
		addr string
		own  bool
	}{
		{"127.0.0.1:7000", true}, {"127.1.2.3:7000", true}, {"[::1]:7000", true}, {"0.0.0.0:7000", true}, {"[::]:7000", true},
		{"[::ffff:127.0.0.1]:7000", true}, {"127.0.0.1:31001", true}, {"127.0.0.1:7001", false}, {"192.0.2.1:7000", false}, {"192.0.2.1:8000", true}, {"[2001:db8::1]:31000", false},
	} {
		rig.Is(t, n.own(netip.MustParseAddrPort(tt.addr)), tt.own, "%s", tt.addr)
	}
	release()
	rig.Is(t, n.own(netip.MustParseAddrPort("127.0.0.1:31000")), false, "the port of a proxy that is closed")
}

// TestRoots: where the proxy speaks TLS itself it trusts whom the agent trusts, and nobody else.
func TestRoots(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	t.Cleanup(s.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	address := s.Listener.Addr().String()
	plan, err := Of(&protocol.NetworkProxy{Proxy: protocol.ProxyParams{Enabled: true, Mode: "full", AllowLocalBinding: true, Domains: map[string]string{"127.0.0.1": "allow"}}}, "p")
	rig.Must(t, err)
	for _, tt := range []struct {
		roots *x509.CertPool
		want  string
	}{{trusted, "200 OK here"}, {x509.NewCertPool(), "502 Bad Gateway upstream failure"}} {
		n := &Networks{Roots: func() *x509.CertPool { return tt.roots }}
		owned, err := gate.Owned(1)
		rig.Must(t, err)
		w, err := n.Open(plan, Start{Gate: owned, OnHost: true}, Client{Reports: &Reports{Tell: func(*protocol.PolicyDecision) bool { return true }}})
		rig.Must(t, err)
		conn, err := net.Dial("tcp", owned.HTTP().Addr().String())
		rig.Must(t, err)
		// A plain request for a URL of https: the proxy is to speak TLS.
		fmt.Fprintf(conn, "GET https://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		rig.Must(t, err)
		rig.Is(t, strings.TrimSpace(resp.Status+" "+string(rig.Value(io.ReadAll(resp.Body)))), tt.want, "")
		_ = conn.Close()
		w.Close()
	}
}
