package httpclient

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// redirector answers /CODE/?to=TARGET with a redirect of that status to TARGET,
// and all else with what it saw of the request.
func redirector(w http.ResponseWriter, r *http.Request) {
	var code int
	if _, err := fmt.Sscanf(r.URL.Path, "/%d/", &code); err == nil {
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(code)
		return
	}
	echo(w, r)
}

func TestRedirectMethods(t *testing.T) {
	t.Parallel()
	s := serve(t, redirector)
	c := newClient(t, Config{})
	for _, tt := range []struct {
		method string
		code   int
		want   string // method and length of the second request; empty if there is none
	}{
		{"GET", 301, "GET 2"}, {"GET", 302, "GET 2"}, {"GET", 303, "GET 0"}, {"GET", 307, "GET 2"}, {"GET", 308, "GET 2"},
		{"POST", 301, "GET 0"}, {"POST", 302, "GET 0"}, {"POST", 303, "GET 0"}, {"POST", 307, "POST 2"}, {"POST", 308, "POST 2"},
		{"PUT", 301, "PUT 2"}, {"PUT", 302, "PUT 2"}, {"PUT", 303, "GET 0"}, {"DELETE", 302, "DELETE 2"}, {"DELETE", 303, "GET 0"},
		{"post", 302, "post 2"}, {"post", 303, "GET 0"},
		{"GET", 300, ""}, {"GET", 304, ""}, {"GET", 305, ""}, {"POST", 300, ""},
	} {
		resp, body, err := fetch(t, c, &Request{
			Method: tt.method, URL: fmt.Sprintf("%s/%d/?to=/done", s.URL, tt.code), Body: []byte("hi"), FollowRedirects: true,
			Headers: []Header{{Name: "content-type", Value: "t/x"}, {Name: "content-encoding", Value: "id"}, {Name: "x-k", Value: "1"}},
		})
		rig.Must(t, err)
		if tt.want == "" {
			rig.Is(t, resp.Status, tt.code, "%s %d: got status", tt.method, tt.code)
			continue
		}
		method, length, _ := strings.Cut(tt.want, " ")
		second := strings.HasPrefix(body, method+" /done ") && strings.Contains(body, " length="+length+"\n")
		rig.Is(t, second, true, "%s %d: the second request %q is %s", tt.method, tt.code, body, tt.want)
		kept := strings.Contains(body, "Content-Type: t/x") && strings.Contains(body, "Content-Encoding: id")
		rig.Is(t, kept, length == "2", "%s %d: headers of the body are kept in %q", tt.method, tt.code, body)
		rig.Is(t, strings.Contains(body, "X-K: 1"), true, "%s %d: x-k is in %q", tt.method, tt.code, body)
	}
	for status, req := range map[int]*Request{
		200: {Method: "HEAD", URL: s.URL + "/303/?to=/done", FollowRedirects: true},
		302: {Method: "GET", URL: s.URL + "/302/?to=/done"},
	} {
		resp, _, err := fetch(t, c, req)
		rig.Must(t, err)
		rig.Is(t, resp.Status, status, "%s", req.URL)
	}
}

func TestRedirectCredentials(t *testing.T) {
	t.Parallel()
	first := serve(t, redirector)
	second := serve(t, redirector)
	c := newClient(t, Config{})
	secrets := []string{"Authorization", "Cookie", "Cookie2", "Proxy-Authorization", "Www-Authenticate", "X-Api-Key", "Private-Token", "X_auth"}
	headers := []Header{{Name: "x-trace", Value: "k"}, {Name: "idempotency-key", Value: "k"}, {Name: "mcp-session-id", Value: "k"}, {Name: "referer", Value: "http://orig/"}, {Name: "host", Value: "virtual.example"}}
	for _, name := range secrets {
		headers = append(headers, Header{Name: name, Value: "s"})
	}
	byName := strings.Replace(first.URL, "127.0.0.1", "localhost", 1)
	password := strings.Replace(second.URL, "http://", "http://u:p@", 1)
	for _, tt := range []struct {
		to      string
		kept    bool
		referer string
	}{
		{"/done", true, first.URL + "/302/?to=%2Fdone"},
		{second.URL + "/done", false, ""},
		{byName + "/done", false, ""},
		{password + "/done", false, ""},
	} {
		body := answer(t, c, &Request{
			Method: "GET", URL: first.URL + "/302/?to=" + url.QueryEscape(tt.to) + "#frag", Headers: headers, FollowRedirects: true,
		})
		for _, name := range secrets {
			rig.Is(t, strings.Contains(body, name+": "), tt.kept, "to %s: %s sent", tt.to, name)
		}
		rig.Is(t, strings.Contains(body, "host=virtual.example"), tt.kept, "to %s: host kept", tt.to)
		for _, name := range []string{"X-Trace", "Idempotency-Key", "Mcp-Session-Id"} {
			rig.Is(t, strings.Contains(body, name+": k\r\n"), true, "to %s: %s is in %q", tt.to, name, body)
		}
		_, referer, _ := strings.Cut(body, "Referer: ")
		referer, _, _ = strings.Cut(referer, "\r\n")
		rig.Is(t, referer, tt.referer, "to %s: referer", tt.to)
	}
}

