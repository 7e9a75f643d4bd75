package httpclient

import (
	"net/url"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestProxyOnTheWire(t *testing.T) {
	t.Parallel()
	proxy := newRawServer(t, func(string) (string, bool) { return "HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nnop", false })
	host := strings.TrimPrefix(proxy.URL, "http://")
	c := newClient(t, Config{Proxy: ProxyFromEnv(env("ALL_PROXY", "http://u:p@"+host))})
	resp, _, err := fetch(t, c, get("http://127.0.0.1:1/x?y"))
	if err != nil || resp.Status != 403 {
		t.Fatalf("got %v, %v, want the proxy's answer for a loopback target", resp, err)
	}
	if _, err := c.Do(t.Context(), get("https://example.test/")); err == nil {
		t.Error("refused CONNECT: no error")
	}
	want := []string{
		"GET http://127.0.0.1:1/x?y HTTP/1.1|Host: 127.0.0.1:1|accept: */*|Proxy-Authorization: Basic dTpw||",
		"CONNECT example.test:443 HTTP/1.1|Host: example.test:443|Proxy-Authorization: Basic dTpw||",
	}
	for i, head := range proxy.seen() {
		if got := strings.ReplaceAll(head, "\r\n", "|"); got != want[i] {
			t.Errorf("proxy saw %s\nwant      %s", got, want[i])
		}
	}
}

func TestProxyFromEnv(t *testing.T) {
	t.Parallel()
	tests := []struct {
		env    []string
		target string
		want   string
	}{
		{nil, "http://a.test/", ""},
		{[]string{"HTTP_PROXY", "http://p:1"}, "http://127.0.0.1/", "http://p:1"},
		{[]string{"http_proxy", "http://p:1"}, "http://localhost/", "http://p:1"},
		{[]string{"HTTP_PROXY", "p:1"}, "http://a.test/", "http://p:1"},
		{[]string{"HTTP_PROXY", "http://p:1"}, "https://a.test/", ""},
		{[]string{"HTTPS_PROXY", "http://p:1"}, "https://a.test/", "http://p:1"},
		{[]string{"HTTPS_PROXY", "http://p:1"}, "http://a.test/", ""},
		{[]string{"all_proxy", "socks5://p:1"}, "https://a.test/", "socks5://p:1"},
		{[]string{"ALL_PROXY", "http://p:1", "HTTP_PROXY", "http://p:2"}, "http://a.test/", "http://p:2"},
		{[]string{"HTTP_PROXY", "http://p:1", "http_proxy", "http://p:2"}, "http://a.test/", "http://p:1"},
		{[]string{"HTTP_PROXY", "", "http_proxy", "http://p:2"}, "http://a.test/", "http://p:2"},
		{[]string{"HTTP_PROXY", ":::"}, "http://a.test/", ""},
		{[]string{"HTTP_PROXY", "ftp://p:1"}, "http://a.test/", ""},
		{[]string{"HTTP_PROXY", "http://p:1", "REQUEST_METHOD", "GET"}, "http://a.test/", ""},
	}
	for _, bypass := range []struct {
		noProxy, target string
		bypassed        bool
	}{
		{"*", "http://a.test/", true},
		{"a.test", "http://a.test/", true},
		{"a.test", "http://b.a.test/", true},
		{"A.Test", "http://a.TEST/", true},
		{".a.test", "http://a.test/", true},
		{"*.a.test", "http://b.a.test/", true},
		{"test", "http://a.test/", true},
		{"a.test", "http://ba.test/", false},
		{"a.test:80", "http://a.test/", true},
		{"a.test:81", "http://a.test/", false},
		{"x, 127.0.0.1 ,y", "http://127.0.0.1:99/", true},
		{"127.0.0.1:99", "http://127.0.0.1:99/", true},
		{"127.0.0.1:98", "http://127.0.0.1:99/", false},
		{"127.0.0.0/8", "http://127.9.9.9/", true},
		{"10.0.0.0/8", "http://127.9.9.9/", false},
		{"::1", "http://[::1]:8/", true},
		{"[::1]:8", "http://[::1]:8/", true},
		{"0.0.1", "http://127.0.0.1/", false},
		{"localhost", "http://127.0.0.1/", false},
		{" , ", "http://a.test/", false},
	} {
		want := "http://p:1"
		if bypass.bypassed {
			want = ""
		}
		tests = append(tests, struct {
			env    []string
			target string
			want   string
		}{[]string{"HTTP_PROXY", "http://p:1", "no_proxy", bypass.noProxy}, bypass.target, want})
	}
	for _, tt := range tests {
		target, err := url.Parse(tt.target)
		rig.Must(t, err)
		got := ""
		if u := ProxyFromEnv(env(tt.env...)).forURL(target); u != nil {
			got = u.String()
		}
		rig.Is(t, got, tt.want, "%q: proxy for %s", tt.env, tt.target)
	}
}
