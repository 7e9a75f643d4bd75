package netproxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCurl: a client that everybody uses, in the ways in which it can be told to send.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
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
	if err := os.WriteFile(file, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
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
		args := append([]string{"-q", "-s", "-k", "-m", "100", "--noproxy", "", "-x", "http://" + g.addr},
			strings.Fields(strings.NewReplacer("PLAIN", plain.URL, "ENCRYPTED", encrypted.URL, "FILE", file).Replace(c.args))...)
		if out, err := exec.Command(curl, args...).CombinedOutput(); string(out) != c.want {
			t.Errorf("curl %s: %q, %v, want %q", c.args, out, err, c.want)
		}
	}
}
