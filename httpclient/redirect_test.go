package httpclient

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// redirector answers /CODE/TARGET with that redirect and everything else with what it saw.
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
	s := httptest.NewServer(http.HandlerFunc(redirector))
	defer s.Close()
	c := newClient(t, Config{})
	tests := []struct {
		method string
		code   int
		want   string // method and length of the second request; empty if there is none
	}{
		{"GET", 301, "GET 2"}, {"GET", 302, "GET 2"}, {"GET", 303, "GET 0"}, {"GET", 307, "GET 2"}, {"GET", 308, "GET 2"},
		{"POST", 301, "GET 0"}, {"POST", 302, "GET 0"}, {"POST", 303, "GET 0"}, {"POST", 307, "POST 2"}, {"POST", 308, "POST 2"},
		{"PUT", 301, "PUT 2"}, {"PUT", 302, "PUT 2"}, {"PUT", 303, "GET 0"}, {"DELETE", 302, "DELETE 2"}, {"DELETE", 303, "GET 0"},
		{"post", 302, "post 2"}, {"post", 303, "GET 0"},
		{"GET", 300, ""}, {"GET", 304, ""}, {"GET", 305, ""}, {"POST", 300, ""},
	}
	for _, tt := range tests {
		resp, body, err := fetch(t, c, &Request{
			Method: tt.method, URL: fmt.Sprintf("%s/%d/?to=/done", s.URL, tt.code), Body: []byte("hi"), FollowRedirects: true,
			Headers: []Header{{Name: "content-type", Value: "t/x"}, {Name: "content-encoding", Value: "id"}, {Name: "x-k", Value: "1"}},
		})
		if err != nil {
			t.Errorf("%s %d: %v", tt.method, tt.code, err)
			continue
		}
		if tt.want == "" {
			if resp.Status != tt.code {
				t.Errorf("%s %d: got status %d, want the redirect itself", tt.method, tt.code, resp.Status)
			}
			continue
		}
		method, length, _ := strings.Cut(tt.want, " ")
		if !strings.HasPrefix(body, method+" /done ") || !strings.Contains(body, " length="+length+"\n") {
			t.Errorf("%s %d: second request was %q, want %s", tt.method, tt.code, body, tt.want)
		}
		if kept := strings.Contains(body, "Content-Type: t/x") && strings.Contains(body, "Content-Encoding: id"); kept != (length == "2") {
			t.Errorf("%s %d: headers of the body kept: %v, in %q", tt.method, tt.code, kept, body)
		}
		if !strings.Contains(body, "X-K: 1") {
			t.Errorf("%s %d: x-k is lost in %q", tt.method, tt.code, body)
		}
	}
	resp, _, err := fetch(t, c, &Request{Method: "HEAD", URL: s.URL + "/303/?to=/done", FollowRedirects: true})
	if err != nil || resp.Status != 200 {
		t.Errorf("HEAD 303: got %v, %v", resp, err)
	}
	resp, _, err = fetch(t, c, &Request{Method: "GET", URL: s.URL + "/302/?to=/done"})
	if err != nil || resp.Status != 302 {
		t.Errorf("without following: got %v, %v, want 302", resp, err)
	}
}

func TestRedirectCredentials(t *testing.T) {
	t.Parallel()
	first := httptest.NewServer(http.HandlerFunc(redirector))
	defer first.Close()
	second := httptest.NewServer(http.HandlerFunc(redirector))
	defer second.Close()
	c := newClient(t, Config{})
	secrets := []string{"Authorization", "Cookie", "Cookie2", "Proxy-Authorization", "Www-Authenticate"}
	headers := []Header{{Name: "x-api-key", Value: "k"}, {Name: "referer", Value: "http://orig/"}, {Name: "host", Value: "virtual.example"}}
	for _, name := range secrets {
		headers = append(headers, Header{Name: name, Value: "s"})
	}
	byName := strings.Replace(first.URL, "127.0.0.1", "localhost", 1)
	password := strings.Replace(second.URL, "http://", "http://u:p@", 1)
	tests := []struct {
		to      string
		kept    bool
		referer string
	}{
		{"/done", true, first.URL + "/302/?to=%2Fdone"},
		{second.URL + "/done", false, first.URL + "/"},
		{byName + "/done", false, first.URL + "/"},
		{password + "/done", false, first.URL + "/"},
	}
	for _, tt := range tests {
		_, body, err := fetch(t, c, &Request{
			Method: "GET", URL: first.URL + "/302/?to=" + url.QueryEscape(tt.to) + "#frag", Headers: headers, FollowRedirects: true,
		})
		if err != nil {
			t.Errorf("to %s: %v", tt.to, err)
			continue
		}
		for _, name := range secrets {
			if got := strings.Contains(body, name+": "); got != tt.kept {
				t.Errorf("to %s: %s sent: %v, want %v", tt.to, name, got, tt.kept)
			}
		}
		if got := strings.Contains(body, "host=virtual.example"); got != tt.kept {
			t.Errorf("to %s: host kept: %v, want %v", tt.to, got, tt.kept)
		}
		if !strings.Contains(body, "Referer: "+tt.referer+"\r\n") || !strings.Contains(body, "X-Api-Key: k") {
			t.Errorf("to %s: got %q, want referer %s", tt.to, body, tt.referer)
		}
	}
}

