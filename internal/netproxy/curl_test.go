package netproxy

import (
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/intercept"
	"github.com/execagent/execagent/test/rig"
)

// TestCurl: a client that everybody uses, in the ways in which it can be told to send.
func TestCurl(t *testing.T) {
	t.Parallel()
	needCurl(t)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s %d|", r.Method, r.RequestURI, n)
	})
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	encrypted := httptest.NewTLSServer(handler)
	t.Cleanup(encrypted.Close)
	g := start(t, all())
	file := filepath.Join(t.TempDir(), "file")
	rig.Must(t, os.WriteFile(file, make([]byte, 3<<20), 0o600))
	for _, c := range []struct{ args, want string }{
		{"PLAIN/a?b", "GET /a?b 0|"},
		{"PLAIN/a PLAIN/b PLAIN/c", "GET /a 0|GET /b 0|GET /c 0|"},
		{"-0 PLAIN/a PLAIN/b", "GET /a 0|GET /b 0|"},
		{"--http2 PLAIN/a", "GET /a 0|"},
		{"-d x=y PLAIN/a", "POST /a 3|"},
		{"-T FILE PLAIN/a PLAIN/b", "PUT /a 3145728|GET /b 0|"},
		{"-H Expect:100-continue -T FILE PLAIN/a", "PUT /a 3145728|"},
		{"-H Transfer-Encoding:chunked -T FILE PLAIN/a", "PUT /a 3145728|"},
		{"-p PLAIN/a PLAIN/b", "GET /a 0|GET /b 0|"},
		{"ENCRYPTED/a ENCRYPTED/b", "GET /a 0|GET /b 0|"},
		{"-T FILE ENCRYPTED/a", "PUT /a 3145728|"},
		{"http://127.0.0.1:1/", "upstream failure"},
	} {
		curl(t, g, strings.NewReplacer("PLAIN", plain.URL, "ENCRYPTED", encrypted.URL, "FILE", file).Replace(c.args), c.want, "-k")
	}
}

// curl runs curl through a proxy, with what a line has and more, and compares what it prints.
func curl(t *testing.T, g *proxied, line, want string, more ...string) {
	t.Helper()
	args := slices.Concat([]string{"-q", "-s", "-m", "100", "--noproxy", "", "-x", "http://" + g.addr}, more, strings.Fields(line))
	if out, err := exec.Command("curl", args...).CombinedOutput(); string(out) != want {
		t.Errorf("curl %s: %q, %v, want %q", line, out, err, want)
	}
}

// needCurl skips a test where there is no curl.
func needCurl(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
}

// TestCurlInside: the same in tunnels that are looked into, where curl trusts the bundle alone.
func TestCurlInside(t *testing.T) {
	t.Parallel()
	needCurl(t)
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s %s %d %s|", r.Proto, r.Method, r.RequestURI, n, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}))
	site.EnableHTTP2 = true
	site.StartTLS()
	t.Cleanup(site.Close)
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	authority, err := intercept.NewAuthority(nil)
	rig.Must(t, err)
	broker, placeholder := newBroker(t, site.URL+"/api")
	g := start(t, all(), Config{Credentials: broker, Authority: authority, Roots: func() *x509.CertPool { return roots }})
	dir := t.TempDir()
	file, bundle := filepath.Join(dir, "file"), filepath.Join(dir, "bundle")
	rig.Must(t, os.WriteFile(file, make([]byte, 3<<20), 0o600), os.WriteFile(bundle, authority.Bundle(), 0o600))
	for _, c := range []struct{ args, want string }{
		{"--http2 SITE/api SITE/other", "HTTP/2.0 GET /api 0 " + secret + "|HTTP/2.0 GET /other 0 " + placeholder + "|"},
		{"--http1.1 SITE/api SITE/other", "HTTP/1.1 GET /api 0 " + secret + "|HTTP/1.1 GET /other 0 " + placeholder + "|"},
		{"--no-alpn SITE/api", "HTTP/1.1 GET /api 0 " + secret + "|"},
		{"--http2 -T FILE SITE/api", "HTTP/2.0 PUT /api 3145728 " + secret + "|"},
		{"--http1.1 -H Expect:100-continue -T FILE SITE/api SITE/api", "HTTP/1.1 PUT /api 3145728 " + secret + "|HTTP/1.1 GET /api 0 " + secret + "|"},
		{"--http1.1 -H Transfer-Encoding:chunked -T FILE SITE/api", "HTTP/1.1 PUT /api 3145728 " + secret + "|"},
	} {
		curl(t, g, strings.NewReplacer("SITE", site.URL, "FILE", file).Replace(c.args), c.want, "--cacert", bundle, "-H", "Authorization: Bearer "+placeholder)
	}
}