// The content of a variable goes only to the origin that it was meant for,
// whatever the header's name. A chain that leaves that origin and comes back to
// it has lost the header for good.
func TestRedirectDropsVariables(t *testing.T) {
	t.Parallel()
	first := serve(t, redirector)
	second := serve(t, redirector)
	c := newClient(t, Config{Env: env("KEY", "secret")})
	name := "KEY"
	to := func(base, next string) string { return base + "/302/?to=" + url.QueryEscape(next) }
	for _, tt := range []struct {
		name, url string
		kept      bool
	}{
		{"same origin", to(first.URL, "/done"), true},
		{"same origin, twice", to(first.URL, to(first.URL, "/done")), true},
		{"other origin", to(first.URL, second.URL+"/done"), false},
		{"same and then other origin", to(first.URL, to(first.URL, second.URL+"/done")), false},
		{"there and back", to(first.URL, to(second.URL, first.URL+"/done")), false},
	} {
		body := answer(t, c, &Request{Method: "GET", URL: tt.url, FollowRedirects: true, Headers: []Header{
			{Name: "x-api-key", ValueEnvVar: &name}, {Name: "X-Two", Value: "plain"}, {Name: "x-tWO", Value: "Key ", ValueEnvVar: &name},
			{Name: "x-plain", Value: "1"},
		}})
		rig.Is(t, strings.Count(body, "secret"), map[bool]int{true: 2}[tt.kept], "%s: secrets in %q", tt.name, body)
		rig.Is(t, strings.Contains(body, "X-Plain: 1"), true, "%s: x-plain is in %q", tt.name, body)
	}
}

// A header that the caller named for a secret follows a redirect only to the
// same origin, and from http to https of the same host.
func TestRedirectOrigins(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/urls.txt", "origins", 3) {
		h := &hop{method: "GET", url: rig.Value(url.Parse(row[0])), header: http.Header{}}
		for _, name := range []string{"Authorization", "X-Api-Key", "Referer", "Accept"} {
			h.header[name] = []string{"s"}
		}
		next, err := h.redirect(&http.Response{StatusCode: 302, Header: http.Header{"Location": {row[1]}}})
		rig.Must(t, err)
		for name := range h.header {
			rig.Is(t, next.header[name] != nil, name == "Accept" || strings.Contains(row[2], name), "%s to %s: %s", row[0], row[1], name)
		}
	}
}

func TestSecretNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"X-Api-Key": true, "Api_key": true, "Apikey": true, "X-Goog-Api-Key": true, "Ocp-Apim-Subscription-Key": true, "X-Access-Key": true,
		"X-Auth-Token": true, "Private-Token": true, "X-Amz-Security-Token": true, "X-Csrf-Token": true, "X-Auth": true, "X-Authorization": true,
		"X-Client-Secret": true, "X-Password": true, "X-Vault-Token": true,
		"Idempotency-Key": false, "Mcp-Session-Id": false, "Mcp-Protocol-Version": false, "X-Auth-User": false, "Accept": false, "Content-Type": false,
		"X-Author": false, "User-Agent": false, "X-Request-Id": false, "Traceparent": false,
	} {
		rig.Is(t, isSecret(name), want, "%s", name)
	}
}

func TestRedirectLimit(t *testing.T) {
	t.Parallel()
	requests := 0 // the requests of one chain come one after another
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		var n int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); err != nil || n == 0 {
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/%d", n-1), http.StatusFound)
	})
	c := newClient(t, Config{})
	resp, _, err := fetch(t, c, get(s.URL+"/10"))
	rig.Must(t, err)
	rig.Is(t, resp.Status, 200, "ten redirects")
	requests = 0
	_, _, err = fetch(t, c, get(s.URL+"/1000"))
	fails[*TransportError](t, err, "too many redirects")
	rig.Is(t, requests, 11, "requests")
}

func TestRedirectTargets(t *testing.T) {
	t.Parallel()
	s := newRawServer(t, func(path string) (string, bool) {
		location := map[string]string{
			"/bad": "http://[bad", "/bytes": "/\xff\xe9", "/ftp": "ftp://x/y", "/scheme": "javascript:alert(1)",
			"/dir/rel": "../x y?q#f", "/dir/query": "?q",
		}[path]
		if location == "" {
			return fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s", len(path), path), false
		}
		return "HTTP/1.1 302 Found\r\nlocation: " + location + "\r\ncontent-length: 2\r\n\r\nhi", false
	})
	c := newClient(t, Config{})
	for _, tt := range []struct {
		path   string
		status int // 0 for an error
		body   string
	}{
		{"/bad", 302, "hi"},
		{"/bytes", 302, "hi"},
		{"/ftp", 0, ""},
		{"/scheme", 0, ""},
		{"/dir/rel", 200, "/x%20y?q"},
		{"/dir/query", 200, "/dir/query?q"},
	} {
		resp, body, err := fetch(t, c, get(s.URL+tt.path))
		if tt.status == 0 {
			fails[*TransportError](t, err, "")
			continue
		}
		rig.Must(t, err)
		rig.Is(t, fmt.Sprint(resp.Status, " ", body), fmt.Sprint(tt.status, " ", tt.body), "%s", tt.path)
	}
}
