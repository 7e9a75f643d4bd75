package netproxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// TestRequestRules: each request is judged by its method and path, in a tunnel and outside, and what
// cannot be seen is refused.
func TestRequestRules(t *testing.T) {
	t.Parallel()
	const entries = "allow=GET example.com/api/**, deny=* example.com/api/no, allow=other.test, deny=DELETE other.test/**"
	for _, http2 := range []bool{false, true} {
		asked := make(chan string, 9)
		v := newVault(t, false, "example.com", Config{Policy: policyOf(t, entries), Decide: func(_ context.Context, q Question) (Answer, error) {
			asked <- q.Protocol + " " + q.Method + " " + q.Path
			return Answer{Decision: map[bool]rules.Action{true: rules.Allow, false: rules.Deny}[strings.HasPrefix(q.Path, "/ask")]}, nil
		}})
		c, want := v.client(t, http2, v.bundle), []string{"domain allow baseline_policy allow socks5_tcp " + v.host + " "}
		for _, test := range []struct{ request, status, report string }{
			{"GET /api/a?q=..", "200", "non_domain allow baseline_policy allow"},
			{"POST /ask", "200", "non_domain allow decider request_not_allowed"},
			{"POST /api/a", "403", "non_domain deny decider policy_denied"},
			{"GET /api/no", "403", "non_domain deny baseline_policy request_denied"},
			{"GET /api/%2e%2e/x", "403", "non_domain deny baseline_policy request_denied"},
		} {
			method, path, _ := strings.Cut(test.request, " ")
			status, header, _ := send(t, c, method, "https://"+v.host+path, "Bearer "+v.placeholder, "body")
			rig.Is(t, fmt.Sprint(status), test.status, "%s", test.request)
			rig.Is(t, header.Get("X-Echo") == "Bearer "+secret, strings.HasPrefix(path, "/api/a") && status == 200, "%s: the credential", test.request)
			line := test.report + " https_connect " + v.host + " " + method
			want = append(want, line+map[bool]string{true: " *"}[path == "/ask"])
		}
		rig.Is(t, <-asked+", "+<-asked, "https_connect POST /ask, https_connect POST /api/a", "asked")
		v.want(want...)
		conn := v.through(v.host)
		say(t, conn, "SSH-2.0-x\r\n")
		v.want(append(want, want[0], "non_domain deny baseline_policy mitm_required socks5_tcp "+v.host+" ")...)
		v.serve(HTTP)
		const plain = "%s http://other.test:1%s HTTP/1.1\r\nHost: other.test:1\r\nConnection: close\r\n\r\n"
		rig.Is(t, strings.Contains(v.raw(fmt.Sprintf(plain, "DELETE", "/x")), "blocked-by-request-rule"), true, "DELETE outside of a tunnel")
		rig.Is(t, v.raw(fmt.Sprintf(plain, "GET", "/x"))[9:12], fmt.Sprint(http.StatusBadGateway), "GET outside of a tunnel")
	}
}