// The content of a variable goes to the origin it was meant for, under whatever name, and does not come back from elsewhere.
func TestRedirectDropsVariables(t *testing.T) {
	t.Parallel()
	first := httptest.NewServer(http.HandlerFunc(redirector))
	defer first.Close()
	second := httptest.NewServer(http.HandlerFunc(redirector))
	defer second.Close()
	c := newClient(t, Config{Env: env("KEY", "secret")})
	name := "KEY"
	to := func(base, next string) string { return base + "/302/?to=" + url.QueryEscape(next) }
	tests := []struct {
		name, url string
		kept      bool
	}{
		{"same origin", to(first.URL, "/done"), true},
		{"same origin, twice", to(first.URL, to(first.URL, "/done")), true},
		{"other origin", to(first.URL, second.URL+"/done"), false},
		{"same and then other origin", to(first.URL, to(first.URL, second.URL+"/done")), false},
		{"there and back", to(first.URL, to(second.URL, first.URL+"/done")), false},
	}
	for _, tt := range tests {
		_, body, err := fetch(t, c, &Request{Method: "GET", URL: tt.url, FollowRedirects: true, Headers: []Header{
			{Name: "x-api-key", ValueEnvVar: &name}, {Name: "X-Two", Value: "plain"}, {Name: "x-tWO", Value: "Key ", ValueEnvVar: &name},
			{Name: "x-plain", Value: "1"},
		}})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := strings.Count(body, "secret"); got != 0 && !tt.kept || got != 2 && tt.kept {
			t.Errorf("%s: kept: want %v, got %q", tt.name, tt.kept, body)
		}
		if !strings.Contains(body, "X-Plain: 1") {
			t.Errorf("%s: x-plain is lost in %q", tt.name, body)
		}
	}
}

func TestRedirectFromHTTPSHasNoReferer(t *testing.T) {
	t.Parallel()
	from, to := &url.URL{Scheme: "https", Host: "a.test", Path: "/secret"}, &url.URL{Scheme: "http", Host: "a.test", Path: "/"}
	h := &hop{url: to, header: http.Header{"Referer": {"http://orig/"}}}
	h.setReferer(from, false)
	if got, ok := h.header["Referer"]; ok {
		t.Errorf("got referer %q, want none", got)
	}
}

func TestRedirectLimit(t *testing.T) {
	t.Parallel()
	requests := 0 // the requests of one chain come one after another
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		var n int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); err != nil || n == 0 {
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/%d", n-1), http.StatusFound)
	}))
	defer s.Close()
	c := newClient(t, Config{})
	if resp, _, err := fetch(t, c, get(s.URL+"/10")); err != nil || resp.Status != 200 {
		t.Errorf("ten redirects: got %v, %v, want 200", resp, err)
	}
	requests = 0
	_, _, err := fetch(t, c, get(s.URL+"/1000"))
	if _, ok := errors.AsType[*TransportError](err); !ok || !strings.Contains(err.Error(), "too many redirects") || requests != 11 {
		t.Errorf("endless redirects: got %v after %d requests, want an error after 11", err, requests)
	}
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
	tests := []struct {
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
	}
	for _, tt := range tests {
		resp, body, err := fetch(t, c, get(s.URL+tt.path))
		if tt.status == 0 {
			if _, ok := errors.AsType[*TransportError](err); !ok {
				t.Errorf("%s: got %v, %v, want a TransportError", tt.path, resp, err)
			}
			continue
		}
		if err != nil || resp.Status != tt.status || body != tt.body {
			t.Errorf("%s: got %v %q, %v, want %d %q", tt.path, resp, body, err, tt.status, tt.body)
		}
	}
}
