package httpclient

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.RequestURI, r.Header.Get("Authorization"))
	})
	c := newClient(t, Config{})
	host := strings.TrimPrefix(s.URL, "http://")
	for _, row := range rig.Rows(t, "testdata/urls.txt", "requests", 2) {
		rig.Is(t, answer(t, c, get(strings.ReplaceAll(row[0], "HOST", host))), row[1], "%q: the server saw", row[0])
	}
	explicit := &Request{Method: "GET", URL: "http://u:p@" + host, Headers: headers("authorization", "mine")}
	rig.Is(t, answer(t, c, explicit), "/ mine", "explicit authorization: the server saw")
}

func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{"http://h/p?q#f", "HTTP:\\\\u:p@h:80\\a/../b", " https:h/%zz \u00e9", "http://[::1]:8/", "ftp://x", "http://"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := parseURL(text)
		if err != nil {
			return
		}
		rig.Is(t, u.Scheme == "http" || u.Scheme == "https", true, "%q: %q is of HTTP", text, u)
		rig.Is(t, u.Hostname() == "" || u.Path == "" || strings.ContainsAny(u.RequestURI(), " \r\n\t"), false, "%q: %q lacks something", text, u)
		again, err := parseURL(u.String())
		rig.Must(t, err)
		rig.Is(t, again.String(), u.String(), "%q, parsed again", text)
	})
}

func TestHostPort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host string
		want bool
	}{
		{"example.com", true}, {"Example.com.:80", true}, {"a_b-c~!$&'()*+,;=%41", true}, {"127.0.0.1:65535", true}, {"[::1]", true},
		{"[::1]:8080", true}, {"[::ffff:127.0.0.1]:1", true},
		{"", false}, {":80", false}, {"a:", false}, {"a:x", false}, {"a:-1", false}, {"a:+1", false}, {"a:65536", false}, {"a:1:2", false},
		{"::1", false}, {"[::1", false}, {"[::1]x", false}, {"[::1%lo]", false}, {"[::1%25lo]", false}, {"[127.0.0.1]", false}, {"[]", false},
		{"evil/../ x", false}, {"a b", false}, {"a/b", false}, {"a\\b", false}, {"u@a", false}, {"a?b", false}, {"a#b", false}, {"a%4", false},
		{"a%zz", false}, {"\u00e9", false}, {"a\tb", false}, {"a\x00", false}, {"a]", false}, {"a,b", true},
	} {
		rig.Is(t, isHostPort(tt.host), tt.want, "isHostPort(%q)", tt.host)
	}
}
