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
	rig.Must(t, err)
	rig.Is(t, resp.Status, 403, "the proxy's answer for a loopback target")
	_, err = c.Do(t.Context(), get("https://example.test/"))
	rig.Is(t, err != nil, true, "%v: an error of a refused CONNECT", err)
	rig.Is(t, strings.ReplaceAll(strings.Join(proxy.seen(), "\n"), "\r\n", "|"),
		"GET http://127.0.0.1:1/x?y HTTP/1.1|Host: 127.0.0.1:1|accept: */*|accept-encoding: zstd,gzip|Proxy-Authorization: Basic dTpw||\n"+
			"CONNECT example.test:443 HTTP/1.1|Host: example.test:443|Proxy-Authorization: Basic dTpw||", "the proxy saw")
}

func TestProxyFromEnv(t *testing.T) {
	t.Parallel()
	proxy := func(target string, pairs ...string) string {
		u := ProxyFromEnv(env(pairs...)).forURL(rig.Value(url.Parse(target)))
		if u == nil {
			return ""
		}
		return u.String()
	}
	for _, tt := range []struct {
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
	} {
		rig.Is(t, proxy(tt.target, tt.env...), tt.want, "%q: proxy for %s", tt.env, tt.target)
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
		want := map[bool]string{false: "http://p:1"}[bypass.bypassed]
		got := proxy(bypass.target, "HTTP_PROXY", "http://p:1", "no_proxy", bypass.noProxy)
		rig.Is(t, got, want, "without %q: proxy for %s", bypass.noProxy, bypass.target)
	}
}
