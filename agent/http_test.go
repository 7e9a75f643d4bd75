package agent

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// webHandler returns the handler of the web server that tests send http/request to.
func webHandler() http.Handler {
	mux := http.NewServeMux()
	plain := func(w http.ResponseWriter) {
		w.Header()["Date"] = nil
		w.Header().Set("Content-Type", "text/plain")
	}
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		io.WriteString(w, "hello\n")
	})
	// /echo says what was asked.
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s a=%s %s", r.Method, strings.Join(r.Header.Values("X-A"), "|"), body)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		w.Header().Set("Location", "/echo")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		w.Header().Set("Location", "/loop")
		w.WriteHeader(http.StatusFound)
	})
	// /zipped says which encodings were asked for, with gzip; /unzipped ends early.
	mux.HandleFunc("/zipped", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprintf(z, "encodings: %q", r.Header["Accept-Encoding"])
		_ = z.Close()
	})
	mux.HandleFunc("/unzipped", func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, "part")
		_ = z.Flush()
	})
	// /broken promises more than it sends.
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "part")
	})
	// /slow sends its header and then nothing until the client is gone.
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	// /endless never stops sending.
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		block := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	return mux
}

// get sends http/request and returns the body of the answer.
func (c *client) get(url string, headers ...object) (string, error) {
	var r protocol.HTTPResponse
	err := c.call("http/request", object{"method": "GET", "url": url, "requestId": "r", "headers": append([]object{}, headers...)}, &r)
	return string(r.BodyBase64), err
}

// TestHTTPConnections: each connection of a client has connections to servers of its own.
func TestHTTPConnections(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }))
	defer s.Close()
	r := newHarness(t, Config{})
	a, b := r.attach(""), r.attach("")
	first, other := rig.Value(a.get(s.URL)), rig.Value(b.get(s.URL))
	rig.Is(t, first != other, true, "two clients share no connection")
	rig.Is(t, rig.Value(a.get(s.URL))+rig.Value(b.get(s.URL)), first+other, "connections of the next requests")
}

// TestHTTPMasked: a variable that the operator masks, and one that contains its value, leave only to
// where they belong, and not by a redirect, a Host header or a policy that has changed.
func TestHTTPMasked(t *testing.T) {
	t.Parallel()
	const secret = "fg_abcdefghijabcdefghij"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/moved" {
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
			return
		}
		fmt.Fprint(w, r.URL.Path, " ", r.Header.Get("X-A"))
	}))
	defer s.Close()
	masking := func(variable, prefix string) *Network {
		return &Network{&egress.Operator{Masking: map[string]protocol.CredentialProvider{
			"forge": {Env: []string{variable}, Patterns: []string{"fg_[a-z]{20}"}, URLPrefixes: []string{prefix}},
		}}}
	}
	r := newHarness(t, Config{Network: masking("FORGE_TOKEN", s.URL+"/api"), Environ: []string{
		"FORGE_TOKEN=" + secret, "COPY=" + secret, "FORGE_URL=https://u:" + secret + "@forge.example", "OTHER=public",
	}})
	c := r.attach("")
	for _, tt := range []struct{ variable, path, host, want string }{
		{"OTHER", "/", "", "/ public"},
		{"FORGE_TOKEN", "/api/x", "", "/api/x " + secret},
		{"FORGE_TOKEN", "/api/moved?to=/api/y", "", "/api/y " + secret},
		{"FORGE_TOKEN", "/api/moved?to=/else", "", "/else "},
		{"FORGE_TOKEN", "/api/moved?to=/api/..%252fx", "", "/api/../x "},
		{"FORGE_TOKEN", "/", "", ""},
		{"FORGE_URL", "/", "", ""},
		{"FORGE_TOKEN", "/api/..%00/x", "", ""},
		{"FORGE_TOKEN", "/api/x", "evil.example", ""},
	} {
		headers := []object{{"name": "x-a", "value": "", "valueEnvVar": tt.variable}}
		if tt.host != "" {
			headers = append(headers, object{"name": "Host", "value": tt.host})
		}
		got, err := c.get(s.URL+tt.path, headers...)
		rig.Is(t, got, tt.want, "%+v: %v", tt, err)
		if tt.want == "" {
			wantCode(t, tt.path, err, protocol.CodeInvalidParams)
			rig.Is(t, strings.Contains(err.Error(), secret), false, "the error has the secret: %v", err)
		}
	}
	r.agent.SetNetwork(masking("OTHER", "https://forge.example"))
	for variable, want := range map[string]string{"OTHER": "", "FORGE_TOKEN": "/ " + secret} {
		got, err := c.get(s.URL, object{"name": "x-a", "value": "", "valueEnvVar": variable})
		rig.Is(t, got, want, "%s after another policy: %v", variable, err)
	}
}
