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
			return "none"
		}
		return u.String()
	}
	for _, row := range rig.Rows(t, "testdata/urls.txt", "proxies", 3) {
		var all []string
		for _, h := range headersOf(row[0]) {
			all = append(all, h.Name, h.Value)
		}
		rig.Is(t, proxy(row[1], all...), row[2], "%s: proxy for %s", row[0], row[1])
	}
	for _, row := range rig.Rows(t, "testdata/urls.txt", "no_proxy", 3) {
		got := proxy(row[1], "HTTP_PROXY", "http://p:1", "no_proxy", row[0])
		rig.Is(t, got, row[2], "without %q: proxy for %s", row[0], row[1])
	}
}
